"""The chaos matrix: one fault each, on fakes, in virtual time. Each run ends within a bound, with the stated result.

Real processes are killed in test_chaos_processes.py, tests/launch/test_resume.py and the tests of sessions.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import trio
from trio.testing import MockClock

from agentrl_jax.checkpoint import CheckpointError, CheckpointStore
from agentrl_jax.controller.config import RolloutConfig
from agentrl_jax.controller.ports import LoopResult, StepRecord
from agentrl_jax.controller.sessions import SessionFactory
from agentrl_jax.controller.tasks import TaskSampler
from agentrl_jax.env import Action, StepResult
from agentrl_jax.errors import EngineError, EnvError, NoProgressError, RecordError
from agentrl_jax.testing.engine import FakeEngine, constant_latency
from agentrl_jax.testing.envs import EnvScript, ScriptedFamily, ScriptedSession
from agentrl_jax.testing.learner import FakeLearner
from agentrl_jax.testing.simulation import SHORT_EPISODES, Simulation
from agentrl_jax.types import Completion, EpisodeEnd, Ids, SamplingParams, Task, VersionSpan
from tests.controller.journal_world import World, check, live
from tests.faults.invariants import check_invariants
from tests.test_checkpoint import abstract, make_state, same

CONFIG = RolloutConfig(group_size=4, min_groups_per_batch=4, max_staleness=1, max_consecutive_failures=40)
EPISODES = replace(SHORT_EPISODES, env_deadline_s=60.0, reset_deadline_s=60.0, engine_deadline_s=90.0)
SCRIPT = EnvScript(rewards=(0.0, 1.0), reset_s=1.0, step_s=2.0)


def obedient(name: str = "fake-0", **options: Any) -> FakeEngine:
    return FakeEngine(name=name, script=lambda prompt, sampling: [], token_latency=constant_latency(0.5), **options)


def simulation(kind: type[Simulation] = Simulation, **options: Any) -> Simulation:
    defaults: dict[str, Any] = {
        "config": CONFIG,
        "script": SCRIPT,
        "weights": {"a": 1.0, "b": 1.0},
        "episodes": EPISODES,
        "engine": obedient(),
        "learner": FakeLearner(latency_s=lambda step: 3.0),
    }
    return kind(**(defaults | options))


def run_for(
    run: Simulation,
    num_steps: int,
    *,
    within_s: float,
    meanwhile: Callable[[], Any] | None = None,
    clock: MockClock | None = None,
) -> LoopResult:
    """Run to the end, check every invariant, and return the result; the virtual time is bounded."""

    async def main() -> LoopResult:
        with trio.fail_after(within_s):
            async with trio.open_nursery() as nursery:
                if meanwhile is not None:
                    nursery.start_soon(meanwhile)
                result = await run.run(num_steps)
                nursery.cancel_scope.cancel()
        return result

    result: LoopResult | None = None
    try:
        result = trio.run(main, clock=clock or MockClock(autojump_threshold=0.0))
    except* (NoProgressError, EngineError, RecordError, CheckpointError, OSError) as group:
        raise group.exceptions[0] from None
    finally:
        check_invariants(run, result)
    assert result is not None
    assert result.num_steps == num_steps
    return result


def ends_of(run: Simulation) -> Counter[EpisodeEnd]:
    ends: Counter[EpisodeEnd] = Counter()
    for record in run.records:
        ends.update(record.ends)
    return ends


def consumed(run: Simulation) -> Counter[str]:
    return Counter(group.task.env for record in run.records for group in record.groups)


def test_chaos_01_an_engine_crashes_while_it_generates_and_comes_back() -> None:
    run = simulation(other_engines=(obedient("fake-1"),))

    async def crash() -> None:
        await trio.sleep(9.6)  # between two publishes
        run.engine.die()
        await trio.sleep(1.8)
        run.engine.revive()

    run_for(run, 12, within_s=300, meanwhile=crash)
    ends = ends_of(run)
    assert 0 < ends[EpisodeEnd.ENGINE_ERROR] < ends[EpisodeEnd.COMPLETED]
    assert {record.version for record in run.records} == set(range(12))


def test_chaos_01_an_engine_that_stays_dead_ends_the_run_by_name() -> None:
    run = simulation()

    async def crash() -> None:
        await trio.sleep(1.3)
        run.engine.die()

    with pytest.raises(NoProgressError, match="most often because of engine_error"):
        run_for(run, 1000, within_s=300, meanwhile=crash)


def test_chaos_02_an_engine_that_hangs_costs_its_turns_after_the_deadline() -> None:
    def latency(session: str, sampling: SamplingParams) -> float:
        return float("inf") if sampling.seed % 20 == 0 else 0.5

    run = simulation(engine=FakeEngine(script=lambda prompt, sampling: [], token_latency=latency))
    run_for(run, 5, within_s=5 * 100)
    ends = ends_of(run)
    assert 0 < ends[EpisodeEnd.ENGINE_ERROR] < ends[EpisodeEnd.COMPLETED]


def test_chaos_03_log_probabilities_that_are_no_numbers_are_masked_and_counted() -> None:
    run = simulation(engine=FakeEngine(nonfinite_positions={0}))
    run_for(run, 4, within_s=100)
    turns = [t for r in run.records for g in r.groups for member in g.trajectories for t in member.turns]
    assert {bool(turn.completion.loss_mask[0]) for turn in turns} == {False}
    assert any(turn.completion.loss_mask[1:].all() for turn in turns if len(turn.completion.ids) > 1)
    assert run.engine.statistics().num_nonfinite_logprobs >= len(turns)


class Lying(FakeEngine):
    """Claims to be 5 versions ahead."""

    async def generate(self, prompt_ids: Ids, sampling: SamplingParams, *, session: str) -> Completion:
        said = await super().generate(prompt_ids, sampling, session=session)
        spans = [VersionSpan(version=s.version + 5, start=s.start, end=s.end) for s in said.version_spans]
        return replace(said, version_spans=tuple(spans))


class Mute(FakeEngine):
    """Returns no id at all in one turn of seven, which its client refuses."""

    async def generate(self, prompt_ids: Ids, sampling: SamplingParams, *, session: str) -> Completion:
        said = await super().generate(prompt_ids, sampling, session=session)
        if sampling.seed % 7:
            return said
        try:
            return replace(said, ids=np.zeros(0, np.int32), logprobs=np.zeros(0, np.float32), version_spans=())
        except RecordError as error:
            raise EngineError(f"{self.name}: {error}") from error


def test_chaos_03_a_version_that_nobody_published_ends_the_run_before_it_trains() -> None:
    run = simulation(engine=Lying())
    with pytest.raises(RecordError, match="claims that version 5 sampled it, but no version after 0"):
        run_for(run, 4, within_s=100)
    assert run.learner.calls == []


def test_chaos_03_a_turn_without_any_id_is_an_engine_error() -> None:
    run = simulation(engine=Mute(script=lambda prompt, sampling: []))
    run_for(run, 6, within_s=100)
    ends = ends_of(run)
    assert ends[EpisodeEnd.ENGINE_ERROR] > 0
    assert ends.keys() == {EpisodeEnd.ENGINE_ERROR, EpisodeEnd.COMPLETED}


def test_chaos_04_a_receiver_that_dies_in_a_publish_ends_the_run_by_name() -> None:
    other = obedient("fake-1", publish_s=6.0)
    run = simulation(other_engines=(other,))

    class Publishing(FakeLearner):
        async def step(self, groups: Any, version: int) -> Any:
            if version == 2:
                other.die()
            return await super().step(groups, version)

    run.learner = Publishing(latency_s=lambda step: 3.0)
    with pytest.raises(EngineError, match=r"1 of 2 engines did not take version 3: fake-1 is dead"):
        run_for(run, 100, within_s=200)
    assert (run.engine.version, other.version) == (3, 2)
    assert [record.version for record in run.records] == [0, 1, 2]  # the last one was learnt, and can be saved


def test_chaos_05_resets_that_fail_nine_times_in_ten_train_only_what_worked() -> None:
    numbers = iter(range(10**9))

    def script(task: Task) -> EnvScript:
        return replace(SCRIPT, fault="none" if next(numbers) % 10 == 3 else "error")

    run = simulation(script=script)
    run_for(run, 6, within_s=600)
    ends = ends_of(run)
    assert ends[EpisodeEnd.ENV_ERROR] > 5 * ends[EpisodeEnd.COMPLETED] > 0
    trained = [t for r in run.records for g in r.groups for t in g.trajectories if t.is_valid]
    assert len(trained) == ends[EpisodeEnd.COMPLETED]
    assert {w.name for r in run.records for w in r.warnings} >= {"infrastructure"}


def test_chaos_06_steps_that_hang_end_at_their_deadline() -> None:
    numbers = iter(range(10**9))

    def script(task: Task) -> EnvScript:
        return replace(SCRIPT, fault="hang" if next(numbers) % 13 == 0 else "none", fault_at=2)

    run = simulation(script=script)
    run_for(run, 5, within_s=5 * 70)
    ends = ends_of(run)
    assert 0 < ends[EpisodeEnd.ENV_TIMEOUT] < ends[EpisodeEnd.COMPLETED]


class Host:
    """What the sessions of one machine have in common: it can be killed, with all of them."""

    def __init__(self) -> None:
        self.killed = trio.Event()

    def kill(self) -> None:
        self.killed.set()
        self.killed = trio.Event()


class HostedSession(ScriptedSession):
    def __init__(self, task: Task, host: Host, run: Simulation) -> None:
        super().__init__(task, SCRIPT, run.log)
        self._host = host

    async def interact(self, action: Action) -> StepResult:
        killed = self._host.killed
        result: StepResult | None = None

        async def watch(scope: trio.CancelScope) -> None:
            await killed.wait()
            scope.cancel()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch, nursery.cancel_scope)
            result = await super().interact(action)
            nursery.cancel_scope.cancel()
        if killed.is_set() or result is None:
            raise EnvError("the process was killed by signal 9")
        return result


@dataclass(kw_only=True)
class Hosted(Simulation):
    hosts: tuple[Host, Host]

    def sessions(self) -> SessionFactory:
        return lambda task: HostedSession(task, self.hosts[self.log.num_made % 2], self)


def test_chaos_07_a_killed_env_process_ends_its_own_episodes_only() -> None:
    hosts = (Host(), Host())
    run = simulation(Hosted, hosts=hosts)

    async def kill() -> None:
        await trio.sleep(11.0)
        hosts[0].kill()

    run_for(run, 5, within_s=200, meanwhile=kill)
    errors = Counter(t.error for g in run.groups for t in g.trajectories)
    assert set(errors) == {"", "the process was killed by signal 9"}
    assert 0 < errors["the process was killed by signal 9"] <= CONFIG.num_permits * CONFIG.group_size // 2
    assert not any(record.dropped for record in run.records)  # the members on the other host train on


@pytest.mark.parametrize(
    ("script", "end"),
    [
        (replace(SCRIPT, fault="error", fault_at=2), EpisodeEnd.ENV_ERROR),
        (replace(SCRIPT, fault="hang", fault_at=2), EpisodeEnd.ENV_TIMEOUT),
        (replace(SCRIPT, rewards=(0.0, float("nan"))), EpisodeEnd.ENV_ERROR),
    ],
    ids=["raises", "hangs", "nan"],
)
def test_chaos_08_a_scorer_that_fails_gives_no_reward(script: EnvScript, end: EpisodeEnd) -> None:
    numbers = iter(range(10**9))
    run = simulation(script=lambda task: script if next(numbers) % 5 == 0 else SCRIPT)
    run_for(run, 5, within_s=5 * 70)
    ended = [t for g in run.groups for t in g.trajectories if t.end is end]
    assert len(ended) > 10
    assert {t.reward for t in ended} == {None}
    assert {len(t.turns) for t in ended} == {2}


@pytest.mark.parametrize("kill_after_s", [11, 25])
def test_chaos_09_a_restarted_controller_loses_its_sessions_and_no_prompt(kill_after_s: int, tmp_path: Path) -> None:
    world = World(tmp_path, replace(CONFIG, max_fruitless_steps=1000), seed=5, save_every=2)
    live(world, 1000, kill_after_s=kill_after_s)
    last = live(world, max(world.checkpoints) + 6)
    check(world, last)
    assert len(world.plans[1].reissued) + len(world.plans[1].adopted) > 0


class Cut(ScriptedSession):
    """Its host carries out every step; the answer to the second one of some sessions is lost on its way."""

    async def interact(self, action: Action) -> StepResult:
        result = await super().interact(action)
        if self._num_steps == 2 and self._log.num_made % 6 == 0:
            raise EnvError("the connection was lost after the request had been sent")
        return result


class CutSimulation(Simulation):
    def sessions(self) -> SessionFactory:
        return lambda task: Cut(task, SCRIPT, self.log)


def test_chaos_10_a_step_whose_answer_is_lost_is_not_carried_out_twice() -> None:
    run = simulation(CutSimulation)
    run_for(run, 5, within_s=200)
    errors = [t for g in run.groups for t in g.trajectories if t.end is EpisodeEnd.ENV_ERROR]
    assert len(errors) > 5
    assert all(len(t.turns) == 2 and t.reward is None for t in errors)
    # Every step that was carried out belongs to a recorded turn, or to an episode that the end of the run cut.
    num_recorded = sum(len(t.turns) for g in run.groups for t in g.trajectories)
    assert 0 <= run.log.num_steps - num_recorded <= 2 * CONFIG.num_permits * CONFIG.group_size


@pytest.mark.parametrize("lost_percent", [0, 100])
def test_chaos_11_a_learner_killed_while_it_saves_goes_on_from_the_save_before(
    lost_percent: int, tmp_path: Path
) -> None:
    config = replace(CONFIG, max_fruitless_steps=1000)
    world = World(tmp_path, config, seed=6, save_every=1, disk_s=5.0)
    kept = []
    for _ in range(4):  # a save takes half of each step's time: some of these kills hit it
        live(world, 1000, kill_after_s=40, lost_percent=lost_percent)
        kept.append(max(world.checkpoints))
    last = live(world, kept[-1] + 4)
    check(world, last)
    assert kept == sorted(kept)
    assert kept[-1] > 0


class BrokenFamily(ScriptedFamily):
    """Its data end before they should."""

    def task(self, split: Any, index: int) -> Task:
        if index == 3:
            raise OSError("the disk with the tasks is gone")
        return super().task(split, index)


def test_chaos_12_task_data_that_vanish_end_the_run_as_themselves() -> None:
    run = simulation(weights={"a": 1.0})
    run.task_sampler = TaskSampler([BrokenFamily(name="a", size=6)], {"a": 1.0}, 0)
    with pytest.raises(OSError, match="the disk with the tasks is gone"):
        run_for(run, 1000, within_s=100)


@pytest.mark.parametrize("seconds", [100.0, 10_000.0])
def test_chaos_13_a_clock_that_jumps_ends_at_most_what_was_running(seconds: float) -> None:
    run, clock = simulation(), MockClock(autojump_threshold=0.0)

    async def jump() -> None:
        await trio.sleep(8.2)
        clock.jump(seconds)

    run_for(run, 10, within_s=seconds + 200, meanwhile=jump, clock=clock)
    ends = ends_of(run)
    others = ends.total() - ends[EpisodeEnd.COMPLETED]
    assert others <= CONFIG.num_permits * CONFIG.group_size
    assert ends.keys() <= {*EpisodeEnd} - {EpisodeEnd.CANCELLED}


class FullDisk(Simulation):
    async def on_step(self, record: StepRecord) -> None:
        await super().on_step(record)
        if record.step == 3:
            raise OSError(28, "No space left on device")


def test_chaos_14_a_full_disk_at_a_checkpoint_ends_the_run_as_itself() -> None:
    run = simulation(FullDisk)
    with pytest.raises(OSError, match="No space left"):
        run_for(run, 1000, within_s=100)
    assert len(run.records) == 4


def test_chaos_14_a_disk_without_room_for_a_checkpoint_ends_the_run_and_keeps_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with CheckpointStore(tmp_path, keep=1) as store:

        class Saving(Simulation):
            async def on_step(self, record: StepRecord) -> None:
                await super().on_step(record)
                if record.step == 3:
                    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=10))
                store.save(record.step, make_state(record.step), {"version": record.version})

        run = simulation(Saving)
        with pytest.raises(CheckpointError, match=r"no room for a checkpoint .* of steps \[2\] are untouched"):
            run_for(run, 1000, within_s=100)
    with CheckpointStore(tmp_path, keep=1) as store:
        assert store.steps() == (2,)
        assert same(store.restore(2, abstract(make_state(0))).state, make_state(2))


@pytest.mark.parametrize("stragglers", ["wait", "cancel"])
def test_chaos_15_a_task_a_hundred_times_slower_is_waited_for_or_reported(stragglers: Any) -> None:
    def script(task: Task) -> EnvScript:
        return EnvScript(step_s=40.0 if task.env == "b" else 0.4)

    run = simulation(script=script, config=replace(CONFIG, stragglers=stragglers), weights={"a": 3.0, "b": 1.0})
    result = run_for(run, 24, within_s=24 * 50)
    waited_s = sum(record.timings.straggler_wait_s.get("b", 0.0) for record in run.records)
    warned = {(w.name, w.env) for record in run.records for w in record.warnings if w.name != "constant_rewards"}
    if stragglers == "wait":
        assert abs(consumed(run)["b"] / consumed(run).total() - 0.25) < 0.05
        assert waited_s > 0
        assert warned == set()
    else:
        assert result.ledger.num_cancelled == result.ledger.num_admitted - result.ledger.num_consumed
        assert warned == {("cancelled", "b")}
        assert waited_s == 0


def test_chaos_16_a_task_that_always_fails_ends_the_run_by_name() -> None:
    def script(task: Task) -> EnvScript:
        return replace(SCRIPT, fault="error" if task.env == "b" else "none", fault_at=1)

    run = simulation(script=script)
    with pytest.raises(
        NoProgressError, match=r"40 groups in a row of env 'b' .* because of env_error \(episodes: env_"
    ):
        run_for(run, 1000, within_s=300)
    assert consumed(run)["b"] == 0
    assert consumed(run)["a"] > 0


def test_chaos_16_a_single_prompt_that_always_fails_is_reported_each_time() -> None:
    def script(task: Task) -> EnvScript:
        return replace(SCRIPT, fault="error" if task.index == 2 else "none", fault_at=1)

    run = simulation(script=script)
    run_for(run, 12, within_s=200)
    assert {group.task.index for record in run.records for group in record.dropped} == {2}
    assert 2 not in {group.task.index for record in run.records for group in record.groups}
