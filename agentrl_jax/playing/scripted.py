"""An env's scripted expert as a policy: what can be reached at all, and a test of the envs themselves. No jax."""

from collections.abc import Callable, Sequence

import trio

from agentrl_jax.env import Action, Message, Tool
from agentrl_jax.errors import EngineError
from agentrl_jax.playing.policies import PlayedTurn, Seat, TurnSettings
from agentrl_jax.types import Task

Demonstrate = Callable[[Task], tuple[Message, ...]]
"""A whole episode of the expert; called in a thread. Raises ConfigError if there is no expert, EnvError if it fails."""


class ScriptedPolicy:
    """Implements `PlayingPolicy`: the turns of a demonstration, one after the other, whatever the env answers."""

    def __init__(self, demonstrate: Demonstrate, name: str = "expert") -> None:
        self._demonstrate, self._name = demonstrate, name
        self._threads = trio.CapacityLimiter(1)

    @property
    def name(self) -> str:
        return self._name

    def join(self, task: Task, tools: Sequence[Tool], episode: str) -> Seat:
        """See `PlayingPolicy.join`."""
        return _ScriptedSeat(self._demonstrate, task, self._threads)


class _ScriptedSeat:
    def __init__(self, demonstrate: Demonstrate, task: Task, threads: trio.CapacityLimiter) -> None:
        self._demonstrate, self._task, self._threads = demonstrate, task, threads
        self._turns: list[Message] | None = None

    async def play(self, messages: Sequence[Message], settings: TurnSettings) -> PlayedTurn:
        if self._turns is None:
            shown = await trio.to_thread.run_sync(
                self._demonstrate, self._task, limiter=self._threads, abandon_on_cancel=True
            )
            self._turns = [message for message in shown if message.role == "assistant"]
        number = sum(message.role == "assistant" for message in messages)
        if number >= len(self._turns):
            raise EngineError(f"the expert of {self._task.env} has no turn {number}: the episode should be over")
        message = self._turns[number]
        action = Action(content=message.content, calls=message.tool_calls)
        return PlayedTurn(action=action, message=message)

    async def leave(self) -> None:
        await trio.lowlevel.checkpoint()
