"""The fake engine keeps the engine contract; its faults are visible and counted."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock

from agentrl_jax.engines.protocol import Engine
from agentrl_jax.engines.sglang_schema import NO_STOP
from agentrl_jax.errors import EngineError
from agentrl_jax.testing.engine import FakeEngine, constant_latency
from agentrl_jax.testing.virtual import run_virtual
from agentrl_jax.types import Completion, SamplingParams, VersionSpan, as_ids

PROMPT = as_ids([11, 12, 13])
STOP = 0


def sampling(seed: int = 1, *, temperature: float = 1.0, max_new_tokens: int = 12) -> SamplingParams:
    return SamplingParams(temperature=temperature, max_new_tokens=max_new_tokens, seed=seed, stop_ids=(STOP,))


async def complete(engine: Engine, params: SamplingParams, session: str = "s") -> Completion:
    return await engine.generate(PROMPT, params, session=session)


def facts(completion: Completion) -> tuple[Any, ...]:
    return (completion.ids.tolist(), completion.logprobs.tolist(), completion.finish_reason, completion.version_spans)


async def test_it_is_an_engine(autojump_clock: MockClock) -> None:
    engine: Engine = FakeEngine(name="e", pool="lagging", version=4)
    completion = await complete(engine, sampling())
    assert (completion.engine, completion.pool, engine.version) == ("e", "lagging", 4)
    assert completion.version_spans == (VersionSpan(version=4, start=0, end=len(completion.ids)),)


@given(seeds=st.lists(st.integers(0, 99), min_size=1, max_size=8), schedule=st.random_module())
def test_a_completion_depends_on_its_request_alone(seeds: list[int], schedule: Any) -> None:
    async def alone() -> list[Completion]:
        return [await complete(FakeEngine(), sampling(seed)) for seed in seeds]

    async def together() -> list[Completion]:
        engine = FakeEngine(token_latency=lambda session, params: params.seed % 3, max_running=3)
        results: dict[int, Completion] = {}

        async def one(position: int) -> None:
            results[position] = await complete(engine, sampling(seeds[position]), f"s{position}")

        async with trio.open_nursery() as nursery:
            for position in range(len(seeds)):
                nursery.start_soon(one, position)
        return [results[position] for position in range(len(seeds))]

    expected = [facts(completion) for completion in run_virtual(alone)]
    assert [facts(completion) for completion in run_virtual(together)] == expected


async def test_ids_follow_the_distribution_that_the_logprobs_state(autojump_clock: MockClock) -> None:
    engine = FakeEngine(vocabulary=(2, 3))
    counts: dict[int, int] = {}
    stated: dict[int, float] = {}
    for seed in range(2000):
        completion = await complete(engine, sampling(seed, temperature=0.7, max_new_tokens=1))
        token = int(completion.ids[0])
        counts[token] = counts.get(token, 0) + 1
        stated[token] = float(np.exp(completion.logprobs[0]))
    assert sum(stated.values()) == pytest.approx(1.0, abs=1e-6)
    for token, probability in stated.items():
        spread = math.sqrt(probability * (1 - probability) / 2000)
        assert abs(counts[token] / 2000 - probability) < 4 * spread


async def test_greedy_ignores_the_seed_and_states_temperature_one(autojump_clock: MockClock) -> None:
    engine = FakeEngine()
    greedy = [await complete(engine, sampling(seed, temperature=0.0)) for seed in (1, 2)]
    assert facts(greedy[0]) == facts(greedy[1])
    at_one = [await complete(engine, sampling(seed, max_new_tokens=1)) for seed in range(200)]
    first = int(greedy[0].ids[0])
    assert greedy[0].logprobs[0] == max(c.logprobs[0] for c in at_one)
    assert {float(c.logprobs[0]) for c in at_one if c.ids[0] == first} == {float(greedy[0].logprobs[0])}


async def test_a_turn_ends_with_a_stop_id_or_at_its_limit(autojump_clock: MockClock) -> None:
    engine = FakeEngine()
    completions = [await complete(engine, sampling(seed)) for seed in range(50)]
    assert {completion.finish_reason for completion in completions} == {"stop", "length"}
    for completion in completions:
        assert STOP not in completion.ids[:-1]
        assert (completion.ids[-1] == STOP) == (completion.finish_reason == "stop")
        assert completion.finish_reason == "stop" or len(completion.ids) == 12


async def test_a_stop_id_that_stands_for_none_is_never_sampled(autojump_clock: MockClock) -> None:
    engine = FakeEngine()
    for seed in range(20):
        completion = await complete(engine, replace(sampling(seed), stop_ids=(NO_STOP,)))
        assert set(completion.ids) <= set(engine.vocabulary)
        assert (len(completion.ids), completion.finish_reason) == (12, "length")


@pytest.mark.parametrize(
    ("says", "limit", "ids", "finish"),
    [
        ([5, 6], 3, [5, 6, STOP], "stop"),
        ([5, 6], 2, [5, 6], "length"),
        ([5, STOP, 6], 9, [5, STOP], "stop"),
        ([], 1, [STOP], "stop"),
    ],
)
async def test_scripts(says: list[int], limit: int, ids: list[int], finish: str, autojump_clock: MockClock) -> None:
    engine = FakeEngine(script=lambda prompt, params: says)
    completion = await complete(engine, sampling(max_new_tokens=limit))
    assert (completion.ids.tolist(), completion.finish_reason) == (ids, finish)


async def test_a_publish_takes_effect_between_two_tokens(autojump_clock: MockClock) -> None:
    engine = FakeEngine(script=lambda prompt, params: [5, 6, 7], token_latency=constant_latency(1.0), publish_s=2.0)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(engine.publish, None, 3)
        completion = await complete(engine, sampling())
    assert completion.versions.tolist() in ([0, 0, 3, 3], [0, 3, 3, 3])  # the second token falls on the swap
    assert trio.current_time() == 4.0  # nothing was paused
    assert engine.statistics().num_publishes == 1


async def test_refused_publishes_keep_the_old_weights(autojump_clock: MockClock) -> None:
    engine = FakeEngine(version=2, accepts=lambda weights: weights == "good")
    with pytest.raises(EngineError, match="do not fit"):
        await engine.publish("bad", 3)
    for version in (1, 2):
        with pytest.raises(EngineError, match="must increase"):
            await engine.publish("good", version)
    assert (engine.version, engine.statistics().num_publishes) == (2, 0)
    await engine.publish("good", 5)
    assert engine.version == 5


async def test_death_fails_running_and_later_turns_until_revival(autojump_clock: MockClock) -> None:
    engine = FakeEngine(token_latency=constant_latency(math.inf))
    async with trio.open_nursery() as nursery:

        async def one() -> None:
            with pytest.raises(EngineError, match="died while"):
                await complete(engine, sampling())

        nursery.start_soon(one)
        await trio.sleep(5.0)
        engine.die()
    assert trio.current_time() == 5.0
    with pytest.raises(EngineError, match="is dead"):
        await complete(engine, sampling())
    with pytest.raises(EngineError, match="is dead"):
        await engine.publish(None, 1)
    engine.revive()
    engine.token_latency = constant_latency(0.0)
    await complete(engine, sampling())
    statistics = engine.statistics()
    assert (statistics.num_requests, statistics.num_aborted, statistics.running) == (3, 0, 0)


async def test_logprobs_that_are_not_finite_are_masked_and_counted(autojump_clock: MockClock) -> None:
    engine = FakeEngine(script=lambda prompt, params: [5, 6], nonfinite_positions={1})
    completion = await complete(engine, sampling())
    assert completion.loss_mask.tolist() == [True, False, True]
    assert completion.logprobs[1] == 0.0
    assert engine.statistics().num_nonfinite_logprobs == 1


async def test_cancelled_turns_free_their_slot_and_are_counted(autojump_clock: MockClock) -> None:
    engine = FakeEngine(token_latency=constant_latency(1.0), max_running=1, script=lambda prompt, params: [5] * 9)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(complete, engine, sampling(), "a")
        await trio.sleep(0.5)
        nursery.start_soon(complete, engine, sampling(), "b")
        await trio.sleep(0.5)
        assert (engine.statistics().running, engine.statistics().waiting) == (1, 1)
        nursery.cancel_scope.cancel()
    statistics = engine.statistics()
    assert (statistics.running, statistics.waiting, statistics.num_aborted) == (0, 0, 2)


async def test_the_prefix_is_kept_by_session_and_version(autojump_clock: MockClock) -> None:
    engine = FakeEngine(script=lambda prompt, params: [5])
    first = await complete(engine, sampling(), "a")
    longer = np.concatenate([PROMPT, first.ids, as_ids([8, 9])])
    cached = [(await engine.generate(longer, sampling(), session=s)).cached_tokens for s in ("a", "b")]
    assert cached == [len(PROMPT) + 2, 0]
    await engine.publish(None, 1)
    assert (await engine.generate(longer, sampling(), session="a")).cached_tokens == 0
    assert (await engine.generate(longer, sampling(), session="a")).cached_tokens == len(longer) - 1
    for session in ("a", "b", "unknown"):
        await engine.end_session(session)
    assert engine.sessions == frozenset()


async def test_an_empty_prompt_is_refused(autojump_clock: MockClock) -> None:
    with pytest.raises(EngineError, match="at least one id"):
        await FakeEngine().generate(as_ids([]), sampling(), session="s")
