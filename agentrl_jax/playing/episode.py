"""One evaluated episode at message level, from its first message to its end. No jax.

The rules are those of `controller/episode.py`, which plays for training with token ids: the same ends for the same
reasons, the same budgets and notices, and with one policy the same ids. Every wait has a deadline, so that no episode
can hang an evaluation.
"""

import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

import trio

from agentrl_jax.controller.call_budget import answering_all, within_budget
from agentrl_jax.controller.episode import EpisodeConfig
from agentrl_jax.controller.sessions import Session, SessionFactory
from agentrl_jax.env import Message, StepResult, Tool
from agentrl_jax.errors import EngineError, EnvError, EnvTimeout
from agentrl_jax.playing.mixtures import Mixture
from agentrl_jax.playing.policies import PlayedTurn, PlayingPolicy, Seat, TurnSettings
from agentrl_jax.playing.records import EpisodeRecord, TurnRecord
from agentrl_jax.seeding import derive_seed
from agentrl_jax.types import EpisodeEnd, Task

T = TypeVar("T")
_NO_BOUND = 1 << 60


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaySetup:
    """What all episodes of one env share. policies: by name. clock: seconds, only measures."""

    sessions: SessionFactory
    tools_of: Callable[[Task], tuple[Tool, ...]]
    policies: dict[str, PlayingPolicy]
    config: EpisodeConfig
    seed: int
    clock: Callable[[], float] = trio.current_time


async def play_episode(mixture: Mixture, task: Task, sample: int, setup: PlaySetup) -> EpisodeRecord:
    """Play one episode and return its record, whatever the env or the policies did.

    A cancellation propagates, as does every exception that is neither an EnvError nor an EngineError. The session and
    the policies' seats are always left, within `close_deadline_s` each.
    """
    return await _Episode(mixture, task, sample, setup).run()


@dataclass
class _Episode:
    mixture: Mixture
    task: Task
    sample: int
    setup: PlaySetup
    messages: list[Message] = field(default_factory=list)
    turns: list[TurnRecord] = field(default_factory=list)
    seats: dict[str, Seat] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    env_reward: float | None = None
    env_s: float = 0.0

    def __post_init__(self) -> None:
        self.config = self.setup.config
        self.tools = self.setup.tools_of(self.task)
        self.calls_left = self.config.max_calls or _NO_BOUND
        self.sampled_tokens_left = self.config.max_sampled_tokens or _NO_BOUND

    async def run(self) -> EpisodeRecord:
        begun_at, begun = time.time(), self.setup.clock()
        end, error = EpisodeEnd.CANCELLED, ""
        session = self.setup.sessions(self.task)
        try:
            end, error = await self._play(session)
            wall_s = self.setup.clock() - begun
        finally:
            error = "; ".join(filter(None, [error, *await self._close(session)]))
        return EpisodeRecord(
            mixture=self.mixture.name,
            task=self.task,
            sample=self.sample,
            end=end,
            reward=self.config.reward(end, self.env_reward),
            env_reward=self.env_reward,
            turns=tuple(self.turns),
            messages=tuple(self.messages),
            metrics=self.metrics,
            begun=begun_at,
            wall_s=wall_s,
            env_s=self.env_s,
            error=error,
        )

    async def _play(self, session: Session) -> tuple[EpisodeEnd, str]:
        """The only place where a failure becomes an end."""
        try:
            await self._reserve(session)
            self.messages += await self._call_env(session.start, self.config.reset_deadline_s, "reset")
            with trio.move_on_after(self.config.wall_budget_s):
                return await self._take_turns(session)
        except EnvTimeout as error:
            return EpisodeEnd.ENV_TIMEOUT, str(error)
        except EnvError as error:
            return EpisodeEnd.ENV_ERROR, str(error)
        except EngineError as error:
            return EpisodeEnd.ENGINE_ERROR, str(error)
        return EpisodeEnd.WALL_TIMEOUT, f"took longer than its {self.config.wall_budget_s} s"

    async def _take_turns(self, session: Session) -> tuple[EpisodeEnd, str]:
        while True:
            if self.sampled_tokens_left < 1:
                return EpisodeEnd.CONTEXT_LIMIT, f"sampled all its {self.config.max_sampled_tokens} tokens"
            turn, answer = await self._take_turn(session)
            if turn.end is not None:
                return turn.end, ""
            assert answer is not None
            self.messages += answer.messages
            if answer.end is not None:
                return answer.end, ""
            if len(self.turns) >= self.config.max_turns:
                return EpisodeEnd.MAX_TURNS, ""
            if self.calls_left < 1:
                return EpisodeEnd.MAX_TURNS, f"used up its {self.config.max_calls} tool calls"

    async def _take_turn(self, session: Session) -> tuple[PlayedTurn, StepResult | None]:
        number = len(self.turns)
        name = self.mixture.choose(self.setup.seed, self.task, self.sample, number)
        begun = self.setup.clock()
        turn = await self._ask(name, number)
        seconds = self.setup.clock() - begun
        self.sampled_tokens_left -= turn.num_sampled_tokens
        answer, reward = None, 0.0
        try:
            if turn.end is None or turn.num_sampled_tokens:
                self.messages.append(turn.message)
            if turn.end is None:
                answer = await self._interact(session, turn)
                reward = answer.reward
        finally:  # should the env fail, the record still shows what it was asked
            if turn.end is None or turn.num_sampled_tokens:
                self.turns.append(_record(name, turn, reward, seconds))
        return turn, answer

    async def _ask(self, name: str, number: int) -> PlayedTurn:
        task, config = self.task, self.config
        settings = TurnSettings(
            temperature=config.temperature,
            max_new_tokens=min(config.max_new_tokens, self.sampled_tokens_left),
            max_context_tokens=config.max_context_tokens,
            seed=derive_seed(self.setup.seed, "turn", task.key, self.sample, number),
        )
        if name not in self.seats:
            episode = f"{self.mixture.name}/{task.key}/{self.sample}"
            self.seats[name] = self.setup.policies[name].join(task, self.tools, episode)
        with trio.move_on_after(config.engine_deadline_s):
            turn = await self.seats[name].play(self.messages, settings)
            is_clipped = settings.max_new_tokens < config.max_new_tokens
            if turn.end is EpisodeEnd.TURN_TRUNCATED and is_clipped:
                return replace(turn, end=EpisodeEnd.CONTEXT_LIMIT)
            return turn
        raise EngineError(f"{name}: turn {number} took longer than {config.engine_deadline_s} s")

    async def _interact(self, session: Session, turn: PlayedTurn) -> StepResult:
        asked = turn.action
        action = within_budget(asked, min(self.calls_left, self.config.max_calls_per_turn or _NO_BOUND))
        self.calls_left -= len(action.calls)
        result = await self._call_env(lambda: session.interact(action), self.config.env_deadline_s, "step")
        self.env_reward = (self.env_reward or 0.0) + result.reward
        self.metrics |= result.metrics
        if result.end is None and not result.messages:
            raise EnvError(f"{self.task.key}: a step that does not end the episode must answer, got no messages")
        return answering_all(result, num_executed=len(action.calls), num_calls=len(asked.calls))

    async def _reserve(self, session: Session) -> None:
        with trio.move_on_after(self.config.queue_deadline_s):
            return await session.reserve()
        raise EnvError(f"{self.task.key}: no env worker had a place for it within {self.config.queue_deadline_s} s")

    async def _call_env(self, call: Callable[[], Awaitable[T]], deadline_s: float, what: str) -> T:
        begun = self.setup.clock()
        try:
            with trio.move_on_after(deadline_s):
                return await call()
        finally:
            self.env_s += self.setup.clock() - begun
        raise EnvTimeout(f"{self.task.key}: {what} took longer than its deadline of {deadline_s} s")

    async def _close(self, session: Session) -> Sequence[str]:
        """Leave everything even while being cancelled; return what went wrong, which changes no end."""
        problems = []
        for release in [session.close, *(seat.leave for seat in self.seats.values())]:
            with trio.move_on_after(self.config.close_deadline_s, shield=True) as scope:
                try:
                    await release()
                except (EnvError, EngineError) as error:
                    problems.append(f"closing: {error}")
            if scope.cancelled_caught:
                problems.append(f"closing took longer than {self.config.close_deadline_s} s")
        return problems


def _record(policy: str, turn: PlayedTurn, reward: float, seconds: float) -> TurnRecord:
    return TurnRecord(
        policy=policy,
        num_calls=len(turn.action.calls),
        num_call_errors=len(turn.action.errors),
        num_prompt_tokens=turn.num_prompt_tokens,
        num_sampled_tokens=turn.num_sampled_tokens,
        versions=turn.versions,
        reward=reward,
        seconds=seconds,
    )
