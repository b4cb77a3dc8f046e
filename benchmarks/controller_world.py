"""The controller's own code between a policy and environments that cost next to nothing, for `benchmarks.controller`.

Real: training loop, ledger, permits, groups, episodes, engine pool, chat template and tokenizer, records, and the
thread adapter where it is asked for. Scripted: what an engine samples (always the same ids, after a while) and what an
environment answers.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import trio

from agentrl_jax.controller.config import RolloutConfig
from agentrl_jax.controller.episode import EpisodeConfig, EpisodeSetup
from agentrl_jax.controller.group import AdmittedGroup, run_group
from agentrl_jax.controller.loop import train_loop
from agentrl_jax.controller.ports import LoopResult, StepRecord
from agentrl_jax.controller.sessions import Session, WithoutQueue, thread_sessions
from agentrl_jax.controller.tasks import TaskSampler
from agentrl_jax.engines.pool import EnginePool, PoolConfig
from agentrl_jax.engines.protocol import EngineStatistics
from agentrl_jax.env import Action, Message, StepResult, Tool, ToolCall
from agentrl_jax.rendering.templates import hermes_template
from agentrl_jax.rendering.tokenizer import load_tokenizer
from agentrl_jax.rendering.train_tokenizer import train_tokenizer
from agentrl_jax.rendering.transcript import TemplateRenderer
from agentrl_jax.testing.envs import ScriptedFamily
from agentrl_jax.testing.learner import FakeLearner
from agentrl_jax.types import Completion, EpisodeEnd, Group, Ids, Pool, SamplingParams, Task, VersionSpan

NUM_IDS = 200
"""Of each sampled turn, and of each environment's reply."""
NUM_THREADS = 16
TOOL = Tool(name="look", description="Looks somewhere.", parameters={"type": "object"})
_CALL = ToolCall(name="look", arguments={"at": "shelf"})
_WORDS = ("kitchen", "drawer", "open", "the", "is", "empty", "shelf", "lamp", "you", "see", "north", "a", "7", "door")


def make_renderer() -> TemplateRenderer:
    """The real template with a tokenizer trained on the words that are used here."""
    text = " ".join(_WORDS[number * number % len(_WORDS)] for number in range(4000))
    with TemporaryDirectory(prefix="controller-") as name:
        train_tokenizer([text], Path(name), vocab_size=320, chat_template=hermes_template())
        return TemplateRenderer(load_tokenizer(name), tools=(TOOL,))


def shortest_text(encode: Callable[[str], Ids]) -> tuple[str, Ids]:
    """The shortest text of our words that `encode` makes at least NUM_IDS ids of, and those ids."""
    chosen: list[str] = []
    while True:
        chosen.append(_WORDS[len(chosen) * 5 % len(_WORDS)])
        ids = encode(" ".join(chosen))
        if len(ids) >= NUM_IDS:
            return " ".join(chosen), ids


def sampled_ids(renderer: TemplateRenderer) -> Ids:
    """An assistant turn that ends with a call."""
    turn = partial(Message, role="assistant", tool_calls=(_CALL,))
    return shortest_text(lambda text: renderer.encode_turn(turn(content=text)))[1]


def reply_text(renderer: TemplateRenderer) -> str:
    """The content of a tool message."""
    return shortest_text(lambda text: renderer.reply((Message(role="tool", content=text),)))[0]


@dataclass(kw_only=True, eq=False)
class ReplayingEngine:
    """Implements `engines.protocol.Engine`: says `ids` every turn, after a time drawn from the turn's seed.

    latency_s: its mean; uniform in [latency_s / 2, latency_s × 3 / 2]. parks_above: longer prompts are never answered.
    on_turn: called for each.
    """

    name: str
    pool: Pool
    ids: Ids
    on_turn: Callable[[], None]
    latency_s: float = 0.0
    parks_above: float = math.inf
    version: int = 0
    num_turns: int = 0

    def __post_init__(self) -> None:
        self._logprobs = np.full(len(self.ids), -0.5, np.float32)

    async def generate(self, prompt_ids: Ids, sampling: SamplingParams, *, session: str) -> Completion:
        is_parked = len(prompt_ids) > self.parks_above
        await trio.sleep(math.inf if is_parked else self.latency_s * (0.5 + sampling.seed / 2**63))
        self.num_turns += 1
        self.on_turn()
        return Completion(
            ids=self.ids,
            logprobs=self._logprobs,
            version_spans=(VersionSpan(version=self.version, start=0, end=len(self.ids)),),
            finish_reason="stop",
            engine=self.name,
            pool=self.pool,
        )

    async def end_session(self, session: str) -> None:
        await trio.lowlevel.checkpoint()

    async def publish(self, weights: Any, version: int) -> None:
        await trio.lowlevel.checkpoint()
        self.version = version

    def statistics(self) -> EngineStatistics:
        return EngineStatistics(
            version=self.version,
            running=0,
            waiting=0,
            num_requests=self.num_turns,
            num_aborted=0,
            prompt_tokens=0,
            cached_tokens=0,
            sampled_tokens=self.num_turns * len(self.ids),
            num_nonfinite_logprobs=0,
            num_publishes=self.version,
        )


@dataclass(kw_only=True, eq=False)
class TalkingEnv:
    """Implements `env.Env`: answers every call with `text` for `num_turns` turns, then gives its reward."""

    task: Task
    text: str
    num_turns: int
    num_steps: int = 0

    def reset(self) -> tuple[Message, ...]:
        return (Message(role="user", content=f"Task {self.task.index}: {self.text}"),)

    def step(self, action: Action) -> StepResult:
        self.num_steps += 1
        is_last = self.num_steps >= self.num_turns
        answers = tuple(Message(role="tool", content=self.text) for _ in action.calls)
        return StepResult(messages=answers, reward=float(is_last), end=EpisodeEnd.COMPLETED if is_last else None)

    def close(self) -> None:
        pass


class DirectSession(WithoutQueue):
    """Implements `controller.sessions.Session` without a thread, as a session on a remote worker needs none."""

    def __init__(self, env: TalkingEnv) -> None:
        self._env = env

    async def start(self) -> tuple[Message, ...]:
        await trio.lowlevel.checkpoint()
        return self._env.reset()

    async def interact(self, action: Action) -> StepResult:
        await trio.lowlevel.checkpoint()
        return self._env.step(action)

    async def close(self) -> None:
        await trio.lowlevel.checkpoint()
        self._env.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What is run: `num_groups` groups at a time, of which a step consumes `groups_per_step`.

    num_turns: of an episode. latency_s, parks_above: see ReplayingEngine. in_threads: sessions are `ThreadSession`s.
    """

    num_groups: int
    groups_per_step: int
    group_size: int = 8
    num_turns: int = 3
    latency_s: float = 0.0
    parks_above: float = math.inf
    in_threads: bool = False

    @property
    def rollout(self) -> RolloutConfig:
        """Permits for the groups that run and those of one step; ages are no matter here."""
        num_steps = -(-self.num_groups // self.groups_per_step) + 1
        return RolloutConfig(
            group_size=self.group_size,
            min_groups_per_batch=self.groups_per_step,
            max_staleness=num_steps - 1,
            task_max_staleness={"scripted": 4 * num_steps},
        )


class World:
    """Engines, environments and the loop between them, and what they have done so far.

    num_turns: turns that engines have answered. has_turns: set once they are `turns_wanted`.
    """

    def __init__(self, shape: Shape, *, turns_wanted: int = 0) -> None:
        self.shape = shape
        self.num_turns, self._turns_wanted, self.has_turns = 0, turns_wanted, trio.Event()
        self.renderer = make_renderer()
        self._text = reply_text(self.renderer)
        engine = partial(
            ReplayingEngine,
            ids=sampled_ids(self.renderer),
            latency_s=shape.latency_s,
            parks_above=shape.parks_above,
            on_turn=self._count_turn,
        )
        self._engines = [engine(name=f"current-{number}", pool="current") for number in range(4)]
        self._lagging = [engine(name=f"lagging-{number}", pool="lagging") for number in range(2)]
        self._pool = EnginePool(self._engines, self._lagging, PoolConfig(), run_seed=0)
        self.num_live = self.peak_live = self.num_ended = 0

    def _count_turn(self) -> None:
        self.num_turns += 1
        if self.num_turns == self._turns_wanted:
            self.has_turns.set()

    def make_env(self, task: Task) -> TalkingEnv:
        return TalkingEnv(task=task, text=self._text, num_turns=self.shape.num_turns)

    def _make_session(self, task: Task) -> Session:
        return DirectSession(self.make_env(task))

    def setup(self) -> EpisodeSetup:
        """What `run_episode` needs; within trio."""
        threads = thread_sessions(self.make_env, trio.CapacityLimiter(NUM_THREADS))
        return EpisodeSetup(
            sessions=threads if self.shape.in_threads else self._make_session,
            tools=(TOOL,),
            renderer=self.renderer,
            choose_engine=self._pool,
            config=EpisodeConfig(max_turns=self.shape.num_turns, max_new_tokens=256, max_context_tokens=8192),
            run_seed=0,
        )

    async def run(self, num_steps: int, on_step: Callable[[], object] = lambda: None) -> LoopResult:
        """Take `num_steps` steps of the training loop; `on_step` is called after each."""
        setup, size, learner = self.setup(), self.shape.group_size, FakeLearner()

        async def run_one_group(admitted: AdmittedGroup) -> Group:
            self.num_live += size
            self.peak_live = max(self.peak_live, self.num_live)
            try:
                return await run_group(admitted, group_size=size, setup=setup)
            finally:
                self.num_live -= size
                self.num_ended += size

        async def publish(version: int) -> None:
            await self._pool.publish(None, version)

        async def after_step(record: StepRecord) -> None:
            await trio.lowlevel.checkpoint()
            learner.calls.clear()  # it would keep every group
            on_step()

        return await train_loop(
            sampler=TaskSampler([ScriptedFamily(size=1000)], {"scripted": 1.0}, 0),
            config=self.shape.rollout,
            run_one_group=run_one_group,
            learner=learner,
            publish=publish,
            max_steps=num_steps,
            on_step=after_step,
        )
