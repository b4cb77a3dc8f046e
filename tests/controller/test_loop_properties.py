"""What holds for the training loop under every schedule, latency, fault and straggler rule."""

from dataclasses import dataclass, replace
from typing import Any

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl_jax.controller.config import RolloutConfig
from agentrl_jax.controller.curriculum import CurriculumConfig
from agentrl_jax.controller.episode import EpisodeConfig
from agentrl_jax.controller.ports import LoopResult
from agentrl_jax.engines.pool import PoolConfig
from agentrl_jax.errors import NoProgressError
from agentrl_jax.seeding import derive_seed
from agentrl_jax.testing.engine import FakeEngine
from agentrl_jax.testing.envs import EnvScript
from agentrl_jax.testing.learner import FakeLearner
from agentrl_jax.testing.simulation import Simulation
from agentrl_jax.testing.virtual import run_virtual
from agentrl_jax.types import Task
from tests.faults.invariants import check_invariants

CLOSE_DEADLINE_S = 3.0
EPISODES = EpisodeConfig(
    max_turns=3,
    max_new_tokens=6,
    max_context_tokens=400,
    reset_deadline_s=50.0,
    env_deadline_s=50.0,
    wall_budget_s=200.0,
    close_deadline_s=CLOSE_DEADLINE_S,
)


@dataclass(frozen=True)
class Scenario:
    config: RolloutConfig
    seed: int
    num_steps: int
    slow_factor: float
    fault_percent: int
    learn_s: float
    publish_s: float
    non_finite: frozenset[int]
    without_signal: frozenset[int]
    engines: str
    num_places: int | None


@st.composite
def configs(draw: st.DrawFn) -> RolloutConfig:
    least = draw(st.integers(1, 3))
    bounds = st.one_of(st.none(), st.integers(0, 3))
    return RolloutConfig(
        group_size=2,
        min_groups_per_batch=least,
        max_groups_per_batch=draw(st.one_of(st.none(), st.integers(least, least + 2))),
        max_staleness=draw(st.integers(0, 3)),
        task_max_staleness={env: k for env in ("fast", "slow") if (k := draw(bounds)) is not None},
        stragglers=draw(st.sampled_from(["wait", "cancel"])),
        max_consecutive_failures=1000,
        dynamic_sampling=draw(st.sampled_from([False, False, True])),
        curriculum=draw(st.sampled_from([CurriculumConfig(), CurriculumConfig(low=0.1, high=0.9, min_trials=1)])),
    )


scenarios = st.builds(
    Scenario,
    config=configs(),
    seed=st.integers(0, 2**20),
    num_steps=st.integers(1, 6),
    slow_factor=st.sampled_from([1.0, 20.0]),
    fault_percent=st.sampled_from([0, 20, 60]),
    learn_s=st.sampled_from([0.0, 2.0, 30.0]),
    publish_s=st.sampled_from([0.0, 1.0, 25.0]),
    non_finite=st.frozensets(st.integers(0, 5), max_size=2),
    without_signal=st.frozensets(st.integers(0, 5), max_size=2),
    engines=st.sampled_from(["c", "cc", "cl", "ccll"]),
    num_places=st.sampled_from([None, 1, 3]),
)


def simulation(scenario: Scenario) -> Simulation:
    numbers = iter(range(10**9))

    def engine(number: int, pool: Any) -> FakeEngine:
        return FakeEngine(
            name=f"{pool}-{number}",
            pool=pool,
            token_latency=lambda session, sampling: sampling.seed % 5 * 0.1,
            publish_s=scenario.publish_s,
            fails=lambda session, sampling: sampling.seed % 97 == 0,
        )

    def script(task: Task) -> EnvScript:
        draw = derive_seed(scenario.seed, task.key)
        faulty = draw % 100 < scenario.fault_percent
        is_solved = draw // 7 % 2 ^ (
            draw // 29 % 3 == 0 and next(numbers) % 2
        )  # members differ in a third of the tasks
        return EnvScript(
            rewards=(0.0,) * (draw // 100 % 3) + (float(is_solved),),
            reset_s=draw // 11 % 3,
            step_s=(1 + draw // 13 % 4) * (scenario.slow_factor if task.env == "slow" else 1.0),
            close_s=draw // 17 % 5,  # may break its deadline
            fault=(("error", "hang")[draw // 19 % 2]) if faulty else "none",
            fault_at=draw // 23 % 3,
        )

    pools = ["lagging" if letter == "l" else "current" for letter in scenario.engines]
    first, *others = [engine(number, pool) for number, pool in enumerate(pools)]
    lagging_prob = 0.3 if "l" in scenario.engines else 0.0
    return Simulation(
        config=scenario.config,
        script=script,
        weights={"fast": 2.0, "slow": 1.0},
        episodes=EPISODES,
        engine=first,
        other_engines=others,
        cross_policy=PoolConfig(lagging_prob=lagging_prob, lagging_period=3)
        if lagging_prob
        else PoolConfig(lagging_prob=0.0),
        num_places=scenario.num_places,
        learner=FakeLearner(
            latency_s=lambda step: scenario.learn_s,
            non_finite=scenario.non_finite,
            without_signal=scenario.without_signal,
        ),
        tasks_per_env=30,
        seed=scenario.seed,
    )


def check_result(run: Simulation, result: LoopResult) -> None:
    check_invariants(run, result)
    assert result.ledger.num_admitted == result.next_group_id
    assert run.log.peak_open <= run.config.num_permits * run.config.group_size  # never more than the permits allow


def check_records(run: Simulation) -> None:
    for record in run.records:
        groups = record.groups
        assert run.config.min_groups_per_batch <= len(groups) <= run.config.batch_capacity
        bounds = [run.config.staleness_bound(group.task.env) for group in groups]
        due = [(g.start_version + bound, g.group_id) for g, bound in zip(groups, bounds, strict=True)]
        assert due == sorted(due)
        assert not run.config.dynamic_sampling or all(group.has_signal for group in groups)


def check_versions(run: Simulation, scenario: Scenario) -> None:
    version = 0
    for step, record in enumerate(run.records):
        assert record.version == run.learner.calls[step].version == version
        assert record.is_finite == (step not in scenario.non_finite)
        assert record.is_applied == (record.is_finite and step not in scenario.without_signal)
        version += record.is_applied
    engines = (run.engine, *run.other_engines)
    assert {engine.version for engine in engines if engine.pool == "current"} == {version}
    assert {engine.version for engine in engines if engine.pool == "lagging"} <= {version // 3 * 3}


@given(scenario=scenarios, schedule=st.random_module())
@settings(max_examples=100)
def test_bounds_and_books_hold_under_every_schedule(scenario: Scenario, schedule: Any) -> None:
    run = simulation(scenario)
    result = run_virtual(lambda: run.run(scenario.num_steps))
    assert result.num_steps == len(run.records) == scenario.num_steps
    assert not result.is_stopped
    check_result(run, result)
    check_records(run)
    check_versions(run, scenario)


@given(scenario=scenarios, stop_s=st.integers(0, 120), schedule=st.random_module())
@settings(max_examples=40)
def test_a_stop_ends_everything_within_a_bound(scenario: Scenario, stop_s: int, schedule: Any) -> None:
    run = simulation(scenario)

    async def main() -> tuple[LoopResult, float]:
        stop = trio.Event()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(set_later, stop, stop_s)
            result = await run.run(1000, stop=stop)
            nursery.cancel_scope.cancel()
        return result, trio.current_time()

    async def set_later(stop: trio.Event, seconds: float) -> None:
        await trio.sleep(seconds)
        stop.set()

    result, now = run_virtual(main)
    assert result.is_stopped
    # The running step, then one session and one engine release per episode, side by side.
    assert now <= stop_s + scenario.learn_s + scenario.publish_s + 2 * CLOSE_DEADLINE_S + 1e-6
    check_result(run, result)
    check_records(run)


@given(scenario=scenarios, at=st.integers(0, 5), schedule=st.random_module())
@settings(max_examples=15)
def test_a_failing_learner_ends_the_run_as_itself(scenario: Scenario, at: int, schedule: Any) -> None:
    run = simulation(scenario)
    run.learner.error, run.learner.error_at = ZeroDivisionError("learner"), min(at, scenario.num_steps - 1)
    with pytest.raises(ZeroDivisionError, match="learner"):
        run_virtual(lambda: run.run(scenario.num_steps))
    assert run.log.num_open == run.log.num_closed_again == 0


@given(config=configs(), schedule=st.random_module())
@settings(max_examples=15)
def test_a_run_in_which_everything_fails_ends_by_name(config: RolloutConfig, schedule: Any) -> None:
    config = replace(config, max_consecutive_failures=20)
    run = Simulation(config=config, script=EnvScript(fault="error"), weights={"fast": 1.0, "slow": 1.0})
    with pytest.raises(NoProgressError, match="20 groups in a row"):
        run_virtual(lambda: run.run(3))
    assert run.num_started <= 2 * 20 + config.num_permits  # failures count by env
    assert run.log.num_open == 0
