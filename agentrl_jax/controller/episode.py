"""One session from its first message to its end, as an immutable trajectory. Every `EpisodeEnd` is decided here.

render → choose engine → generate → parse → interact → append. Tokens are facts: the next prompt is all earlier ids
plus the environment's reply, so nothing that was sampled is ever rendered or tokenised again. A renderer that rewrites
history says when: a new segment begins with that prompt.
"""

import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Protocol, TypeVar

import numpy as np
import trio

from agentrl_jax.cli import Derived
from agentrl_jax.controller.call_budget import answering_all, within_budget
from agentrl_jax.controller.cancellation import CancelSwitch
from agentrl_jax.controller.sessions import Session, SessionFactory
from agentrl_jax.controller.telemetry import CallName, CallTime, ObserveEpisode
from agentrl_jax.engines.protocol import Engine
from agentrl_jax.env import Message, StepResult, Tool
from agentrl_jax.errors import ConfigError, EngineError, EnvError, EnvTimeout
from agentrl_jax.rendering.protocol import Context, Renderer
from agentrl_jax.seeding import derive_seed
from agentrl_jax.types import Completion, EpisodeEnd, Ids, SamplingParams, Segment, Task, Trajectory, Turn, as_ids

T = TypeVar("T")

_COUNTS = (
    "max_turns",
    "max_new_tokens",
    "max_context_tokens",
    "max_sampled_tokens",
    "max_calls_per_turn",
    "max_calls",
)
_TIMES = (
    "wall_budget_s",
    "queue_deadline_s",
    "reset_deadline_s",
    "env_deadline_s",
    "engine_deadline_s",
    "close_deadline_s",
)


class EngineChooser(Protocol):
    """Names the engine of one turn; called anew for each. Raises EngineError if none can serve it."""

    def __call__(self, group_id: int, member: int, turn: int) -> Engine: ...


def single_engine(engine: Engine) -> EngineChooser:
    """Every turn to the same engine."""

    def choose(group_id: int, member: int, turn: int) -> Engine:
        return engine

    return choose


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeConfig:
    """The bounds of an episode, and what breaking them costs."""

    max_turns: Derived[int]
    """Turns of an episode at the most"""
    max_new_tokens: int
    """Longest turn, clipped to what max_context_tokens and max_sampled_tokens leave. A turn that is cut short ends the
    episode: as turn_truncated, or as context_limit if it had been clipped"""
    max_context_tokens: Derived[int]
    """Longest episode: prompt, replies and samples"""
    max_sampled_tokens: int | None = None
    """Samples alone, over all turns of an episode (default: as many as fit its context)"""
    max_calls_per_turn: int | None = None
    """Tool calls of a turn that are carried out; others are answered by a notice (default: all)"""
    max_calls: int | None = None
    """The same for an episode; one that has used them up and goes on all the same ends as max_turns (default: all)"""
    temperature: Derived[float] = 0.8
    """Sampling temperature"""
    penalty: float = -0.2
    """Reward of every end that the policy caused, but `completed`"""
    penalties: Mapping[EpisodeEnd, float] = field(default_factory=dict)
    """The same for single reasons: REASON VALUE ..."""
    wall_budget_s: float = 1800.0
    """The policy's time, seconds from the first prompt on; a slow reset is not its fault"""
    queue_deadline_s: Derived[float] = 600.0
    """How long an episode waits for a place on an env worker before its start"""
    reset_deadline_s: float = 120.0
    """How long a reset may take before it is the environment's fault"""
    env_deadline_s: float = 120.0
    """How long one step may take before it is the environment's fault"""
    engine_deadline_s: float = 600.0
    """How long one turn may take before it is the engine's fault"""
    close_deadline_s: float = 10.0
    """Bounds each release of a session, and so every shutdown"""

    def __post_init__(self) -> None:
        for name in _COUNTS:
            bound = getattr(self, name)
            if bound is not None and bound < 1:
                raise ConfigError(f"{name} must be at least 1, got {bound}")
        for name in _TIMES:
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name} must be positive, got {getattr(self, name)}")
        if not 0 <= self.temperature < float("inf"):
            raise ConfigError(f"temperature must be finite and >= 0, got {self.temperature}")
        for end, penalty in {**self.penalties, EpisodeEnd.MAX_TURNS: self.penalty}.items():
            if end.is_infrastructure or end is EpisodeEnd.COMPLETED:
                raise ConfigError(f"{end.value} cannot have a penalty: the policy did not do anything wrong")
            if not math.isfinite(penalty):
                raise ConfigError(f"the penalty of {end.value} must be finite, got {penalty}")

    def reward(self, end: EpisodeEnd, env_reward: float | None) -> float | None:
        """The reward of an episode that ended so: the env's, the reason's penalty, or none."""
        if end.is_infrastructure:
            return None
        if end is EpisodeEnd.COMPLETED:
            return env_reward
        return self.penalties.get(end, self.penalty)


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeSetup:
    """What all episodes of one environment share. `clock` only measures; deadlines are trio's.

    tools_of: the tools of a task; None: all have `tools`.
    observe: told of each episode that has ended, and of its calls.
    render_threads: where slow rendering runs; None: on the event loop, whose virtual clock would not wait for a thread.
    """

    sessions: SessionFactory
    tools: tuple[Tool, ...]
    renderer: Renderer
    choose_engine: EngineChooser
    config: EpisodeConfig
    run_seed: int
    clock: Callable[[], float] = trio.current_time
    tools_of: Callable[[Task], tuple[Tool, ...]] | None = None
    observe: ObserveEpisode | None = None
    render_threads: trio.CapacityLimiter | None = None


async def run_episode(
    task: Task, group_id: int, member: int, *, setup: EpisodeSetup, switch: CancelSwitch | None = None
) -> Trajectory:
    """Play one episode and return its record, whatever the environment, the engine or the policy did.

    If `switch` trips, the record ends as CANCELLED; a cancellation from further outside propagates, as does every
    exception that is neither an EnvError nor an EngineError. The session and the engines' sessions are always
    closed, within `close_deadline_s` each.
    """
    return await _Episode(task, group_id, member, setup).run(switch or CancelSwitch())


class _Episode:
    def __init__(self, task: Task, group_id: int, member: int, setup: EpisodeSetup) -> None:
        self.task, self.group_id, self.member = task, group_id, member
        self.setup, self.config = setup, setup.config
        self.stream = setup.renderer.stream(setup.tools if setup.tools_of is None else setup.tools_of(task))
        self.turns: list[Turn] = []
        self.first_turns: list[int] = []  # of each segment
        self.ids: Ids = as_ids(())  # of the last segment
        self.engines: dict[str, Engine] = {}
        self.env_reward: float | None = None
        self.env_s = self.engine_s = 0.0
        self.calls: list[CallTime] = []
        self.sampled_tokens_left = _bound(self.config.max_sampled_tokens)
        self.calls_left = _bound(self.config.max_calls)

    @property
    def episode_id(self) -> str:
        return f"g{self.group_id}-m{self.member}"

    async def run(self, switch: CancelSwitch) -> Trajectory:
        begun = self.setup.clock()
        end, error = EpisodeEnd.CANCELLED, "its group was cancelled"
        session = self.setup.sessions(self.task)
        try:
            with switch.scope():
                end, error = await self._play(session)
            wall_s = self.setup.clock() - begun
        finally:
            error = "; ".join(filter(None, [error, *await self._close(session)]))
        trajectory = Trajectory(
            task=self.task,
            group_id=self.group_id,
            member=self.member,
            end=end,
            reward=self.config.reward(end, self.env_reward),
            env_reward=self.env_reward,
            segments=self._segments(),
            wall_s=wall_s,
            env_s=self.env_s,
            engine_s=self.engine_s,
            error=error,
        )
        if self.setup.observe is not None:
            self.setup.observe(trajectory, self.calls)
        return trajectory

    async def _play(self, session: Session) -> tuple[EpisodeEnd, str]:
        """The only place where a failure becomes an end."""
        try:
            await self._reserve(session)
            messages = await self._call_env(session.start, self.config.reset_deadline_s, "reset")
            with trio.move_on_after(self.config.wall_budget_s):
                return await self._take_turns(session, messages)
        except EnvTimeout as error:
            return EpisodeEnd.ENV_TIMEOUT, str(error)
        except EnvError as error:
            return EpisodeEnd.ENV_ERROR, str(error)
        except EngineError as error:
            return EpisodeEnd.ENGINE_ERROR, str(error)
        return EpisodeEnd.WALL_TIMEOUT, f"took longer than its {self.config.wall_budget_s} s"

    async def _take_turns(self, session: Session, messages: tuple[Message, ...]) -> tuple[EpisodeEnd, str]:
        context = Context(ids=await self._render(messages, self.stream.begin, messages), starts_segment=True)
        while True:
            if context.starts_segment:
                self.ids = as_ids(())
            room = self.config.max_context_tokens - len(self.ids) - len(context.ids)
            if room < 1:
                return EpisodeEnd.CONTEXT_LIMIT, ""
            if self.sampled_tokens_left < 1:
                return EpisodeEnd.CONTEXT_LIMIT, f"sampled all its {self.config.max_sampled_tokens} tokens"
            bound = int(min(room, self.sampled_tokens_left, self.config.max_new_tokens))
            completion = await self._generate(context.ids, bound)
            if completion.finish_reason == "length":
                self._append(Turn(context_ids=context.ids, completion=completion), context)
                is_clipped = bound < self.config.max_new_tokens
                return (EpisodeEnd.CONTEXT_LIMIT if is_clipped else EpisodeEnd.TURN_TRUNCATED), ""
            result = await self._interact(session, context, completion)
            if result.end is not None:
                return result.end, ""
            if len(self.turns) >= self.config.max_turns:
                return EpisodeEnd.MAX_TURNS, ""
            if self.calls_left < 1:
                return EpisodeEnd.MAX_TURNS, f"used up its {self.config.max_calls} tool calls"
            context = await self._render(result.messages, self.stream.follow, completion.ids, result.messages)

    async def _render(self, messages: Sequence[Message], render: Callable[..., T], *args: object) -> T:
        threads = self.setup.render_threads
        if threads is None or not self.stream.is_slow(messages, is_first=not self.turns):
            return render(*args)
        return await trio.to_thread.run_sync(render, *args, limiter=threads)

    async def _generate(self, context: Ids, max_new_tokens: int) -> Completion:
        turn = len(self.turns)
        sampling = SamplingParams(
            temperature=self.config.temperature,
            max_new_tokens=max_new_tokens,
            seed=derive_seed(self.setup.run_seed, "turn", self.group_id, self.member, turn),
            stop_ids=self.setup.renderer.stop_ids,
        )
        engine = self.setup.choose_engine(self.group_id, self.member, turn)
        self.engines[engine.name] = engine
        begun = self.setup.clock()
        try:
            with trio.move_on_after(self.config.engine_deadline_s):
                prompt = np.concatenate([self.ids, context])
                return await engine.generate(prompt, sampling, session=self.episode_id)
        finally:
            self.engine_s += self._elapsed("generate", turn, begun, engine.name)
        raise EngineError(f"{engine.name}: turn {turn} took longer than {self.config.engine_deadline_s} s")

    async def _interact(self, session: Session, context: Context, completion: Completion) -> StepResult:
        asked = self.setup.renderer.parse(completion.ids)
        turn = Turn(
            context_ids=context.ids,
            completion=completion,
            num_calls=len(asked.calls),
            call_errors=asked.errors,
            num_bare_calls=asked.num_bare_calls,
        )
        self._append(turn, context)  # before the env answers: should it fail, the record still shows what it was asked
        action = within_budget(asked, min(self.calls_left, _bound(self.config.max_calls_per_turn)))
        self.calls_left -= len(action.calls)
        result = await self._call_env(lambda: session.interact(action), self.config.env_deadline_s, "step")
        self.env_reward = self._checked_reward(result)
        self.turns[-1] = replace(turn, reward=result.reward)
        return answering_all(result, num_executed=len(action.calls), num_calls=len(asked.calls))

    def _checked_reward(self, result: StepResult) -> float:
        """The sum of the rewards so far. Raises EnvError for an answer that is none."""
        total = (self.env_reward or 0.0) + result.reward
        if not (math.isfinite(result.reward) and math.isfinite(total)):
            raise EnvError(f"{self.task.key}: rewards and their sum must be finite, got {result.reward} and {total}")
        if result.end is None and not result.messages:
            raise EnvError(f"{self.task.key}: a step that does not end the episode must answer, got no messages")
        return total

    def _append(self, turn: Turn, context: Context) -> None:
        if context.starts_segment:
            self.first_turns.append(len(self.turns))
        self.turns.append(turn)
        self.ids = np.concatenate([self.ids, turn.context_ids, turn.completion.ids])
        self.sampled_tokens_left -= len(turn.completion.ids)

    def _segments(self) -> tuple[Segment, ...]:
        bounds = pairwise([*self.first_turns, len(self.turns)])
        return tuple(Segment(turns=tuple(self.turns[start:end])) for start, end in bounds)

    async def _reserve(self, session: Session) -> None:
        with trio.move_on_after(self.config.queue_deadline_s):
            return await session.reserve()
        raise EnvError(f"{self.task.key}: no env worker had a place for it within {self.config.queue_deadline_s} s")

    async def _call_env(self, call: Callable[[], Awaitable[T]], deadline_s: float, what: CallName) -> T:
        begun = self.setup.clock()
        try:
            with trio.move_on_after(deadline_s):
                return await call()
        finally:
            self.env_s += self._elapsed(what, len(self.turns) - 1, begun)
        raise EnvTimeout(f"{self.task.key}: {what} took longer than its deadline of {deadline_s} s")

    def _elapsed(self, what: CallName, turn: int, begun: float, engine: str = "") -> float:
        ended = self.setup.clock()
        if self.setup.observe is not None:
            self.calls.append(CallTime(what, turn, begun, ended, engine))
        return ended - begun

    async def _close(self, session: Session) -> list[str]:
        """Release everything even while being cancelled; return what went wrong, which changes no end."""
        releases = [session.close, *(self._ending(engine) for engine in self.engines.values())]
        problems = []
        for release in releases:
            with trio.move_on_after(self.config.close_deadline_s, shield=True) as scope:
                try:
                    await release()
                except (EnvError, EngineError) as error:
                    problems.append(f"closing: {error}")
            if scope.cancelled_caught:
                problems.append(f"closing took longer than {self.config.close_deadline_s} s")
        return problems

    def _ending(self, engine: Engine) -> Callable[[], Awaitable[None]]:
        return lambda: engine.end_session(self.episode_id)


def _bound(limit: int | None) -> float:
    return math.inf if limit is None else limit
