"""Dynamic sampling: groups without a signal make room for others, are reported, and cannot keep a run busy for ever."""

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl_jax.controller.config import RolloutConfig
from agentrl_jax.controller.curriculum import CurriculumConfig
from agentrl_jax.controller.journal import read_history
from agentrl_jax.errors import ConfigError, NoProgressError
from agentrl_jax.seeding import derive_seed
from agentrl_jax.testing.engine import FakeEngine
from agentrl_jax.testing.envs import EnvScript
from agentrl_jax.testing.learner import FakeLearner
from agentrl_jax.testing.simulation import Simulation
from agentrl_jax.testing.virtual import run_virtual
from agentrl_jax.types import Group, Task
from tests.controller.journal_world import World, check, live
from tests.faults.invariants import check_invariants

CONFIG = RolloutConfig(group_size=2, min_groups_per_batch=3, max_staleness=1, dynamic_sampling=True)


def differing(share: float, config: RolloutConfig = CONFIG, **options: Any) -> Simulation:
    """Both members of a group fare alike, except in `share` of the tasks."""
    numbers = iter(range(10**9))

    def script(task: Task) -> EnvScript:
        has_signal = derive_seed(task.key) % 100 < 100 * share
        return EnvScript(rewards=(float(next(numbers) % 2 and has_signal),), step_s=1.0 + task.index % 3)

    engine = FakeEngine(script=lambda prompt, sampling: [])
    return Simulation(config=config, script=script, engine=engine, tasks_per_env=50, **options)


def groups_of(run: Simulation, kind: str) -> list[Group]:
    return [group for record in run.records for group in getattr(record, kind)]


def test_only_groups_with_a_signal_are_consumed() -> None:
    run = differing(0.5)
    result = run_virtual(lambda: run.run(12))
    check_invariants(run, result)
    assert all(group.has_signal for group in groups_of(run, "groups"))
    dropped = groups_of(run, "dropped")
    assert len(dropped) > 10
    assert not any(group.has_signal for group in dropped)
    assert sum(record.num_no_signal for record in run.records) == len(dropped)
    assert result.ledger.num_no_signal == result.ledger.num_dropped >= len(dropped)
    assert Counter(how for _, how in run.books.endings) == {"no_signal": result.ledger.num_no_signal}
    assert all(len(record.groups) >= CONFIG.min_groups_per_batch for record in run.records)


def test_a_curriculum_learns_from_dropped_groups_too() -> None:
    unsolved = CurriculumConfig(low=0.1, min_trials=1, outside_prob=0.0)
    run = differing(0.5, replace(CONFIG, curriculum=unsolved))
    run_virtual(lambda: run.run(40))
    dropped = Counter(group.task.key for group in groups_of(run, "dropped"))
    assert len(dropped) > 10
    assert set(dropped.values()) == {1}


def test_without_it_they_are_consumed_like_any_other() -> None:
    run = differing(0.5, replace(CONFIG, dynamic_sampling=False))
    result = run_virtual(lambda: run.run(12))
    check_invariants(run, result)
    assert any(not group.has_signal for group in groups_of(run, "groups"))
    assert (groups_of(run, "dropped"), result.ledger.num_no_signal) == ([], 0)


def test_a_synchronous_batch_is_refilled_at_once() -> None:
    run = differing(0.5, replace(CONFIG, max_staleness=0))
    result = run_virtual(lambda: run.run(6))
    check_invariants(run, result)
    assert [len(record.groups) for record in run.records] == [3] * 6
    assert {age for record in run.records for age in record.ages} == {0}


@pytest.mark.parametrize(
    ("reward", "advice"),
    [(0.0, "256 in a row.*0 groups above 0, 256 not.*solves some tasks"), (1.0, "256 groups above 0.*harder")],
)
def test_where_nothing_has_a_signal_the_run_ends_by_name(reward: float, advice: str) -> None:
    run = Simulation(
        config=CONFIG, script=EnvScript(rewards=(reward,)), engine=FakeEngine(script=lambda prompt, sampling: [])
    )
    pattern = advice.replace("256 in a row", "dynamic sampling dropped 256 groups in a row")
    with pytest.raises(NoProgressError, match=pattern):
        run_virtual(lambda: run.run(1000))
    assert run.records == []
    assert len(run.groups) <= 256 + CONFIG.num_permits
    check_invariants(run)


def test_the_bound_can_be_set_and_a_signal_starts_the_count_anew() -> None:
    numbers = iter(range(10**9))

    def script(task: Task) -> EnvScript:
        number = next(numbers)
        return EnvScript(rewards=(float(number % 2 and number // 2 % 5 == 4),))  # one group in five has a signal

    config = replace(CONFIG, max_staleness=0, min_groups_per_batch=1, max_no_signal_groups=5)
    run = Simulation(config=config, script=script, engine=FakeEngine(script=lambda prompt, sampling: []))
    result = run_virtual(lambda: run.run(10))
    assert result.ledger.num_no_signal == 40
    run = Simulation(
        config=replace(config, max_no_signal_groups=4),
        script=script,
        engine=FakeEngine(script=lambda prompt, sampling: []),
    )
    with pytest.raises(NoProgressError, match="dropped 4 groups in a row"):
        run_virtual(lambda: run.run(10))


def test_one_env_with_a_signal_keeps_the_run_going_and_the_other_is_named() -> None:
    numbers = iter(range(10**9))

    def script(task: Task) -> EnvScript:
        return EnvScript(rewards=(float(next(numbers) % 2),) if task.env == "a" else (0.0,))

    run = Simulation(
        config=replace(CONFIG, max_no_signal_groups=20),
        script=script,
        weights={"a": 1.0, "b": 1.0},
        engine=FakeEngine(script=lambda prompt, sampling: []),
    )
    result = run_virtual(lambda: run.run(20))
    check_invariants(run, result)
    warned = [(w.name, w.env) for record in run.records for w in record.warnings]
    assert warned[0] == ("no_signal", "b")
    assert len(warned) <= 3


@given(
    share=st.floats(0.2, 1.0),
    staleness=st.integers(0, 2),
    least=st.integers(1, 4),
    learn_s=st.sampled_from([0.0, 5.0]),
    schedule=st.random_module(),
)
@settings(max_examples=30)
def test_the_books_hold_under_every_schedule(
    share: float, staleness: int, least: int, learn_s: float, schedule: Any
) -> None:
    config = replace(CONFIG, max_staleness=staleness, min_groups_per_batch=least, max_no_signal_groups=10_000)
    run = differing(share, config, learner=FakeLearner(latency_s=lambda step: learn_s))
    result = run_virtual(lambda: run.run(5))
    check_invariants(run, result)
    assert all(group.has_signal for group in groups_of(run, "groups"))


@pytest.mark.parametrize("kill_after_s", [20, 45])
def test_a_dropped_task_is_not_lost_to_the_audit_and_not_played_again(kill_after_s: int, tmp_path: Path) -> None:
    world = World(tmp_path, replace(CONFIG, max_no_signal_groups=1000), seed=11, save_every=2)
    live(world, 1000, kill_after_s=kill_after_s)
    last = live(world, max(world.checkpoints) + 6)
    check(world, last)  # every drawn task is trained, open or ended for a reason
    history, _ = read_history(tmp_path)
    assert history.totals["no_signal"] > 3
    assert history.totals["dropped"] == 0
    assert history.totals["admitted"] == sum(
        history.totals[name] for name in ("trained", "no_signal", "cancelled", "reissued")
    ) + sum(entry.state != "consumed" for entry in history.groups.values())


def test_settings_without_effect_are_refused() -> None:
    with pytest.raises(ConfigError, match="no effect without dynamic_sampling"):
        RolloutConfig(group_size=2, min_groups_per_batch=1, max_no_signal_groups=10)
    with pytest.raises(ConfigError, match="max_no_signal_groups must be at least 1"):
        RolloutConfig(group_size=2, min_groups_per_batch=1, dynamic_sampling=True, max_no_signal_groups=0)
