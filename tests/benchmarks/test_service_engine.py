"""The simulated engine against times computed by hand, and against the bound that it must never beat."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from agentrl_jax.testing.virtual import run_virtual
from agentrl_jax.types import Completion, SamplingParams, as_ids
from benchmarks.service_engine import ServiceEngine
from benchmarks.service_model import ServiceModel, load

BASE = load()
MODEL = replace(BASE, episode=replace(BASE.episode, sampled_tokens_mean=100.0))
T0, KAPPA, PREFILL = MODEL.iteration_s, MODEL.context_token_s, MODEL.prefill_s
MEDIAN = 2**62  # the seed of a draw at the median: with sigma 0, 100 tokens


def sampling(max_new_tokens: int = 1024) -> SamplingParams:
    return SamplingParams(temperature=1.0, max_new_tokens=max_new_tokens, seed=MEDIAN, stop_ids=(1,))


def decode_s(num: int, *prompts: int) -> float:
    """Of `num` iterations that begin with these prompts side by side."""
    return num * T0 + KAPPA * (num * sum(prompts) + len(prompts) * num * num / 2)


class Bench:
    """Turns of one engine, by name, and when they ended."""

    def __init__(self, model: ServiceModel = MODEL) -> None:
        self.engine = ServiceEngine("e", model, 0.0)
        self.ended: dict[str, float] = {}
        self.done: dict[str, Completion] = {}

    async def turn(self, name: str, num_prompt: int, *, session: str = "", at: float = 0.0, limit: int = 1024) -> None:
        await trio.sleep_until(at)
        prompt = as_ids(np.ones(num_prompt, np.int32))
        self.done[name] = await self.engine.generate(prompt, sampling(limit), session=session or name)
        self.ended[name] = trio.current_time()

    async def publish(self, version: int, at: float) -> None:
        await trio.sleep_until(at)
        await self.engine.publish(None, version)

    def run(self, *calls: tuple[Any, ...]) -> None:
        async def main() -> None:
            async with trio.open_nursery() as serving:
                serving.start_soon(self.engine.run)
                async with trio.open_nursery() as nursery:
                    for call, *arguments in calls:
                        nursery.start_soon(call, *arguments)
                serving.cancel_scope.cancel()

        run_virtual(main)


def test_one_turn_is_prefilled_and_then_decoded() -> None:
    bench = Bench()
    bench.run((bench.turn, "a", 1000))
    assert bench.ended["a"] == pytest.approx(1000 * PREFILL + decode_s(100, 1000))
    assert len(bench.done["a"].ids) == 100
    assert bench.done["a"].finish_reason == "stop"
    assert bench.engine.busy_s == pytest.approx(bench.ended["a"])


def test_two_turns_share_iterations_and_not_prefill() -> None:
    bench = Bench()
    bench.run((bench.turn, "a", 1000), (bench.turn, "b", 500))
    assert bench.ended["a"] == pytest.approx(1500 * PREFILL + decode_s(100, 1000, 500))
    assert bench.ended["b"] == bench.ended["a"]


def test_a_later_turn_holds_up_the_first_and_slows_it_down() -> None:
    arrival = 1000 * PREFILL + decode_s(40, 1000)

    async def second() -> None:
        await bench.turn("b", 500, at=arrival)

    bench = Bench()
    bench.run((bench.turn, "a", 1000), (second,))
    first = arrival + 500 * PREFILL + decode_s(60, 1040, 500)
    assert bench.ended["a"] == pytest.approx(first)
    assert bench.ended["b"] == pytest.approx(first + decode_s(40, 560))


def test_a_turn_that_is_cut_says_so() -> None:
    async def short() -> None:
        await bench.turn("a", 10, limit=7)

    bench = Bench()
    bench.run((short,))
    assert (len(bench.done["a"].ids), bench.done["a"].finish_reason) == (7, "length")


def test_a_session_keeps_its_prefix_until_a_publish() -> None:
    async def three() -> None:
        await bench.turn("a", 1000, session="s")
        await bench.turn("b", 1150, session="s")
        await bench.publish(1, 0.0)
        await bench.turn("c", 1300, session="s")

    bench = Bench()
    bench.run((three,))
    assert [bench.done[name].cached_tokens for name in "abc"] == [0, 1100, 0]
    assert bench.ended["b"] - bench.ended["a"] == pytest.approx(50 * PREFILL + decode_s(100, 1150))
    assert bench.ended["c"] - bench.ended["b"] == pytest.approx(MODEL.publish_s + 1300 * PREFILL + decode_s(100, 1300))
    assert bench.engine.prefilled_tokens == 1000 + 50 + 1300


def test_tokens_after_a_publish_are_the_new_versions() -> None:
    at = 10 * PREFILL + decode_s(30, 10) + T0 / 2

    async def publish() -> None:
        await bench.publish(1, at)

    bench = Bench()
    bench.run((bench.turn, "a", 10), (publish,))
    spans = [(span.version, span.start, span.end) for span in bench.done["a"].version_spans]
    assert spans == [(0, 0, 31), (1, 31, 100)]
    assert bench.ended["a"] == pytest.approx(10 * PREFILL + decode_s(100, 10) + MODEL.publish_s)


def test_what_does_not_fit_the_cache_waits_and_idle_prefixes_give_way() -> None:
    engine = replace(MODEL.engine, memory_frac=(MODEL.network.weight_bytes + 1500 * 196_608) / 80e9)
    model = replace(MODEL, engine=engine)
    assert model.cache_tokens in (1499, 1500)

    async def other() -> None:
        await bench.turn("b", 1000, at=1e-6)

    async def again() -> None:
        await bench.turn("c", 1150, session="a", at=100.0)

    bench = Bench(model)
    bench.run((bench.turn, "a", 1000), (other,), (again,))
    alone = 1000 * PREFILL + decode_s(100, 1000)
    assert bench.ended["a"] == pytest.approx(alone)
    assert bench.ended["b"] == pytest.approx(2 * alone)
    assert bench.done["c"].cached_tokens == 0  # b needed its room


def test_the_largest_number_of_running_turns_is_kept() -> None:
    model = replace(MODEL, engine=replace(MODEL.engine, max_running=1))
    bench = Bench(model)
    bench.run((bench.turn, "a", 100), (bench.turn, "b", 100))
    alone = 100 * PREFILL + decode_s(100, 100)
    assert sorted(bench.ended.values()) == pytest.approx([alone, 2 * alone])


@given(
    prompts=st.lists(st.integers(1, 4000), min_size=1, max_size=12),
    gaps=st.lists(st.floats(0.0, 5.0), min_size=12, max_size=12),
    rng=st.random_module(),
)
def test_no_engine_is_faster_than_its_bound(prompts: list[int], gaps: list[float], rng: object) -> None:
    bench = Bench()

    async def turn(number: int, num_prompt: int) -> None:
        await bench.turn(str(number), num_prompt, at=gaps[number])

    bench.run(*[(turn, number, num_prompt) for number, num_prompt in enumerate(prompts)])
    sampled = 100 * len(prompts)
    context = sum(100 * prompt + 100 * 99 // 2 for prompt in prompts)
    iterations = max(sampled / MODEL.engine.max_running, context / MODEL.cache_tokens, 100)
    least = sum(prompts) * PREFILL + iterations * T0 + context * KAPPA
    assert bench.engine.busy_s >= least * (1 - 1e-9)
    assert bench.engine.busy_s <= max(bench.ended.values()) + 1e-9
    assert bench.engine.sampled_tokens == sampled
