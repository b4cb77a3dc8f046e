"""The embedded engine's life: start, storms, publishes, failure and end."""

import threading
from dataclasses import replace
from typing import Any

import jax
import numpy as np
import pytest
import trio

from agentrl_jax.engines.local.config import LocalEngineConfig
from agentrl_jax.engines.local.engine import LocalEngine
from agentrl_jax.engines.local.runner import Runner, compile_programs
from agentrl_jax.engines.local.steps import DecodeStep
from agentrl_jax.engines.protocol import Engine
from agentrl_jax.errors import ConfigError, EngineError
from agentrl_jax.types import Completion, Floats, Ids, Truncation, as_ids
from tests.engines.tiny_engine import CONFIG, MODEL, check_logprobs, open_tiny, params, random_weights

PROMPT = as_ids([3, 1, 4, 1, 5])


def loop_threads() -> list[str]:
    """Threads that are in a device loop; idle ones of trio's cache have another name."""
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("engine ")]


async def test_the_thread_lives_as_long_as_the_block() -> None:
    assert not loop_threads()
    async with open_tiny() as engine:
        typed: Engine = engine
        await typed.generate(PROMPT, params(), session="s")
        assert loop_threads() == ["engine local-0"]
    assert not loop_threads()
    with pytest.raises(EngineError, match="local-0 cannot serve: it was closed"):
        await engine.generate(PROMPT, params(), session="s")
    with pytest.raises(EngineError, match="it was closed"):
        await engine.publish(random_weights(1), 1)


async def test_turns_that_are_unfinished_at_the_end_fail() -> None:
    gate = threading.Event()

    class HeldRunner(Runner):
        def decode(self, step: DecodeStep) -> tuple[Ids, Floats]:
            gate.wait()
            return super().decode(step)

    engine = LocalEngine(HeldRunner(MODEL, CONFIG, random_weights(0), jax.devices()[0]), version=0)
    failures = []

    async def ask(number: int) -> None:
        with pytest.raises(EngineError, match=f"'s{number}': it was closed"):
            await engine.generate(PROMPT, params(), session=f"s{number}")
        failures.append(number)

    async def open_gate() -> None:
        await trio.testing.wait_all_tasks_blocked()
        gate.set()

    async with trio.open_nursery() as clients, trio.open_nursery() as server:
        await server.start(engine.run)
        for number in range(10):
            clients.start_soon(ask, number)
        await trio.testing.wait_all_tasks_blocked()
        clients.start_soon(open_gate)  # runs once the server waits for its thread
        server.cancel_scope.cancel()
    assert len(failures) == 10
    assert not loop_threads()


async def test_many_more_sessions_than_slots_all_get_their_turns() -> None:
    async with open_tiny() as engine:

        async def episode(number: int) -> None:
            prompt = as_ids([number % 19, 2, 3])
            for index in range(3):
                sampling = params(seed=100 * number + index, stop_ids=(1, 2), max_new_tokens=5)
                completion = await engine.generate(prompt, sampling, session=f"s{number}")
                check_logprobs({0: random_weights(0)}, prompt, completion, 1.0)
                prompt = as_ids([*prompt, *completion.ids, 7, 8])
            await engine.end_session(f"s{number}")

        async with trio.open_nursery() as nursery:
            for number in range(40):
                nursery.start_soon(episode, number)
        assert engine.statistics().num_requests == 120
        assert engine.statistics().running == engine.statistics().waiting == 0


async def test_a_storm_of_cancellations_leaves_the_others_untouched() -> None:
    async with open_tiny() as engine:
        expected = await engine.generate(PROMPT, params(max_new_tokens=20), session="calm")
        survivors = []

        async def ask(number: int, scope: trio.CancelScope) -> None:
            with scope:
                completion = await engine.generate(PROMPT, params(max_new_tokens=20), session=f"s{number}")
                survivors.append(completion.ids.tolist() == expected.ids.tolist())

        scopes = [trio.CancelScope() for _ in range(60)]
        async with trio.open_nursery() as nursery:
            for number, scope in enumerate(scopes):
                nursery.start_soon(ask, number, scope)
            await trio.testing.wait_all_tasks_blocked()
            for number, scope in enumerate(scopes):
                if number % 3:
                    scope.cancel()
        await engine.generate(PROMPT, params(), session="after")
        statistics = engine.statistics()
        # A turn may end on the device while its cancellation is under way: neither aborted nor returned.
        assert statistics.num_aborted + len(survivors) <= 60
        assert len(survivors) >= 20
        assert all(survivors)
        assert statistics.running == statistics.waiting == 0


async def test_a_greedy_turn_is_the_same_in_any_company_and_close_to_it_at_other_slot_counts() -> None:
    greedy = params(temperature=0.0, max_new_tokens=20)
    found: dict[int, Completion] = {}
    for num_slots in (1, 4, 6):
        async with open_tiny(config=replace(CONFIG, num_slots=num_slots)) as engine:
            alone = found[num_slots] = await engine.generate(PROMPT, greedy, session="alone")

            async def ask(number: int, engine: LocalEngine = engine, alone: Completion = alone) -> None:
                if number % 3:
                    other = as_ids([*PROMPT, *range(number)])
                    cut = Truncation(top_k=number)
                    await engine.generate(other, params(seed=number, truncation=cut), session=f"s{number}")
                else:
                    again = await engine.generate(PROMPT, greedy, session=f"s{number}")
                    assert again.ids.tolist() == alone.ids.tolist()

            async with trio.open_nursery() as nursery:
                for number in range(12):
                    nursery.start_soon(ask, number)
    for completion in found.values():
        assert completion.ids.tolist() == found[4].ids.tolist()
        np.testing.assert_allclose(completion.logprobs, found[4].logprobs, atol=1e-5)


async def test_a_draw_does_not_depend_on_the_block_that_it_falls_into() -> None:
    found = []
    for num_steps in (1, 5):
        config = replace(CONFIG, num_slots=1, decode_block=num_steps, prefill_shapes=((1, 5),))
        async with open_tiny(config=config) as engine:
            found.append(await engine.generate(PROMPT, params(max_new_tokens=20, seed=3), session="s"))
    singly, in_blocks = found
    assert len(set(singly.ids.tolist())) > 3
    assert singly.ids.tolist() == in_blocks.ids.tolist()
    np.testing.assert_allclose(singly.logprobs, in_blocks.logprobs, atol=1e-5)


async def test_publishing_while_turns_run_never_loses_one() -> None:
    weights = {version: random_weights(version) for version in range(4)}
    async with open_tiny() as engine:

        async def ask(number: int) -> None:
            prompt = as_ids([number, 5, 6])
            completion = await engine.generate(prompt, params(max_new_tokens=30, seed=number), session=f"s{number}")
            assert len(completion.ids) == 30
            check_logprobs(weights, prompt, completion, 1.0)

        async with trio.open_nursery() as nursery:
            for number in range(10):
                nursery.start_soon(ask, number)
            for version in (1, 2, 3):
                await engine.publish(weights[version], version)
        assert engine.statistics().num_publishes == 3


async def test_published_weights_are_copied() -> None:
    mine = random_weights(1)
    async with open_tiny() as engine:
        await engine.publish(mine, 1)
        for leaf in jax.tree.leaves(mine):
            leaf[...] = np.nan
        completion = await engine.generate(PROMPT, params(), session="s")
        check_logprobs({1: random_weights(1)}, PROMPT, completion, 1.0)
        donated = jax.device_put(random_weights(2))
        await engine.publish(donated, 2)
        for leaf in jax.tree.leaves(donated):
            leaf.delete()  # what a learner's donation does
        completion = await engine.generate(PROMPT, params(), session="s")
        check_logprobs({2: random_weights(2)}, PROMPT, completion, 1.0)


@pytest.mark.parametrize(
    ("path", "leaf", "message"),
    [
        (("final_norm", "scale"), np.ones(3, np.float32), "final_norm.scale: expected (16,), got (3,)"),
        (("final_norm", "bias"), np.ones(16, np.float32), "final_norm.bias: expected nothing, got (16,)"),
        (
            ("final_norm", "scale"),
            np.ones(16, np.float64),
            "expected float32, bfloat16, float16, got final_norm.scale: float64",
        ),
    ],
)
async def test_weights_that_do_not_fit_are_refused_and_named(path: tuple[str, str], leaf: Any, message: str) -> None:
    bad = random_weights(1)
    bad[path[0]][path[1]] = leaf
    async with open_tiny() as engine:
        before = await engine.generate(PROMPT, params(), session="s")
        with pytest.raises(EngineError) as refused:
            await engine.publish(bad, 1)
        assert message in str(refused.value)
        after = await engine.generate(PROMPT, params(), session="s")
        assert after.ids.tolist() == before.ids.tolist()
        assert set(after.versions) == {0}
        assert after.cached_tokens == len(PROMPT) - 1  # the cache is still that of the serving weights


async def test_prompts_that_do_not_fit_are_refused() -> None:
    async with open_tiny() as engine:
        with pytest.raises(EngineError, match=r"a prompt needs 1 to 44 ids .* got 45"):
            await engine.generate(as_ids([1] * 45), params(), session="s")
        with pytest.raises(EngineError, match=r"must be in \[0, 19\), got 0 to 19"):
            await engine.generate(as_ids([0, 19]), params(), session="s")
        assert engine.statistics().num_requests == 0


async def test_an_exception_of_the_device_fails_every_turn_and_ends_the_nursery() -> None:
    class BrokenRunner(Runner):
        def decode(self, step: DecodeStep) -> tuple[Ids, Floats]:
            raise RuntimeError("device lost")

    runner = BrokenRunner(MODEL, CONFIG, random_weights(0), jax.devices()[0])
    engine = LocalEngine(runner, version=0)
    failures = []

    async def ask(number: int) -> None:
        with pytest.raises(EngineError, match=r"its device loop raised RuntimeError.*device lost"):
            await engine.generate(PROMPT, params(), session=f"s{number}")
        failures.append(number)

    with pytest.RaisesGroup(pytest.RaisesExc(RuntimeError, match="device lost"), flatten_subgroups=True):
        async with trio.open_nursery() as server:
            await server.start(engine.run)
            with trio.CancelScope(shield=True):
                async with trio.open_nursery() as clients:
                    for number in range(10):
                        clients.start_soon(ask, number)
    assert len(failures) == 10
    assert not loop_threads()


async def test_nothing_is_compiled_after_the_start_and_engines_share_their_programs() -> None:
    async with open_tiny() as first:
        programs = compile_programs(MODEL, CONFIG, jax.devices()[0])
        compiled: list[str] = []

        def listen(event: str, duration: float, **details: str | int) -> None:
            if "compile" in event:
                compiled.append(event)

        jax.monitoring.register_event_duration_secs_listener(listen)
        try:
            async with open_tiny(name="second", weights=random_weights(1)) as second:
                for engine in (first, second):
                    await engine.generate(as_ids([1] * 20), params(), session="s")
                    await engine.generate(as_ids([1] * 25), params(temperature=0.0), session="s")
                    await engine.publish(random_weights(2), 1)
                    await engine.generate(PROMPT, params(), session="s")
                    await engine.generate(as_ids([1] * 20), params(), session="original")
                    await engine.generate(as_ids([1] * 20), params(), session="copy")
                    assert engine.statistics().shared_tokens > 0
        finally:
            jax.monitoring.unregister_event_duration_listener(listen)
        assert compiled == []
        assert compile_programs(MODEL, CONFIG, jax.devices()[0]) is programs


def test_every_program_is_told_of_when_it_is_compiled_and_only_then() -> None:
    lines: list[str] = []
    config = replace(CONFIG, num_slots=2, prefill_shapes=((1, 4),))
    for _ in range(2):
        compile_programs(MODEL, config, jax.devices()[0], lines.append)
    assert [line.split(" compiled in ")[0] for line in lines] == [
        "engine: prefill of 1 x 4 tokens",
        "engine: decode",
        "engine: clear",
        "engine: copy",
    ]
    assert lines[-1].endswith("s (4 of 4 programs)")


@pytest.mark.parametrize(("platform", "dtype"), [("cpu", "float32"), ("gpu", "bfloat16"), ("tpu", "bfloat16")])
def test_the_dtype_follows_from_the_platform_unless_it_is_named(platform: str, dtype: str) -> None:
    assert CONFIG.on_platform(platform).dtype == dtype
    assert replace(CONFIG, dtype="bfloat16").on_platform(platform).dtype == "bfloat16"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_slots": 0}, "num_slots must be >= 1, got 0"),
        ({"cache_tokens": 1}, "cache_tokens must be >= 2"),
        ({"decode_block": 46}, r"decode_block must be in \[1, cache_tokens=45\], got 46"),
        ({"prefill_shapes": ()}, "at least one"),
        ({"prefill_shapes": ((1, 46),)}, r"got \(1, 46\)"),
    ],
)
def test_sizes_that_contradict_each_other_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        replace(CONFIG, **changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"banned_ids": (19,)}, "banned_ids"), ({"banned_ids": tuple(range(19))}, "banned_ids")],
)
async def test_a_configuration_that_the_model_cannot_serve_is_refused(changes: dict[str, Any], message: str) -> None:
    config: LocalEngineConfig = replace(CONFIG, **changes)
    with pytest.raises(ConfigError, match=message):
        async with open_tiny(config=config):
            raise AssertionError("it started")
    with pytest.raises(ConfigError, match="max_positions, got 45 > 44"):
        async with open_tiny(model=replace(MODEL, max_positions=44)):
            raise AssertionError("it started")
