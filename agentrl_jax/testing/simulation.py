"""The whole rollout side on fakes: sampler, loop, groups, episodes, one engine, a learner, in virtual time."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import trio

from agentrl_jax.controller.config import RolloutConfig
from agentrl_jax.controller.episode import EpisodeConfig, EpisodeSetup, single_engine
from agentrl_jax.controller.group import AdmittedGroup, run_group
from agentrl_jax.controller.loop import train_loop
from agentrl_jax.controller.ports import LoopResult, StepRecord
from agentrl_jax.controller.tasks import TaskSampler
from agentrl_jax.testing.engine import FakeEngine
from agentrl_jax.testing.envs import EnvScript, ScriptedFamily, ScriptFor, SessionLog, scripted_sessions
from agentrl_jax.testing.learner import FakeLearner
from agentrl_jax.testing.renderer import FakeRenderer
from agentrl_jax.types import Group

SHORT_EPISODES = EpisodeConfig(max_turns=4, max_new_tokens=8, max_context_tokens=512, penalty=-0.2)


@dataclass(kw_only=True)
class Simulation:
    """Runs `train_loop` and keeps everything that it told: `records`, `groups` (all that ended by themselves).

    weights: share of each env; an env is a name only, its tasks follow `script`.
    """

    config: RolloutConfig
    script: EnvScript | ScriptFor = field(default_factory=EnvScript)
    weights: Mapping[str, float] = field(default_factory=lambda: {"a": 1.0})
    episodes: EpisodeConfig = SHORT_EPISODES
    engine: FakeEngine = field(default_factory=FakeEngine)
    learner: FakeLearner = field(default_factory=FakeLearner)
    tasks_per_env: int = 8
    seed: int = 0
    log: SessionLog = field(default_factory=SessionLog)
    records: list[StepRecord] = field(default_factory=list)
    groups: list[Group] = field(default_factory=list)
    num_started: int = 0

    def sampler(self) -> TaskSampler:
        """A fresh sampler over this simulation's envs."""
        families: Sequence[ScriptedFamily] = [
            ScriptedFamily(name=name, size=self.tasks_per_env) for name in self.weights
        ]
        return TaskSampler(families, self.weights, self.seed)

    async def run_one_group(self, admitted: AdmittedGroup) -> Group:
        """The port that the loop runs groups through."""
        setup = EpisodeSetup(
            sessions=scripted_sessions(self.script, self.log),
            tools=(),
            renderer=FakeRenderer(),
            choose_engine=single_engine(self.engine),
            config=self.episodes,
            run_seed=self.seed,
        )
        self.num_started += 1
        group = await run_group(admitted, group_size=self.config.group_size, setup=setup)
        self.groups.append(group)
        return group

    async def on_step(self, record: StepRecord) -> None:
        """The port that the loop tells its steps to."""
        self.records.append(record)
        await trio.lowlevel.checkpoint()

    async def publish(self, version: int) -> None:
        """The port that the loop publishes through."""
        await self.engine.publish(None, version)

    async def run(
        self,
        max_steps: int,
        *,
        stop: trio.Event | None = None,
        initial_version: int = 0,
        sampler: TaskSampler | None = None,
    ) -> LoopResult:
        """Run the loop once; `engine` must serve `initial_version`."""
        return await train_loop(
            sampler=sampler or self.sampler(),
            config=self.config,
            run_one_group=self.run_one_group,
            learner=self.learner,
            publish=self.publish,
            max_steps=max_steps,
            on_step=self.on_step,
            stop=stop,
            initial_version=initial_version,
        )
