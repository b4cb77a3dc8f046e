"""An episode's session as both kinds of play use it: over token ids in training, over messages in evaluation.

Here every call of the environment gets its deadline, tool calls their budget, rewards their check, and every failure
becomes the one end that is its.
"""

import math
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

import trio

from agentrl_jax.controller.call_budget import answering_all, within_budget
from agentrl_jax.controller.episode_config import EpisodeConfig
from agentrl_jax.controller.sessions import Session
from agentrl_jax.controller.telemetry import CallName
from agentrl_jax.env import Action, Message, StepResult
from agentrl_jax.errors import EngineError, EnvError, EnvTimeout
from agentrl_jax.redaction import without_passwords
from agentrl_jax.types import EpisodeEnd, Task

T = TypeVar("T")
Ended = tuple[EpisodeEnd, str]
"""Why an episode ended, and what there is to say about it."""
OnCall = Callable[[CallName, float, float], None]
"""Told of each call, failed or not: what it was, when it began and when it ended, on the episode's clock in s."""


class LiveSession:
    """One session with its deadlines and budgets.

    env_reward: the sum of the rewards so far, None before the first answer. env_s: seconds spent in the environment.
    calls_left: tool calls that the episode may still have carried out; infinity without a bound.
    """

    def __init__(
        self,
        session: Session,
        task: Task,
        config: EpisodeConfig,
        clock: Callable[[], float],
        on_call: OnCall | None = None,
    ) -> None:
        self._session, self._task, self._config = session, task, config
        self._clock, self._on_call = clock, on_call
        self.env_reward: float | None = None
        self.env_s = 0.0
        self.calls_left = bound(config.max_calls)

    async def play(self, take_turns: Callable[[tuple[Message, ...]], Awaitable[Ended]]) -> Ended:
        """Begin the session and let `take_turns` go on from its first messages.

        What is said of the end goes into files (ledger, episodes, spans), and so without passwords.
        """
        end, said = await self._play(take_turns)
        return end, without_passwords(said)

    async def _play(self, take_turns: Callable[[tuple[Message, ...]], Awaitable[Ended]]) -> Ended:
        """The only place where a failure becomes an end."""
        try:
            await self._reserve()
            messages = await self._call(self._session.start, self._config.reset_deadline_s, "reset")
            with trio.move_on_after(self._config.wall_budget_s):
                return await take_turns(messages)
        except EnvTimeout as error:
            return EpisodeEnd.ENV_TIMEOUT, str(error)
        except EnvError as error:
            return EpisodeEnd.ENV_ERROR, str(error)
        except EngineError as error:
            return EpisodeEnd.ENGINE_ERROR, str(error)
        return EpisodeEnd.WALL_TIMEOUT, f"took longer than its {self._config.wall_budget_s} s"

    async def interact(self, asked: Action) -> StepResult:
        """The environment's answer to one turn, with a notice for each call beyond the budgets.

        Raises EnvError for an answer that is none, EnvTimeout for one that took too long.
        """
        action = within_budget(asked, min(self.calls_left, bound(self._config.max_calls_per_turn)))
        self.calls_left -= len(action.calls)
        result = await self._call(lambda: self._session.interact(action), self._config.env_deadline_s, "step")
        self.env_reward = self._checked_reward(result)
        return answering_all(result, num_executed=len(action.calls), num_calls=len(asked.calls))

    async def close(self, others: Iterable[Callable[[], Awaitable[None]]]) -> list[str]:
        """Release the session, then `others`, even while being cancelled.

        Returns what went wrong, which changes no end.
        """
        problems = []
        for release in [self._session.close, *others]:
            with trio.move_on_after(self._config.close_deadline_s, shield=True) as scope:
                try:
                    await release()
                except (EnvError, EngineError) as error:
                    problems.append(f"closing: {without_passwords(str(error))}")
            if scope.cancelled_caught:
                problems.append(f"closing took longer than {self._config.close_deadline_s} s")
        return problems

    async def _reserve(self) -> None:
        with trio.move_on_after(self._config.queue_deadline_s):
            return await self._session.reserve()
        raise EnvError(f"{self._task.key}: no env worker had a place for it within {self._config.queue_deadline_s} s")

    async def _call(self, call: Callable[[], Awaitable[T]], deadline_s: float, what: CallName) -> T:
        begun = self._clock()
        try:
            with trio.move_on_after(deadline_s):
                return await call()
        finally:
            ended = self._clock()
            self.env_s += ended - begun
            if self._on_call is not None:
                self._on_call(what, begun, ended)
        raise EnvTimeout(f"{self._task.key}: {what} took longer than its deadline of {deadline_s} s")

    def _checked_reward(self, result: StepResult) -> float:
        """The sum of the rewards so far. Raises EnvError for an answer that is none."""
        total = (self.env_reward or 0.0) + result.reward
        if not (math.isfinite(result.reward) and math.isfinite(total)):
            raise EnvError(f"{self._task.key}: rewards and their sum must be finite, got {result.reward} and {total}")
        if result.end is None and not result.messages:
            raise EnvError(f"{self._task.key}: a step that does not end the episode must answer, got no messages")
        return total


def bound(limit: int | None) -> float:
    """A bound of a config: infinity where there is none."""
    return math.inf if limit is None else limit
