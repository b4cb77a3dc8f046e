"""CON: the mix of fast and slow tasks, and what slow ones cost. Rows of the fault list that tasks and places decide."""

from collections import Counter
from dataclasses import dataclass, replace
from statistics import median

import pytest
import trio

from agentrl_jax.controller.config import RolloutConfig
from agentrl_jax.seeding import derive_seed
from agentrl_jax.testing.engine import FakeEngine
from agentrl_jax.testing.envs import EnvScript
from agentrl_jax.testing.learner import FakeLearner
from agentrl_jax.testing.simulation import Simulation
from agentrl_jax.testing.virtual import run_virtual
from tests.faults.invariants import check_invariants

CONFIG = RolloutConfig(group_size=2, min_groups_per_batch=8, max_groups_per_batch=8, max_staleness=1)


@dataclass
class Mixed:
    """What a run of a fast task a (1 s) and a slow task b (20 s) came to."""

    run: Simulation
    seconds: float

    @property
    def groups_per_s(self) -> float:
        return sum(len(record.groups) for record in self.run.records) / self.seconds

    @property
    def groups_per_s_without_waits(self) -> float:
        return sum(len(record.groups) for record in self.run.records) / (self.seconds - self.waited_s)

    @property
    def waited_s(self) -> float:
        return sum(record.timings.straggler_wait_s.get("b", 0.0) for record in self.run.records)

    @property
    def share_of_b(self) -> float:
        envs = Counter(group.task.env for record in self.run.records for group in record.groups)
        return envs["b"] / envs.total()

    @property
    def warned(self) -> set[tuple[str, str]]:
        return {(w.name, w.env) for record in self.run.records for w in record.warnings if w.name != "constant_rewards"}


def train(config: RolloutConfig, num_steps: int = 60, weight_of_a: float = 3.0, slow_s: float = 20.0) -> Mixed:
    run = Simulation(
        config=config,
        script=lambda task: EnvScript(step_s=slow_s if task.env == "b" else 1.0),
        weights={"a": weight_of_a, "b": 1.0},
        engine=FakeEngine(script=lambda prompt, sampling: []),
        learner=FakeLearner(latency_s=lambda step: 2.0),
        tasks_per_env=50,
    )

    async def main() -> float:
        result = await run.run(num_steps)
        check_invariants(run, result)
        return trio.current_time()

    return Mixed(run, run_virtual(main))


@pytest.mark.parametrize("weight_of_a", [1.0, 3.0])
@pytest.mark.parametrize("bounds", [{}, {"b": 20}])
def test_con_10_a_task_twenty_times_slower_keeps_its_share(bounds: dict[str, int], weight_of_a: float) -> None:
    mixed = train(replace(CONFIG, task_max_staleness=bounds), num_steps=120, weight_of_a=weight_of_a)
    assert mixed.share_of_b * (1 + weight_of_a) == pytest.approx(1.0, rel=0.05)
    assert mixed.warned == set()


def test_con_10_with_a_bound_of_its_own_it_keeps_its_share_and_the_pace_too() -> None:
    waiting, eager = (train(replace(CONFIG, task_max_staleness=bounds)) for bounds in ({}, {"b": 20}))
    for mixed in (waiting, eager):
        assert abs(mixed.share_of_b - 0.25) < 0.05
    assert eager.groups_per_s >= 0.8 * eager.groups_per_s_without_waits
    assert waiting.groups_per_s < 0.5 * waiting.groups_per_s_without_waits
    assert eager.groups_per_s > 1.5 * waiting.groups_per_s


@pytest.mark.parametrize(("weight_of_a", "max_staleness"), [(3.0, 3), (9.0, 7)])
def test_con_10_where_permits_suffice_a_slow_task_costs_less_than_a_fifth(
    weight_of_a: float, max_staleness: int
) -> None:
    """Of the throughput with a task as fast as the other. What is in flight needs permits: with b in 20 s and a share
    of a quarter (0.75 × 5 s + 0.25 × 24 s) × 4 groups a second, where CONFIG has 16."""
    roomy = replace(CONFIG, max_staleness=max_staleness, task_max_staleness={"b": 20})
    slow, fast = (train(roomy, weight_of_a=weight_of_a, slow_s=seconds) for seconds in (20.0, 1.0))
    assert abs(slow.share_of_b - 1 / (1 + weight_of_a)) < 0.05
    assert slow.groups_per_s >= 0.8 * fast.groups_per_s


def test_con_10_cancelled_stragglers_are_reported_and_warned_about() -> None:
    mixed = train(replace(CONFIG, stragglers="cancel"))
    cancelled = [group for record in mixed.run.records for group in record.cancelled]
    assert len(cancelled) > 20
    assert {group.task.env for group in cancelled} == {"b"}
    assert mixed.warned == {("cancelled", "b")}
    texts = [w.text for record in mixed.run.records for w in record.warnings if w.name == "cancelled"]
    assert "groups of 'b' were cancelled, after" in texts[0]
    assert len(texts) < 10  # not at every step
    assert mixed.waited_s == 0.0


def synchronous(num_places: int, is_fair: bool) -> tuple[float, Counter[str]]:
    """Seconds, and the mix, of a synchronous run with fewer places than groups, its slow tasks drawn last."""
    run = Simulation(
        config=replace(CONFIG, max_groups_per_batch=None, min_groups_per_batch=12, max_staleness=0),
        script=lambda task: EnvScript(step_s=20.0 if task.env == "b" else 2.0 + derive_seed(task.key) % 5),
        weights={"a": 5.0, "b": 1.0},
        engine=FakeEngine(script=lambda prompt, sampling: []),
        num_places=num_places,
        tasks_per_env=50,
    )
    if not is_fair:  # places in the order of asking
        places = run.places
        assert places is not None
        places._next = lambda: min(  # type: ignore[method-assign]
            (waiting[0] for waiting in places._waiting.values()), key=lambda asked: asked.number
        )

    async def main() -> float:
        check_invariants(run, await run.run(20))
        return trio.current_time()

    seconds = run_virtual(main)
    return seconds, Counter(group.task.env for record in run.records for group in record.groups)


def test_con_11_places_by_weight_and_time_raise_utilisation_and_leave_the_mix() -> None:
    gains = []
    for num_places in (3, 4, 5):
        (fair_s, fair_mix), (plain_s, plain_mix) = (synchronous(num_places, is_fair) for is_fair in (True, False))
        assert fair_mix == plain_mix == {"a": 200, "b": 40}
        gains.append(plain_s / fair_s)
    assert min(gains) >= 1.0
    assert median(gains) > 1.1


@pytest.mark.parametrize("size", [4, 8])
def test_con_12_a_weight_below_one_group_a_batch_is_kept_in_the_long_run(size: int) -> None:
    config = replace(CONFIG, min_groups_per_batch=size, max_groups_per_batch=size, max_staleness=0)
    run = Simulation(
        config=config, weights={"a": 0.99, "b": 0.01}, engine=FakeEngine(script=lambda prompt, sampling: [])
    )
    run_virtual(lambda: run.run(400 // size))
    envs = [Counter(group.task.env for group in record.groups) for record in run.records]
    assert sum(env["b"] for env in envs) == 4
    assert max(env["b"] for env in envs) == 1
