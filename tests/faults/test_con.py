"""CON: concurrency between fast and slow tasks. Rows of the fault list that the controller decides."""

from collections import Counter
from dataclasses import replace

import pytest
import trio

from agentrl_jax.controller.config import RolloutConfig
from agentrl_jax.controller.ports import LoopResult
from agentrl_jax.testing.engine import FakeEngine
from agentrl_jax.testing.envs import EnvScript
from agentrl_jax.testing.learner import FakeLearner
from agentrl_jax.testing.simulation import Simulation
from agentrl_jax.testing.virtual import run_virtual

CONFIG = RolloutConfig(group_size=2, min_groups_per_batch=4, max_staleness=1)


def train(config: RolloutConfig, num_steps: int, weight_of_a: float) -> tuple[Simulation, LoopResult, float]:
    """Task a takes 1 s, task b 20 s and has weight 1; a step takes 2 s."""
    run = Simulation(
        config=config,
        script=lambda task: EnvScript(step_s=20.0 if task.env == "b" else 1.0),
        weights={"a": weight_of_a, "b": 1.0},
        engine=FakeEngine(script=lambda prompt, sampling: []),
        learner=FakeLearner(latency_s=lambda step: 2.0),
    )

    async def main() -> tuple[LoopResult, float]:
        return await run.run(num_steps), trio.current_time()

    result, seconds = run_virtual(main)
    return run, result, seconds


def share_of_b(run: Simulation) -> float:
    envs = Counter(group.task.env for record in run.records for group in record.groups)
    return envs["b"] / envs.total()


def waits_of(run: Simulation) -> Counter[str]:
    waits: Counter[str] = Counter()
    for record in run.records:
        waits.update(record.timings.straggler_wait_s)
    return waits


@pytest.mark.parametrize("bounds", [{}, {"b": 4}])
@pytest.mark.parametrize("weight_of_a", [1.0, 3.0])
def test_con_10_a_slow_task_keeps_its_share(bounds: dict[str, int], weight_of_a: float) -> None:
    run, result, _ = train(replace(CONFIG, task_max_staleness=bounds), 100, weight_of_a)
    assert abs(share_of_b(run) - 1 / (1 + weight_of_a)) < 0.05
    assert result.ledger.num_dropped == 0


def test_con_10_the_wait_is_reported_where_it_comes_from_and_a_wider_bound_spares_it() -> None:
    waiting, result, seconds = train(CONFIG, 100, 3.0)
    eager, eager_result, eager_seconds = train(replace(CONFIG, task_max_staleness={"b": 4}), 100, 3.0)
    assert waits_of(waiting)["a"] == waits_of(eager)["a"] == 0.0
    assert waits_of(waiting)["b"] > 5 * waits_of(eager)["b"]
    assert eager_result.ledger.num_consumed / eager_seconds >= result.ledger.num_consumed / seconds


def test_con_10_cancelling_stragglers_starves_the_slow_task_and_says_so() -> None:
    run, result, _ = train(replace(CONFIG, stragglers="cancel"), 100, 3.0)
    cancelled = Counter(group.task.env for record in run.records for group in record.cancelled)
    assert share_of_b(run) < 0.05
    assert cancelled["a"] == 0
    assert cancelled["b"] > 20
    assert waits_of(run).total() == 0.0
    assert result.ledger.num_admitted == result.ledger.num_consumed + result.ledger.num_cancelled
