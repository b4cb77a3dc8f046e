"""The training loop by example: last steps, stops, failures, records, and what asynchrony buys."""

from dataclasses import replace

import pytest
import trio
from trio.testing import MockClock

from agentrl_jax.controller.config import RolloutConfig
from agentrl_jax.controller.ports import LoopResult, StepOutcome
from agentrl_jax.errors import ConfigError, EngineError, NoProgressError
from agentrl_jax.seeding import derive_seed
from agentrl_jax.testing.engine import FakeEngine, constant_latency
from agentrl_jax.testing.envs import EnvScript
from agentrl_jax.testing.learner import FakeLearner
from agentrl_jax.testing.simulation import Simulation
from agentrl_jax.testing.virtual import run_virtual
from agentrl_jax.types import EpisodeEnd, Group, Task

SYNC = RolloutConfig(group_size=2, min_groups_per_batch=2, max_staleness=0)
ASYNC = replace(SYNC, max_staleness=1)


def uneven(task: Task) -> EnvScript:
    """Episodes of 1 to 20 seconds."""
    return EnvScript(step_s=1 + derive_seed(task.key) % 20)


@pytest.mark.parametrize("config", [SYNC, ASYNC])
async def test_a_run_of_no_steps_is_over_at_once(config: RolloutConfig, autojump_clock: MockClock) -> None:
    result = await Simulation(config=config).run(0)
    assert (result.num_steps, result.version, result.is_stopped) == (0, 0, False)


async def test_after_the_last_step_nothing_new_is_admitted(autojump_clock: MockClock) -> None:
    run = Simulation(config=SYNC)
    result = await run.run(3)
    assert result.ledger.num_admitted == result.ledger.num_consumed == 6
    assert (result.version, result.next_group_id, result.open_tasks) == (3, 6, ())


async def test_records_tell_versions_ages_and_times(autojump_clock: MockClock) -> None:
    run = Simulation(
        config=SYNC,
        script=EnvScript(step_s=4.0),
        engine=FakeEngine(version=7, script=lambda prompt, sampling: [], publish_s=2.0),
        learner=FakeLearner(latency_s=lambda step: 3.0),
    )
    result = await run.run(2, initial_version=7)
    assert result.version == run.engine.version == 9
    assert [(r.step, r.version, r.is_finite, r.ages) for r in run.records] == [
        (0, 7, True, (0, 0)),
        (1, 8, True, (0, 0)),
    ]
    for record in run.records:
        assert (record.timings.collect_s, record.timings.learn_s, record.timings.publish_s) == (4.0, 3.0, 2.0)
        assert record.ends == {EpisodeEnd.COMPLETED: 4}
        assert record.open_tasks == ()
    assert [record.metrics for record in run.records] == [{"fake/step": 0.0}, {"fake/step": 1.0}]
    assert trio.current_time() == 18.0


async def test_a_step_without_a_signal_consumes_its_groups_and_keeps_the_version(autojump_clock: object) -> None:
    solved = replace(SYNC, max_fruitless_steps=2)
    run = Simulation(config=solved, learner=FakeLearner(without_signal={0, 1, 2}))
    result = await run.run(4)
    assert [record.version for record in run.records] == [0, 0, 0, 0]
    assert [record.is_applied for record in run.records] == [False, False, False, True]
    assert all(record.is_finite for record in run.records)
    assert result.version == run.engine.version == 1
    assert result.ledger.num_consumed == sum(len(record.groups) for record in run.records)


async def test_steps_that_are_not_finite_publish_nothing(autojump_clock: MockClock) -> None:
    run = Simulation(config=SYNC, learner=FakeLearner(non_finite={0, 2}))
    result = await run.run(4)
    assert [call.version for call in run.learner.calls] == [0, 0, 1, 1]
    assert (result.version, run.engine.statistics().num_publishes) == (2, 2)
    assert result.ledger.num_consumed == 8  # their groups are consumed all the same


async def test_zero_staleness_means_every_token_has_the_learners_version(autojump_clock: MockClock) -> None:
    run = Simulation(
        config=SYNC,
        script=lambda task: EnvScript(step_s=task.index, fault="error" if task.index % 3 == 1 else "none"),
        engine=FakeEngine(token_latency=constant_latency(0.5), publish_s=9.0),
        learner=FakeLearner(latency_s=lambda step: 9.0),
    )
    await run.run(5)
    assert sum(len(record.dropped) for record in run.records) > 0
    for record in run.records:
        turns = [turn for group in record.groups for t in group.trajectories for turn in t.turns]
        assert {int(version) for turn in turns for version in turn.completion.versions} == {record.version}


async def test_a_stop_while_learning_finishes_the_step(autojump_clock: MockClock) -> None:
    run = Simulation(config=ASYNC, script=EnvScript(step_s=5.0), learner=FakeLearner(latency_s=lambda step: 10.0))
    stop = trio.Event()
    async with trio.open_nursery() as nursery:

        async def stop_later() -> None:
            await trio.sleep(8.0)
            stop.set()

        nursery.start_soon(stop_later)
        result = await run.run(100, stop=stop)
    assert (result.num_steps, result.version, result.is_stopped) == (1, 1, True)
    assert trio.current_time() == 15.0
    assert run.records[0].version == 0


@pytest.mark.parametrize("cancelled_at_s", [5.0, 8.0])
async def test_a_step_that_was_learnt_counts_though_the_run_is_cut_off(
    autojump_clock: MockClock, cancelled_at_s: float
) -> None:
    """Its params are the learner's: if it did not count, nothing could be saved any more."""

    class Threaded(FakeLearner):
        async def step(self, groups: tuple[Group, ...], version: int) -> StepOutcome:
            outcomes = []
            with trio.CancelScope(shield=True):  # as a thread's
                outcomes.append(await super().step(groups, version))
            return outcomes[0]

    run = Simulation(
        config=SYNC,
        script=EnvScript(step_s=4.0),
        engine=FakeEngine(script=lambda prompt, sampling: [], publish_s=2.0),
        learner=Threaded(latency_s=lambda step: 3.0),
    )
    with trio.move_on_at(cancelled_at_s):
        await run.run(9)
    assert trio.current_time() == max(cancelled_at_s, 7.0)
    assert [(record.step, record.version, record.is_applied) for record in run.records] == [(0, 0, True)]
    assert run.engine.version == 0


async def test_a_step_that_was_learnt_counts_though_its_publish_fails(autojump_clock: MockClock) -> None:
    run = Simulation(config=SYNC)

    async def publish(version: int) -> None:
        raise EngineError("gone")

    run.publish = publish  # type: ignore[method-assign]
    with pytest.RaisesGroup(pytest.RaisesExc(EngineError, match="gone"), flatten_subgroups=True, allow_unwrapped=True):
        await run.run(9)
    assert [(record.step, record.version) for record in run.records] == [(0, 0)]


async def test_a_stop_while_collecting_ends_at_once(autojump_clock: MockClock) -> None:
    run = Simulation(config=ASYNC, script=EnvScript(step_s=50.0))
    stop = trio.Event()
    async with trio.open_nursery() as nursery:

        async def stop_later() -> None:
            await trio.sleep(8.0)
            stop.set()

        nursery.start_soon(stop_later)
        result = await run.run(100, stop=stop)
    assert (result.num_steps, result.is_stopped, trio.current_time()) == (0, True, 8.0)
    assert len(result.open_tasks) == ASYNC.num_permits  # to be issued again by a run that resumes
    assert run.log.num_open == 0


async def test_a_resumed_run_issues_again_what_was_in_flight(autojump_clock: MockClock) -> None:
    first = Simulation(config=ASYNC, script=uneven)
    sampler = first.sampler()
    result = await first.run(3, sampler=sampler)
    resumed = first.sampler()
    resumed.restore(sampler.state())
    resumed.requeue(result.open_tasks)
    upcoming = [resumed.draw() for _ in range(6)]
    consumed = [group.task for record in first.records for group in record.groups]
    unbroken = first.sampler()
    issued = [unbroken.draw() for _ in range(len(consumed) + len(upcoming))]
    # Every task once, whether it was consumed before or came again.
    assert sorted(t.key for t in (*consumed, *upcoming)) == sorted(t.key for t in issued)


async def test_nothing_but_failures_ends_the_run_by_name(autojump_clock: MockClock) -> None:
    run = Simulation(config=replace(SYNC, max_fruitless_steps=3), script=EnvScript(rewards=(0.0,)))
    run.engine = FakeEngine(script=lambda prompt, sampling: [])
    with pytest.raises(NoProgressError, match="3 steps in a row taught nothing"):
        await run.run(100)
    assert len(run.records) == 3  # the last one is told too


async def test_solved_tasks_are_no_failure(autojump_clock: MockClock) -> None:
    run = Simulation(config=replace(SYNC, max_fruitless_steps=3), script=EnvScript(rewards=(1.0,)))
    assert (await run.run(10)).num_steps == 10


async def test_a_learner_that_is_never_finite_ends_the_run_by_name(autojump_clock: MockClock) -> None:
    run = Simulation(config=replace(SYNC, max_fruitless_steps=3), learner=FakeLearner(non_finite=range(100)))
    with pytest.raises(NoProgressError, match="did not give a finite step"):
        await run.run(100)


async def test_a_bound_for_an_unknown_env_is_refused(autojump_clock: MockClock) -> None:
    run = Simulation(config=replace(SYNC, task_max_staleness={"typo": 3}))
    with pytest.raises(ConfigError, match="typo"):
        await run.run(1)
    assert run.num_started == 0


async def test_an_exception_of_the_hook_ends_the_run(autojump_clock: MockClock) -> None:
    class Raising(Simulation):
        async def on_step(self, record: object) -> None:
            raise OSError("disk full")

    run = Raising(config=ASYNC, script=EnvScript(step_s=5.0))
    with pytest.raises(OSError, match="disk full"):
        await run.run(3)
    assert run.log.num_open == 0


def throughput(config: RolloutConfig) -> float:
    """Groups per virtual second, rollout and learner being about equally slow."""
    run = Simulation(config=config, script=uneven, learner=FakeLearner(latency_s=lambda step: 15.0), tasks_per_env=50)

    async def main() -> tuple[LoopResult, float]:
        return await run.run(20), trio.current_time()

    result, seconds = run_virtual(main)
    return result.ledger.num_consumed / seconds


def test_asynchrony_pays() -> None:
    sync, one_step, two_steps = (throughput(replace(SYNC, max_staleness=k)) for k in (0, 1, 2))
    assert one_step > 1.5 * sync
    assert two_steps > one_step


async def test_waiting_for_places_makes_no_group_older(autojump_clock: MockClock) -> None:
    """One place, groups of 2 s, steps of 1.5 s: six groups are admitted at a time, and one runs. The bound is 5."""
    run = Simulation(
        config=RolloutConfig(group_size=2, min_groups_per_batch=1, max_staleness=5),
        script=EnvScript(rewards=(1.0,), step_s=2.0),
        learner=FakeLearner(latency_s=lambda step: 1.5),
        num_places=1,
    )
    await run.run(12)
    assert max(age for record in run.records for age in record.ages) <= 2
    assert all(not record.timings.straggler_wait_s for record in run.records)
    later = {group.group_id: group.start_version for group in run.groups if group.start_version}
    assert later.items() <= run.books.start_versions.items()
    assert len(later) >= 8
