"""Simulations in virtual time whose learner is a real one: scripted envs that judge what was said."""

from dataclasses import replace

import trio

from agentrl_jax.algo.advantages import AdvantageConfig
from agentrl_jax.algo.losses import LossConfig, make_loss
from agentrl_jax.controller.config import RolloutConfig
from agentrl_jax.controller.ports import StepOutcome
from agentrl_jax.controller.sessions import SessionFactory
from agentrl_jax.env import Action, StepResult
from agentrl_jax.learner import Learner, LearnerConfig, StepMetrics
from agentrl_jax.models.config import ModelConfig
from agentrl_jax.models.params import Params, init_params
from agentrl_jax.packing import PackingConfig, build_batch
from agentrl_jax.seeding import derive_seed
from agentrl_jax.sharding import make_mesh, parse_mesh
from agentrl_jax.testing.engine import FakeEngine
from agentrl_jax.testing.envs import EnvScript, ScriptedSession
from agentrl_jax.testing.learner import FakeLearner
from agentrl_jax.testing.renderer import VOCABULARY_SIZE
from agentrl_jax.testing.simulation import Simulation
from agentrl_jax.types import Group, Task

MODEL = ModelConfig(
    vocab_size=VOCABULARY_SIZE, width=8, num_layers=1, num_heads=2, num_kv_heads=1, head_dim=4, mlp_width=16
)
PARAMS = init_params(MODEL, 0)
CONFIG = RolloutConfig(group_size=4, min_groups_per_batch=3, max_staleness=0)
PACKING = PackingConfig(row_tokens=(128,), rows_per_micro_batch=4)


class Speaking(ScriptedSession):
    """Rewards what was said, so that every group has members that differ."""

    async def interact(self, action: Action) -> StepResult:
        result = await super().interact(action)
        return replace(result, reward=derive_seed(action.content) % 8 / 8)


class Speeches(Simulation):
    def sessions(self) -> SessionFactory:
        return lambda task: Speaking(task, uneven(task), self.log)


def uneven(task: Task) -> EnvScript:
    """Episodes of 1 to 20 seconds, so that groups end in another order than they began."""
    return EnvScript(step_s=1 + derive_seed(task.key) % 20)


def simulation(max_staleness: int = 0, *, kind: type[Speeches] = Speeches) -> Speeches:
    engine = FakeEngine(vocabulary=tuple(range(80, 88)), publish_s=5.0)
    config = replace(CONFIG, max_staleness=max_staleness)
    return kind(config=config, engine=engine, weights={"a": 1.0, "b": 2.0}, learner=Real())


class Real(FakeLearner):
    """A learner with params, which takes virtual time besides."""

    def __init__(self) -> None:
        super().__init__()
        config = LearnerConfig(learning_rate=0.02, temperature=0.8, logprob_chunk=64)
        loss, mesh = make_loss(LossConfig(clip_high=0.28)), make_mesh(parse_mesh("1"))
        self.learner = Learner(MODEL, config, loss, mesh, PARAMS)

    async def step(self, groups: tuple[Group, ...], version: int) -> StepOutcome:
        await super().step(groups, version)
        await trio.sleep(7.0)
        outcome = self.learn(groups, version)
        await trio.sleep(7.0)
        return StepOutcome(is_finite=True, is_applied=outcome.is_applied, metrics={})

    def learn(self, groups: tuple[Group, ...], version: int) -> StepMetrics:
        packed = build_batch(groups, advantages=AdvantageConfig(), packing=PACKING, learner_version=version)
        return self.learner.step(packed)


def learned(run: Speeches) -> Params:
    assert isinstance(run.learner, Real)
    return run.learner.learner.params
