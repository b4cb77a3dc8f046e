"""The collector is calm within its block, and afterwards as it was; episodes leave it nothing to find."""

import gc

import pytest

from agentrl_jax.controller.collector import calm_collector
from agentrl_jax.controller.config import RolloutConfig
from agentrl_jax.testing.envs import EnvScript
from agentrl_jax.testing.simulation import Simulation
from agentrl_jax.testing.virtual import run_virtual


def fail_in_a_calm_block() -> None:
    with calm_collector():
        assert gc.get_freeze_count() > 1000
        assert gc.get_threshold()[1] > 100
        assert gc.isenabled()
        raise ValueError("inside")


def test_the_block_freezes_and_restores() -> None:
    before = gc.get_threshold()
    with pytest.raises(ValueError, match="inside"):
        fail_in_a_calm_block()
    assert gc.get_threshold() == before
    assert gc.get_freeze_count() == 0


def num_unreachable(num_steps: int) -> int:
    """Objects that only the collector could free, after a run of 8 episodes a step. Some are of the loop itself."""
    run = Simulation(
        config=RolloutConfig(group_size=4, min_groups_per_batch=2, max_staleness=1),
        script=EnvScript(rewards=(0.0, 0.0, 1.0), step_s=0.1),
    )
    gc.collect()
    gc.disable()
    try:
        run_virtual(lambda: run.run(num_steps))
        return gc.collect()
    finally:
        gc.enable()


def test_episodes_leave_no_cycles() -> None:
    few, many = num_unreachable(2), num_unreachable(22)
    assert many - few < 160  # episodes more: not one object each
