"""One session from its first message to its end, as an immutable trajectory. Every `EpisodeEnd` is decided here.

render → choose engine → generate → parse → interact → append. Tokens are facts: the next prompt is all earlier ids
plus the environment's reply, so nothing that was sampled is ever rendered or tokenised again. A renderer that rewrites
history says when: a new segment begins with that prompt.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Protocol, TypeVar

import numpy as np
import trio

from agentrl_jax.controller.cancellation import CancelSwitch
from agentrl_jax.controller.episode_config import EpisodeConfig as EpisodeConfig
from agentrl_jax.controller.live_session import LiveSession, bound
from agentrl_jax.controller.sessions import SessionFactory
from agentrl_jax.controller.telemetry import CallName, CallTime, ObserveEpisode
from agentrl_jax.engines.protocol import Engine
from agentrl_jax.env import Message, StepResult, Tool
from agentrl_jax.errors import EngineError
from agentrl_jax.rendering.protocol import Context, Renderer
from agentrl_jax.seeding import derive_seed
from agentrl_jax.types import Completion, EpisodeEnd, Ids, SamplingParams, Segment, Task, Trajectory, Turn, as_ids

T = TypeVar("T")


class EngineChooser(Protocol):
    """Names the engine of one turn; called anew for each. Raises EngineError if none can serve it."""

    def __call__(self, group_id: int, member: int, turn: int) -> Engine: ...


def single_engine(engine: Engine) -> EngineChooser:
    """Every turn to the same engine."""

    def choose(group_id: int, member: int, turn: int) -> Engine:
        return engine

    return choose


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
        self.engine_s = 0.0
        self.calls: list[CallTime] = []
        self.sampled_tokens_left = bound(self.config.max_sampled_tokens)

    @property
    def episode_id(self) -> str:
        return f"g{self.group_id}-m{self.member}"

    async def run(self, switch: CancelSwitch) -> Trajectory:
        begun = self.setup.clock()
        end, error = EpisodeEnd.CANCELLED, "its group was cancelled"
        session = LiveSession(
            self.setup.sessions(self.task), self.task, self.config, self.setup.clock, self._note_env_call
        )
        try:
            with switch.scope():
                end, error = await session.play(partial(self._take_turns, session))
            wall_s = self.setup.clock() - begun
        finally:
            error = "; ".join(filter(None, [error, *await session.close(self._endings())]))
        trajectory = Trajectory(
            task=self.task,
            group_id=self.group_id,
            member=self.member,
            end=end,
            reward=self.config.reward(end, session.env_reward),
            env_reward=session.env_reward,
            segments=self._segments(),
            wall_s=wall_s,
            env_s=session.env_s,
            engine_s=self.engine_s,
            error=error,
        )
        if self.setup.observe is not None:
            self.setup.observe(trajectory, self.calls)
        return trajectory

    async def _take_turns(self, session: LiveSession, messages: tuple[Message, ...]) -> tuple[EpisodeEnd, str]:
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
            if session.calls_left < 1:
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
            ended = self.setup.clock()
            self.engine_s += ended - begun
            self._note_call(CallTime("generate", turn, begun, ended, engine.name))
        raise EngineError(f"{engine.name}: turn {turn} took longer than {self.config.engine_deadline_s} s")

    async def _interact(self, session: LiveSession, context: Context, completion: Completion) -> StepResult:
        asked = self.setup.renderer.parse(completion.ids)
        turn = Turn(
            context_ids=context.ids,
            completion=completion,
            num_calls=len(asked.calls),
            call_errors=asked.errors,
            num_bare_calls=asked.num_bare_calls,
        )
        self._append(turn, context)  # before the env answers: should it fail, the record still shows what it was asked
        result = await session.interact(asked)
        if result.reward != turn.reward:
            self.turns[-1] = replace(turn, reward=result.reward)
        return result

    def _append(self, turn: Turn, context: Context) -> None:
        if context.starts_segment:
            self.first_turns.append(len(self.turns))
        self.turns.append(turn)
        self.ids = np.concatenate([self.ids, turn.context_ids, turn.completion.ids])
        self.sampled_tokens_left -= len(turn.completion.ids)

    def _segments(self) -> tuple[Segment, ...]:
        bounds = pairwise([*self.first_turns, len(self.turns)])
        return tuple(Segment(turns=tuple(self.turns[start:end])) for start, end in bounds)

    def _note_env_call(self, what: CallName, begun: float, ended: float) -> None:
        self._note_call(CallTime(what, len(self.turns) - 1, begun, ended))

    def _note_call(self, call: CallTime) -> None:
        if self.setup.observe is not None:
            self.calls.append(call)

    def _endings(self) -> list[Callable[[], Awaitable[None]]]:
        return [partial(engine.end_session, self.episode_id) for engine in self.engines.values()]
