"""HNG: hangs and deadlocks. Rows of the fault list that the controller decides, in virtual time."""

from dataclasses import replace

import pytest
import trio
from trio.testing import MockClock

from agentrl_jax.controller.config import RolloutConfig
from agentrl_jax.controller.evaluation import run_tasks
from agentrl_jax.controller.group import AdmittedGroup
from agentrl_jax.errors import NoProgressError
from agentrl_jax.testing.engine import FakeEngine
from agentrl_jax.testing.envs import EnvScript
from agentrl_jax.testing.learner import FakeLearner
from agentrl_jax.testing.simulation import SHORT_EPISODES, Simulation
from agentrl_jax.types import EpisodeEnd, Group, Task

CONFIG = RolloutConfig(group_size=2, min_groups_per_batch=2, max_staleness=1)


def obedient() -> FakeEngine:
    return FakeEngine(script=lambda prompt, sampling: [])


@pytest.mark.parametrize("error", [RuntimeError("bug"), SystemExit(3), KeyError("bug")])
async def test_hng_01_a_raising_task_ends_the_run_with_its_traceback(
    error: BaseException, autojump_clock: MockClock
) -> None:
    class Raising(Simulation):
        async def run_one_group(self, admitted: AdmittedGroup) -> Group:
            if admitted.group_id == 5:
                raise_from_a_deep_place(error)
            return await super().run_one_group(admitted)

    run = Raising(config=CONFIG, script=EnvScript(step_s=1.0), engine=obedient())
    with trio.fail_after(100.0), pytest.raises(type(error)) as caught:
        await run.run(1000)
    assert caught.value is error
    assert any(entry.name == "raise_from_a_deep_place" for entry in caught.traceback)
    assert run.log.num_open == 0
    assert trio.current_time() < 5.0


def raise_from_a_deep_place(error: BaseException) -> None:
    raise error


async def test_hng_09_one_cancelled_group_of_a_hundred_costs_only_itself(autojump_clock: MockClock) -> None:
    class Cancelling(Simulation):
        async def run_one_group(self, admitted: AdmittedGroup) -> Group:
            if admitted.group_id == 17:
                admitted.switch.trip()
            return await super().run_one_group(admitted)

    config = replace(CONFIG, min_groups_per_batch=33, max_groups_per_batch=33, max_staleness=0)
    run = Cancelling(config=config, script=EnvScript(step_s=1.0), engine=obedient())
    with trio.fail_after(100.0):
        result = await run.run(3)
    assert [len(record.groups) for record in run.records] == [33, 33, 33]
    assert (result.ledger.num_admitted, result.ledger.num_cancelled) == (100, 1)
    assert [group.group_id for record in run.records for group in record.cancelled] == [17]


async def test_hng_10_episodes_that_hang_free_their_slots_at_the_deadline(autojump_clock: MockClock) -> None:
    numbers = iter(range(100))

    def script(task: Task) -> EnvScript:
        return EnvScript(step_s=1.0, fault="hang" if next(numbers) in (2, 5) else "none", fault_at=1)

    run = Simulation(
        config=replace(CONFIG, group_size=8, min_groups_per_batch=1, max_staleness=0),
        script=script,
        engine=obedient(),
        episodes=replace(SHORT_EPISODES, env_deadline_s=60.0),
    )
    with trio.fail_after(100.0):
        await run.run(1)
    (group,) = run.records[0].groups
    ends = [trajectory.end for trajectory in group.trajectories]
    assert ends.count(EpisodeEnd.COMPLETED) == 6
    assert ends.count(EpisodeEnd.ENV_TIMEOUT) == 2
    assert trio.current_time() == 60.0
    assert run.log.num_open == 0


@pytest.mark.parametrize("max_staleness", [0, 1])
async def test_hng_13_the_smallest_config_still_rolls_out(max_staleness: int, autojump_clock: MockClock) -> None:
    config = RolloutConfig(group_size=2, min_groups_per_batch=1, max_staleness=max_staleness)
    assert config.num_permits >= 1
    with trio.fail_after(100.0):
        assert (await Simulation(config=config, engine=obedient()).run(3)).num_steps == 3


@pytest.mark.parametrize("max_staleness", [0, 1, 3])
@pytest.mark.parametrize("max_steps", [1, 2, 3])
@pytest.mark.parametrize("non_finite", [(), (0,), (2,)])
async def test_hng_19_the_last_step_waits_for_nothing_that_never_comes(
    max_staleness: int, max_steps: int, non_finite: tuple[int, ...], autojump_clock: MockClock
) -> None:
    run = Simulation(
        config=replace(CONFIG, max_staleness=max_staleness),
        script=EnvScript(step_s=3.0),
        engine=obedient(),
        learner=FakeLearner(latency_s=lambda step: 2.0, non_finite=non_finite),
    )
    with trio.fail_after(100.0):
        result = await run.run(max_steps)
    assert (result.num_steps, result.is_stopped) == (max_steps, False)
    assert result.admission.num_held == 0
    assert run.log.num_open == 0


async def test_hng_25_an_evaluation_with_a_failure_still_ends(autojump_clock: MockClock) -> None:
    def script(task: Task) -> EnvScript:
        return EnvScript(fault="error" if task.index == 4 else "none")

    run = Simulation(config=CONFIG, script=script, engine=obedient())
    tasks = [Task(env="a", split="eval", index=index, seed=0) for index in range(10)]
    with trio.fail_after(100.0):
        groups = await run_tasks(tasks, run.run_one_group, version=0, max_concurrent=3)
    ends = [group.trajectories[0].end for group in groups]
    assert (len(ends), ends.count(EpisodeEnd.COMPLETED), ends[4]) == (10, 9, EpisodeEnd.ENV_ERROR)


@pytest.mark.parametrize("max_staleness", [0, 1])
async def test_hng_27_a_filter_that_keeps_no_group_ends_the_run_by_name(
    max_staleness: int, autojump_clock: MockClock
) -> None:
    """Each filtered group gives its permit back at once, so that the next one can be admitted."""
    config = replace(CONFIG, max_staleness=max_staleness, dynamic_sampling=True, max_no_signal_groups=50)
    run = Simulation(config=config, script=EnvScript(rewards=(0.0,), step_s=1.0), engine=obedient())
    with trio.fail_after(100.0), pytest.raises(NoProgressError, match=r"dropped 50 groups in a row, .* one reward"):
        await run.run(100)
    assert 50 <= len(run.groups) <= 50 + config.num_permits
    assert (run.records, run.log.num_open) == ([], 0)


@pytest.mark.parametrize("max_staleness", [0, 1])
async def test_hng_27_groups_without_any_signal_end_the_run_by_name(
    max_staleness: int, autojump_clock: MockClock
) -> None:
    config = replace(CONFIG, max_staleness=max_staleness, max_fruitless_steps=5)
    run = Simulation(config=config, script=EnvScript(rewards=(0.0,)), engine=obedient())
    with trio.fail_after(100.0), pytest.raises(NoProgressError, match="no signal"):
        await run.run(100)
    assert len(run.records) == 5
