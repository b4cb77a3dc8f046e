"""GRP: groups, invalid members, and what a failure may teach. Rows of the fault list that the controller decides."""

from collections import Counter
from dataclasses import replace

import pytest
import trio
from trio.testing import MockClock

from agentrl_jax.controller.config import RolloutConfig
from agentrl_jax.controller.episode import EpisodeConfig
from agentrl_jax.controller.group import AdmittedGroup
from agentrl_jax.errors import NoProgressError
from agentrl_jax.seeding import derive_seed
from agentrl_jax.testing.engine import FakeEngine, constant_latency
from agentrl_jax.testing.envs import EnvScript
from agentrl_jax.testing.simulation import SHORT_EPISODES, Simulation
from agentrl_jax.types import EpisodeEnd, Group, Task
from tests.faults.invariants import check_invariants

CONFIG = RolloutConfig(group_size=8, min_groups_per_batch=2, max_consecutive_failures=10)


def obedient(**options: object) -> FakeEngine:
    return FakeEngine(script=lambda prompt, sampling: [], **options)  # type: ignore[arg-type]


def ends_of(group: Group) -> Counter[EpisodeEnd]:
    return Counter(trajectory.end for trajectory in group.trajectories)


def failing_sessions(*, every: int) -> type[Simulation]:
    """A simulation in which one session in `every` fails at its first step."""

    class OneFails(Simulation):
        async def run_one_group(self, admitted: AdmittedGroup) -> Group:
            numbers = iter(range(self.config.group_size))
            self.script = lambda task: EnvScript(
                fault="error" if next(numbers) % every == every - 1 else "none", fault_at=1
            )
            return await super().run_one_group(admitted)

    return OneFails


async def test_grp_01_one_failing_member_of_eight_closes_its_group(autojump_clock: MockClock) -> None:
    run = failing_sessions(every=8)(config=CONFIG, engine=obedient())
    result = await run.run(5)
    for group in (group for record in run.records for group in record.groups):
        assert ends_of(group) == {EpisodeEnd.COMPLETED: 7, EpisodeEnd.ENV_ERROR: 1}
    ledger = result.ledger
    assert ledger.num_admitted == ledger.num_consumed + ledger.num_dropped + ledger.num_cancelled
    assert (ledger.num_live, ledger.num_complete) == (0, 0)


async def test_grp_02_a_run_whose_episodes_all_fail_aborts_by_name(autojump_clock: MockClock) -> None:
    run = Simulation(config=CONFIG, script=EnvScript(fault="error"))
    with pytest.raises(NoProgressError, match="10 groups in a row"):
        await run.run(1)


async def test_grp_04_complete_groups_beyond_the_batch_wait_for_the_next(autojump_clock: MockClock) -> None:
    run = Simulation(
        config=replace(CONFIG, min_groups_per_batch=3, max_groups_per_batch=3, max_staleness=1), engine=obedient()
    )
    result = await run.run(4)
    assert [len(record.groups) for record in run.records] == [3, 3, 3, 3]
    consumed = [group.group_id for record in run.records for group in record.groups]
    assert consumed == list(range(12))
    assert result.ledger.num_dropped == 0


async def test_grp_05_resets_that_fail_train_nothing(autojump_clock: MockClock) -> None:
    def script(task: Task) -> EnvScript:
        return EnvScript(fault="error" if derive_seed(task.key) % 10 else "none")

    run = Simulation(
        config=replace(CONFIG, max_consecutive_failures=1000), script=script, engine=obedient(), tasks_per_env=100
    )
    await run.run(4)
    groups = [group for record in run.records for group in record.groups]
    dropped = [group for record in run.records for group in record.dropped]
    assert len(dropped) > len(groups)
    assert all(ends_of(group) == {EpisodeEnd.COMPLETED: 8} for group in groups)
    assert all(ends_of(group) == {EpisodeEnd.ENV_ERROR: 8} for group in dropped)
    assert {t.reward for group in dropped for t in group.trajectories} == {None}
    assert {warning.name for record in run.records for warning in record.warnings} >= {"infrastructure"}


async def test_grp_06_a_dead_member_keeps_no_reward_that_it_had(autojump_clock: MockClock) -> None:
    script = EnvScript(rewards=(1.0, 0.0), fault="error", fault_at=2)
    run = Simulation(config=replace(CONFIG, max_consecutive_failures=1), script=script, engine=obedient())
    with pytest.raises(NoProgressError):
        await run.run(1)
    for trajectory in run.groups[0].trajectories:
        assert (trajectory.reward, trajectory.env_reward) == (None, 1.0)
        assert not trajectory.is_valid
    assert not run.groups[0].has_signal


async def test_grp_07_a_scorer_that_raises_gives_no_reward(autojump_clock: MockClock) -> None:
    run = failing_sessions(every=4)(config=CONFIG, engine=obedient())
    await run.run(1)
    rewards = [t.reward for t in run.records[0].groups[0].trajectories]
    assert (rewards.count(1.0), rewards.count(None)) == (6, 2)


GRP_08 = [
    (EnvScript(), {}, {}, EpisodeEnd.COMPLETED),
    (EnvScript(rewards=(0.0,) * 9), {}, {}, EpisodeEnd.MAX_TURNS),
    (EnvScript(), {"max_context_tokens": 5}, {}, EpisodeEnd.CONTEXT_LIMIT),
    (EnvScript(), {"max_new_tokens": 1}, {"script": lambda p, s: [5, 5]}, EpisodeEnd.TURN_TRUNCATED),
    (EnvScript(end=EpisodeEnd.INVALID_ACTION), {}, {}, EpisodeEnd.INVALID_ACTION),
    (EnvScript(end=EpisodeEnd.VALIDATION_FAILED), {}, {}, EpisodeEnd.VALIDATION_FAILED),
    (EnvScript(rewards=(0.0,) * 4, step_s=9.0), {"wall_budget_s": 10.0}, {}, EpisodeEnd.WALL_TIMEOUT),
    (EnvScript(fault="hang", fault_at=1), {}, {}, EpisodeEnd.ENV_TIMEOUT),
    (EnvScript(fault="error", fault_at=1), {}, {}, EpisodeEnd.ENV_ERROR),
    (EnvScript(), {}, {"fails": lambda session, sampling: True}, EpisodeEnd.ENGINE_ERROR),
]


@pytest.mark.parametrize(("script", "limits", "engine", "end"), GRP_08, ids=[row[-1].value for row in GRP_08])
async def test_grp_08_each_cause_has_a_reason_of_its_own(
    script: EnvScript,
    limits: dict[str, object],
    engine: dict[str, object],
    end: EpisodeEnd,
    autojump_clock: MockClock,
) -> None:
    episodes: EpisodeConfig = replace(SHORT_EPISODES, **limits)  # type: ignore[arg-type]
    fake = replace(obedient(), **engine)  # type: ignore[arg-type]
    run = Simulation(config=replace(CONFIG, max_consecutive_failures=1), script=script, episodes=episodes, engine=fake)
    if end.is_infrastructure:
        with pytest.raises(NoProgressError, match=end.value):
            await run.run(1)
    else:
        await run.run(1)
    assert ends_of(run.groups[0]) == {end: 8}


async def test_grp_09_only_the_policys_own_failures_are_penalised(autojump_clock: MockClock) -> None:
    rewards = {}
    for script in (EnvScript(rewards=(0.0,) * 9), EnvScript(fault="error", fault_at=1)):
        run = Simulation(config=replace(CONFIG, max_consecutive_failures=2), script=script, engine=obedient())
        try:
            await run.run(1)
        except NoProgressError:
            assert script.fault == "error"
        rewards[script.fault] = {t.reward for group in run.groups for t in group.trajectories}
    assert rewards == {"none": {-0.2}, "error": {None}}


async def test_grp_18_a_group_is_closed_from_its_first_outcomes(autojump_clock: MockClock) -> None:
    # Neither retried, nor copied, nor refilled: as many sessions as members, failed ones included.
    run = failing_sessions(every=2)(config=CONFIG, engine=obedient())
    result = await run.run(3)
    assert run.log.num_made == 8 * result.ledger.num_admitted
    assert all(len(group.trajectories) == 8 for record in run.records for group in record.groups)


@pytest.mark.parametrize("max_staleness", [0, 1])
@pytest.mark.parametrize("fault_at", [0, 1])
async def test_grp_19_the_policy_on_failures_is_the_same_sync_and_async(
    max_staleness: int, fault_at: int, autojump_clock: MockClock
) -> None:
    def script(task: Task) -> EnvScript:
        return EnvScript(fault="error" if task.index % 2 else "none", fault_at=fault_at)

    run = Simulation(config=replace(CONFIG, max_staleness=max_staleness), script=script, engine=obedient())
    await run.run(6)
    assert {group.task.index % 2 for record in run.records for group in record.groups} == {0}
    assert {group.task.index % 2 for record in run.records for group in record.dropped} == {1}


@pytest.mark.parametrize("fault_at", [0, 1])
async def test_grp_20_a_failing_env_stops_the_run_within_ten_groups(fault_at: int, autojump_clock: MockClock) -> None:
    script = EnvScript(fault="error", fault_at=fault_at, step_s=1.0)
    run = Simulation(config=CONFIG, script=script, engine=obedient())
    with pytest.raises(NoProgressError):
        await run.run(100)
    assert len(run.groups) <= 10 + CONFIG.num_permits
    assert run.log.num_open == 0


async def test_grp_03_a_member_that_ends_after_its_group_was_cancelled_changes_nothing(
    autojump_clock: MockClock,
) -> None:
    # Slow groups are cancelled as stragglers; their sessions take 5 s to close, steps after their eviction.
    def script(task: Task) -> EnvScript:
        is_slow = task.env == "slow"
        return EnvScript(step_s=50.0 if is_slow else 1.0, close_s=5.0 if is_slow else 0.0)

    run = Simulation(
        config=replace(CONFIG, group_size=2, min_groups_per_batch=3, max_staleness=1, stragglers="cancel"),
        script=script,
        weights={"fast": 2.0, "slow": 1.0},
        engine=obedient(),
    )
    result = await run.run(20)
    check_invariants(run, result)
    evicted = [group for record in run.records for group in record.cancelled]
    assert len(evicted) > 3
    assert all(ends_of(group) == {EpisodeEnd.CANCELLED: 2} for group in evicted)
    assert run.log.peak_open <= run.config.num_permits * 2  # as many come in as went out, never more


async def test_grp_11_a_result_after_its_timeout_counts_once(autojump_clock: MockClock) -> None:
    # The step takes 70 s and would then answer, but its deadline is 60 s.
    numbers = iter(range(10**6))

    def script(task: Task) -> EnvScript:
        return EnvScript(step_s=70.0 if next(numbers) % 4 == 0 else 1.0)

    run = Simulation(
        config=CONFIG, script=script, engine=obedient(), episodes=replace(SHORT_EPISODES, env_deadline_s=60.0)
    )
    result = await run.run(3)
    check_invariants(run, result)
    for group in (group for record in run.records for group in record.groups):
        assert ends_of(group) == {EpisodeEnd.COMPLETED: 6, EpisodeEnd.ENV_TIMEOUT: 2}
        assert [t.reward for t in group.trajectories].count(1.0) == 6


async def test_grp_13_agents_that_are_silent_end_the_run_within_their_deadlines(autojump_clock: MockClock) -> None:
    run = Simulation(config=CONFIG, script=EnvScript(fault="hang", fault_at=1), engine=obedient())
    with pytest.raises(NoProgressError, match="most often because of env_timeout"):
        await run.run(1)
    waves = -(-CONFIG.max_consecutive_failures // CONFIG.num_permits)
    assert trio.current_time() <= waves * SHORT_EPISODES.env_deadline_s
    check_invariants(run)


async def test_grp_14_after_a_failed_engine_the_env_is_asked_for_no_reward(autojump_clock: MockClock) -> None:
    run = Simulation(
        config=replace(CONFIG, max_consecutive_failures=1), engine=obedient(fails=lambda session, sampling: True)
    )
    with pytest.raises(NoProgressError, match="engine_error"):
        await run.run(1)
    assert run.log.num_started > 0
    assert run.log.num_steps == 0


async def test_grp_16_a_turn_that_is_cut_off_is_no_completion(autojump_clock: MockClock) -> None:
    run = Simulation(
        config=replace(CONFIG, max_consecutive_failures=2),
        engine=FakeEngine(script=lambda prompt, sampling: [5] * 6, token_latency=constant_latency(1.0)),
    )
    async with trio.open_nursery() as nursery:

        async def cut() -> None:
            await trio.sleep(3.5)  # in the middle of everybody's first turn
            run.engine.die()

        nursery.start_soon(cut)
        with pytest.raises(NoProgressError, match="engine_error"):
            await run.run(1)
    ended = [t for group in run.groups for t in group.trajectories]
    assert {(t.end, len(t.turns), t.reward) for t in ended} == {(EpisodeEnd.ENGINE_ERROR, 0, None)}


def test_grp_21_every_task_carries_the_name_of_its_own_env() -> None:
    run = Simulation(config=CONFIG, weights={"a": 1.0, "b": 1.0, "c": 1.0})
    sampler = run.sampler()
    drawn = [sampler.draw() for _ in range(24)]
    assert [task.env for task in drawn[:6]] == [*"abc", *"abc"]
    assert {task.env: task.seed for task in drawn if task.index == 0} == {
        env: derive_seed(env, "train", 0) for env in "abc"
    }


async def test_grp_01_a_group_with_two_valid_members_of_eight_still_teaches(autojump_clock: MockClock) -> None:
    class TwoLeft(Simulation):
        async def run_one_group(self, admitted: AdmittedGroup) -> Group:
            numbers = iter(range(8))

            def script(task: Task) -> EnvScript:
                number = next(numbers)
                return EnvScript(rewards=(float(number % 2),), fault="none" if number < 2 else "error", fault_at=1)

            self.script = script
            return await super().run_one_group(admitted)

    run = TwoLeft(config=CONFIG, engine=obedient())
    result = await run.run(4)
    check_invariants(run, result)
    groups = [group for record in run.records for group in record.groups]
    assert all(group.has_signal for group in groups)
    assert all(ends_of(group) == {EpisodeEnd.COMPLETED: 2, EpisodeEnd.ENV_ERROR: 6} for group in groups)
