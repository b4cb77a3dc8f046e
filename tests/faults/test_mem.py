"""MEM: what a long run keeps. Rows of the fault list that the controller decides."""

import pytest
import trio
from trio.testing import MockClock

from agentrl_jax.controller.config import RolloutConfig
from agentrl_jax.testing.engine import FakeEngine
from agentrl_jax.testing.envs import EnvScript
from agentrl_jax.testing.simulation import Simulation
from agentrl_jax.types import Task


@pytest.mark.parametrize("max_staleness", [1])
async def test_mem_09_a_thousand_groups_with_a_failed_member_leave_nothing(
    max_staleness: int, autojump_clock: MockClock
) -> None:
    numbers = iter(range(10**6))

    def script(task: Task) -> EnvScript:
        return EnvScript(fault="error" if next(numbers) % 8 == 7 else "none", fault_at=1)

    run = Simulation(
        config=RolloutConfig(
            group_size=8, min_groups_per_batch=20, max_groups_per_batch=20, max_staleness=max_staleness
        ),
        script=script,
        engine=FakeEngine(script=lambda prompt, sampling: []),
    )
    result = await run.run(50)
    assert result.ledger.num_consumed == 1000
    assert (result.ledger.num_live, result.ledger.num_complete, result.admission.num_held) == (0, 0, 0)
    assert all(len(record.open_tasks) <= run.config.num_permits for record in run.records)
    assert run.engine.sessions == frozenset()
    assert trio.current_time() == 0.0
