"""Without staleness, the asynchronous loop is the plain one: the same batches in the same order, the same params."""

from dataclasses import replace
from itertools import count

import trio
from trio.testing import MockClock

from agentrl_jax.algo.advantages import AdvantageConfig
from agentrl_jax.algo.losses import LossConfig, make_loss
from agentrl_jax.controller.config import RolloutConfig
from agentrl_jax.controller.group import AdmittedGroup
from agentrl_jax.controller.ports import StepOutcome
from agentrl_jax.controller.sessions import SessionFactory
from agentrl_jax.env import Action, StepResult
from agentrl_jax.learner import Learner, LearnerConfig, Outcome
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
from tests.learner.small import same_bits

NUM_STEPS = 6
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


def simulation(max_staleness: int = 0) -> Speeches:
    engine = FakeEngine(vocabulary=tuple(range(80, 88)), publish_s=5.0)
    config = replace(CONFIG, max_staleness=max_staleness)
    return Speeches(config=config, engine=engine, weights={"a": 1.0, "b": 2.0}, learner=Real())


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

    def learn(self, groups: tuple[Group, ...], version: int) -> Outcome:
        packed = build_batch(groups, advantages=AdvantageConfig(), packing=PACKING, learner_version=version)
        return self.learner.step(packed)


async def plain_loop(run: Speeches, num_steps: int) -> None:
    """Synchronous training as one would write it down: draw tasks, play them one by one, learn, publish."""
    assert isinstance(run.learner, Real)
    sampler, numbers = run.sampler(), count()
    for version in range(num_steps):
        groups = []
        for _ in range(run.config.min_groups_per_batch):
            admitted = AdmittedGroup(group_id=next(numbers), task=sampler.draw(), admitted_version=version)
            groups.append(await run.run_one_group(admitted))
        assert run.learner.learn(tuple(groups), version).is_applied
        await run.publish(version + 1)


def learned(run: Speeches) -> Params:
    assert isinstance(run.learner, Real)
    return run.learner.learner.params


async def test_without_staleness_the_loop_is_the_plain_one_bit_for_bit(autojump_clock: MockClock) -> None:
    asynchronous, plain = simulation(), simulation()
    await asynchronous.run(NUM_STEPS)
    await plain_loop(plain, NUM_STEPS)
    assert [record.version for record in asynchronous.records] == list(range(NUM_STEPS))
    assert same_bits(learned(asynchronous), learned(plain))
    assert not same_bits(learned(plain), PARAMS)
    # The groups really ended in another order than the plain loop's.
    assert [group.group_id for group in asynchronous.groups] != [group.group_id for group in plain.groups]


async def test_with_staleness_it_is_not(autojump_clock: MockClock) -> None:
    stale, plain = simulation(max_staleness=1), simulation()
    await stale.run(NUM_STEPS)
    await plain_loop(plain, NUM_STEPS)
    assert not same_bits(learned(stale), learned(plain))
    assert max(age for record in stale.records for age in record.ages) == 1
