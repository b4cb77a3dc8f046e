"""One evaluated episode at message level, from its first message to its end. No jax.

The rules are those of `controller/episode.py`, which plays for training with token ids: the same ends for the same
reasons, the same budgets and notices, and with one policy the same ids. Every wait has a deadline, so that no episode
can hang an evaluation.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

import trio

from agentrl_jax.controller.episode_config import EpisodeConfig
from agentrl_jax.controller.live_session import LiveSession, bound
from agentrl_jax.controller.sessions import SessionFactory
from agentrl_jax.env import Message, StepResult, Tool
from agentrl_jax.errors import EngineError
from agentrl_jax.playing.mixtures import Mixture
from agentrl_jax.playing.policies import PlayedTurn, PlayingPolicy, Seat, TurnSettings
from agentrl_jax.playing.records import EpisodeRecord, TurnRecord
from agentrl_jax.seeding import derive_seed
from agentrl_jax.types import EpisodeEnd, Task


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

    def __post_init__(self) -> None:
        self.config = self.setup.config
        self.tools = self.setup.tools_of(self.task)
        self.sampled_tokens_left = bound(self.config.max_sampled_tokens)

    async def run(self) -> EpisodeRecord:
        begun_at, begun = time.time(), self.setup.clock()
        end, error = EpisodeEnd.CANCELLED, ""
        session = LiveSession(self.setup.sessions(self.task), self.task, self.config, self.setup.clock)
        try:
            end, error = await session.play(partial(self._take_turns, session))
            wall_s = self.setup.clock() - begun
        finally:
            error = "; ".join(filter(None, [error, *await session.close(seat.leave for seat in self.seats.values())]))
        return EpisodeRecord(
            mixture=self.mixture.name,
            task=self.task,
            sample=self.sample,
            end=end,
            reward=self.config.reward(end, session.env_reward),
            env_reward=session.env_reward,
            turns=tuple(self.turns),
            messages=tuple(self.messages),
            metrics=self.metrics,
            begun=begun_at,
            wall_s=wall_s,
            env_s=session.env_s,
            error=error,
        )

    async def _take_turns(self, session: LiveSession, messages: tuple[Message, ...]) -> tuple[EpisodeEnd, str]:
        self.messages += messages
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
            if session.calls_left < 1:
                return EpisodeEnd.MAX_TURNS, f"used up its {self.config.max_calls} tool calls"

    async def _take_turn(self, session: LiveSession) -> tuple[PlayedTurn, StepResult | None]:
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
                answer = await session.interact(turn.action)
                reward = answer.reward
                self.metrics |= answer.metrics
        finally:  # should the env fail, the record still shows what it was asked
            if turn.end is None or turn.num_sampled_tokens:
                self.turns.append(_record(name, turn, reward, seconds))
        return turn, answer

    async def _ask(self, name: str, number: int) -> PlayedTurn:
        task, config = self.task, self.config
        settings = TurnSettings(
            temperature=config.temperature,
            max_new_tokens=int(min(config.max_new_tokens, self.sampled_tokens_left)),
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
