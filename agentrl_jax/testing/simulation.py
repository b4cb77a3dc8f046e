"""The whole rollout side on fakes: sampler, loop, groups, episodes, a pool of engines, a learner, in virtual time."""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import cached_property

import trio

from agentrl_jax.controller.config import RolloutConfig
from agentrl_jax.controller.episode import EpisodeConfig, EpisodeSetup
from agentrl_jax.controller.group import AdmittedGroup, run_group
from agentrl_jax.controller.ledger import Ending
from agentrl_jax.controller.loop import train_loop
from agentrl_jax.controller.ports import LoopResult, StepRecord
from agentrl_jax.controller.sessions import SessionFactory
from agentrl_jax.controller.slots import EpisodeSlots
from agentrl_jax.controller.tasks import TaskSampler
from agentrl_jax.engines.pool import EnginePool, PoolConfig
from agentrl_jax.testing.engine import FakeEngine
from agentrl_jax.testing.envs import EnvScript, ScriptedFamily, ScriptFor, SessionLog, scripted_sessions
from agentrl_jax.testing.learner import FakeLearner
from agentrl_jax.testing.renderer import FakeRenderer
from agentrl_jax.types import Group, Task

SHORT_EPISODES = EpisodeConfig(max_turns=4, max_new_tokens=8, max_context_tokens=512, penalty=-0.2)


@dataclass(kw_only=True)
class Books:
    """Implements `controller.ports.JournalPort` in memory: what became of every group, by id."""

    admitted_tasks: dict[int, Task] = field(default_factory=dict)
    start_versions: dict[int, int] = field(default_factory=dict)
    completed_ids: list[int] = field(default_factory=list)
    endings: list[tuple[int, Ending]] = field(default_factory=list)
    consumed_ids: list[int] = field(default_factory=list)
    published_versions: list[int] = field(default_factory=list)

    def admitted(self, group: AdmittedGroup) -> None:
        self.admitted_tasks[group.group_id] = group.task

    def started(self, group: AdmittedGroup) -> None:
        self.start_versions[group.group_id] = group.start_version

    async def completed(self, group: Group) -> None:
        await trio.lowlevel.checkpoint()
        self.completed_ids.append(group.group_id)

    def ended(self, group_id: int, how: Ending) -> None:
        self.endings.append((group_id, how))

    async def publishing(self, version: int) -> None:
        await trio.lowlevel.checkpoint()
        self.published_versions.append(version)

    def consumed(self, step: int, version: int, ages: Mapping[int, int]) -> None:
        self.consumed_ids.extend(ages)


@dataclass(kw_only=True)
class Simulation:
    """Runs `train_loop` and keeps everything that it told: `records`, `books`, `groups` (all that ended by themselves).

    weights: share of each env; an env is a name only, its tasks follow `script`.
    engine: the first current one. other_engines: further current and lagging ones; `cross_policy` says when the
    lagging ones sample, and what they get published.
    num_places: groups that run at a time, shared between envs as in a real run; None: all that are admitted.
    """

    config: RolloutConfig
    script: EnvScript | ScriptFor = field(default_factory=EnvScript)
    weights: Mapping[str, float] = field(default_factory=lambda: {"a": 1.0})
    episodes: EpisodeConfig = SHORT_EPISODES
    engine: FakeEngine = field(default_factory=FakeEngine)
    other_engines: Sequence[FakeEngine] = ()
    cross_policy: PoolConfig = field(default_factory=lambda: PoolConfig(lagging_prob=0.0))
    learner: FakeLearner = field(default_factory=FakeLearner)
    tasks_per_env: int = 8
    num_places: int | None = None
    seed: int = 0
    log: SessionLog = field(default_factory=SessionLog)
    books: Books = field(default_factory=Books)
    records: list[StepRecord] = field(default_factory=list)
    groups: list[Group] = field(default_factory=list)
    started_ids: list[int] = field(default_factory=list)

    @property
    def num_started(self) -> int:
        """Groups whose episodes began."""
        return len(self.started_ids)

    @cached_property
    def engine_pool(self) -> EnginePool:
        """All engines as one pool. Made when it is first asked for; replace engines before."""
        engines = (self.engine, *self.other_engines)
        current = [engine for engine in engines if engine.pool == "current"]
        lagging = [engine for engine in engines if engine.pool == "lagging"]
        return EnginePool(current, lagging, self.cross_policy, self.seed)

    @cached_property
    def task_sampler(self) -> TaskSampler:
        """The sampler of `run`, where none is given."""
        return self.sampler()

    @cached_property
    def places(self) -> EpisodeSlots | None:
        """See `num_places`."""
        return None if self.num_places is None else EpisodeSlots(self.num_places, self.task_sampler.concurrency_shares)

    def sampler(self) -> TaskSampler:
        """A fresh sampler over this simulation's envs."""
        families: Sequence[ScriptedFamily] = [
            ScriptedFamily(name=name, size=self.tasks_per_env) for name in self.weights
        ]
        return TaskSampler(families, self.weights, self.seed, curriculum=self.config.curriculum)

    def sessions(self) -> SessionFactory:
        """Sessions that follow `script`."""
        return scripted_sessions(self.script, self.log)

    async def run_one_group(self, admitted: AdmittedGroup) -> Group:
        """The port that the loop runs groups through."""
        setup = EpisodeSetup(
            sessions=self.sessions(),
            tools=(),
            renderer=FakeRenderer(),
            choose_engine=self.engine_pool,
            config=self.episodes,
            run_seed=self.seed,
        )
        async with nullcontext() if self.places is None else admitted.placed(self.places, 1):
            self.started_ids.append(admitted.group_id)
            group = await run_group(admitted, group_size=self.config.group_size, setup=setup)
        self.groups.append(group)
        return group

    async def on_step(self, record: StepRecord) -> None:
        """The port that the loop tells its steps to."""
        self.records.append(record)
        self.engine_pool.shares.observe(record.groups)
        await trio.lowlevel.checkpoint()

    async def publish(self, version: int) -> None:
        """The port that the loop publishes through."""
        await self.engine_pool.publish(None, version)

    async def run(
        self,
        max_steps: int,
        *,
        stop: trio.Event | None = None,
        initial_version: int = 0,
        sampler: TaskSampler | None = None,
    ) -> LoopResult:
        """Run the loop once; the engines must serve `initial_version`."""
        return await train_loop(
            sampler=sampler or self.task_sampler,
            config=self.config,
            run_one_group=self.run_one_group,
            learner=self.learner,
            publish=self.publish,
            max_steps=max_steps,
            on_step=self.on_step,
            stop=stop,
            initial_version=initial_version,
            journal=self.books,
        )
