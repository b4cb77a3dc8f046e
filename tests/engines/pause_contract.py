"""What every engine that can be paused owes besides: mix it into a subclass of `EngineContract`."""

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
            await trio.testing.wait_all_tasks_blocked(0.05)
            assert completions == []
            await engine.publish(self.weights(2), 2)
            await engine.resume()
        assert [set(completion.versions) for completion in completions] == [{2}, {2}]
        assert same(*completions)
        await engine.resume()
        assert len((await engine.generate(PROMPT, PARAMS, session="u")).ids) >= 1

    async def test_a_turn_can_be_given_up_in_a_pause(self, engine: PausableEngine) -> None:
        await engine.pause()
        with trio.move_on_after(0.05) as scope:
            await engine.generate(PROMPT, PARAMS, session="s")
        assert scope.cancelled_caught
        await engine.resume()
        assert len((await engine.generate(PROMPT, PARAMS, session="s")).ids) >= 1
        assert engine.statistics().num_aborted == 1
        assert engine.statistics().running == 0
