"""Evaluation accounts for every task, in order, under its own bound on concurrency."""

import pytest
import trio
from trio.testing import MockClock

from agentrl_jax.controller.config import RolloutConfig
from agentrl_jax.controller.evaluation import run_tasks
from agentrl_jax.testing.engine import FakeEngine
from agentrl_jax.testing.envs import EnvScript
from agentrl_jax.testing.simulation import Simulation
from agentrl_jax.types import Task

TASKS = [Task(env="a", split="eval", index=index, seed=0) for index in range(10)]
CONFIG = RolloutConfig(group_size=2, min_groups_per_batch=1)


async def test_groups_come_back_in_the_order_of_the_tasks(autojump_clock: MockClock) -> None:
    run = Simulation(
        config=CONFIG,
        script=lambda task: EnvScript(step_s=10.0 - task.index),
        engine=FakeEngine(script=lambda prompt, sampling: []),
    )
    groups = await run_tasks(TASKS, run.run_one_group, version=3, max_concurrent=4)
    assert [group.task for group in groups] == TASKS
    assert {group.start_version for group in groups} == {3}
    assert run.log.peak_open == 4 * CONFIG.group_size
    assert 55 / 4 <= trio.current_time() < 55
    assert run.log.num_open == 0


async def test_a_bug_ends_the_evaluation_as_itself(autojump_clock: MockClock) -> None:
    async def broken(admitted: object) -> object:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await run_tasks(TASKS[:1], broken, version=0, max_concurrent=1)  # type: ignore[arg-type]
