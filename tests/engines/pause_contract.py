"""What every engine that can be paused owes besides: mix it into a subclass of `EngineContract`."""

from dataclasses import replace
from functools import partial
from typing import Any, Protocol

import trio

from agentrl_jax.engines.protocol import Engine
from agentrl_jax.types import Completion, SamplingParams
from tests.engines.contract import PARAMS, PROMPT, same


class PausableEngine(Engine, Protocol):
    async def pause(self) -> None: ...

    async def resume(self) -> None: ...


class PauseContract:
    repeatable: SamplingParams

    def weights(self, version: int) -> Any:
        raise NotImplementedError

    async def test_a_paused_engine_samples_nothing_and_takes_new_weights(self, engine: PausableEngine) -> None:
        completions: list[Completion] = []

        async def ask(session: str) -> None:
            completions.append(await engine.generate(PROMPT, self.repeatable, session=session))

        await engine.pause()
        await engine.pause()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask, "s")
            nursery.start_soon(ask, "t")
            await trio.testing.wait_all_tasks_blocked()
            await engine.publish(self.weights(2), 2)
            assert completions == []
            await engine.resume()
        assert [set(completion.versions) for completion in completions] == [{2}, {2}]
        assert same(*completions)
        await engine.resume()
        assert len((await engine.generate(PROMPT, PARAMS, session="u")).ids) >= 1

    async def test_a_turn_can_be_given_up_in_a_pause(self, engine: PausableEngine) -> None:
        await engine.pause()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(engine.generate, PROMPT, PARAMS, session="s"))
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
        assert nursery.cancel_scope.cancelled_caught
        await engine.resume()
        assert len((await engine.generate(PROMPT, PARAMS, session="s")).ids) >= 1
        assert engine.statistics().num_aborted == 1
        assert engine.statistics().running == 0


class SpanContract(PauseContract):
    """Of engines whose turns can be met in the middle without a clock: a real server has to be slowed for that."""

    async def generate_watched(
        self, engine: PausableEngine, params: SamplingParams, has_begun: trio.Event
    ) -> Completion:
        """A turn that says when it has begun; engines that cannot be watched say so at any time."""
        watch = {"watch": lambda sampled: has_begun.set()}
        return await engine.generate(PROMPT, params, session="s", **watch)

    async def test_a_publish_within_a_turn_leaves_a_span_of_each_version(self, engine: PausableEngine) -> None:
        completions: list[Completion] = []

        async def ask(params: SamplingParams, has_begun: trio.Event) -> None:
            completions.append(await self.generate_watched(engine, params, has_begun))

        for attempt in range(60):  # a turn may be over, or not have begun, when the pause comes
            has_begun = trio.Event()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(ask, replace(self.repeatable, max_new_tokens=30, seed=attempt), has_begun)
                await has_begun.wait()
                await engine.pause()
                await engine.publish(self.weights(attempt + 1), attempt + 1)
                await engine.resume()
            completion = completions.pop()
            if len(completion.version_spans) > 1:
                break
        old, new = completion.version_spans
        assert (old.version, new.version) == (attempt, attempt + 1)
        assert 0 == old.start < old.end == new.start < new.end == len(completion.ids)
        assert completion.loss_mask.all()
