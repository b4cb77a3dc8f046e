"""Advantages that are all zero, as a run sees them: named, and not passed over."""

from dataclasses import replace

import pytest
from trio.testing import MockClock

from agentrl_jax.controller.config import RolloutConfig
from agentrl_jax.controller.watch import Watch
from agentrl_jax.errors import ConfigError
from agentrl_jax.testing.engine import FakeEngine
from agentrl_jax.testing.envs import EnvScript
from agentrl_jax.testing.simulation import Simulation
from tests.controller.ended_groups import make_group, make_task

CONFIG = RolloutConfig(group_size=2, min_groups_per_batch=2, max_staleness=0)


def test_adv_09_a_group_of_one_is_refused() -> None:
    with pytest.raises(ConfigError, match="group_size must be at least 2, got 1"):
        replace(CONFIG, group_size=1)


@pytest.mark.parametrize("reward", [0.0, 1.0])
def test_adv_09_constant_rewards_are_warned_of_after_three_steps(reward: float) -> None:
    watch, flat = Watch(), make_group(reward, reward)
    told = [[(w.name, w.env) for w in watch.observe([flat, flat], [], [])] for _ in range(7)]
    named = [("constant_rewards", "a")]
    assert told == [[], [], named, [], [], named, []]  # again once it has lasted twice as long


def test_adv_09_one_group_with_a_signal_is_enough_and_other_envs_do_not_count() -> None:
    watch, flat, mixed = Watch(), make_group(1.0, 1.0), make_group(1.0, 0.0)
    other = make_group(1.0, 0.0, task=make_task(env="other"))
    assert [watch.observe([flat, flat, mixed], [], []) for _ in range(9)] == [()] * 9
    found = [watch.observe([flat, other], [], []) for _ in range(3)]
    assert [[w.env for w in warnings] for warnings in found] == [[], [], ["a"]]
    assert "no group of 'a' had a signal in its last 3 steps" in found[2][0].text


@pytest.mark.parametrize("reward", [0.0, 1.0])
async def test_adv_09_a_run_of_constant_rewards_names_them_in_its_third_step(
    reward: float, autojump_clock: MockClock
) -> None:
    run = Simulation(
        config=replace(CONFIG, max_fruitless_steps=100),
        script=EnvScript(rewards=(reward,)),
        engine=FakeEngine(script=lambda prompt, sampling: []),
    )
    await run.run(4)
    told = [[(warning.name, warning.env) for warning in record.warnings] for record in run.records]
    assert told == [[], [], [("constant_rewards", "a")], []]
