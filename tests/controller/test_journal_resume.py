"""Plans by example: what comes back, what is drawn again and why, and what is refused."""

from dataclasses import replace
from pathlib import Path

import pytest

from agentrl_jax.controller.admission import Admission
from agentrl_jax.controller.config import RolloutConfig
from agentrl_jax.controller.journal import HISTORY_NAME, Journal, read_history
from agentrl_jax.controller.journal_resume import begin, plan_start, restore_sampler
from agentrl_jax.controller.ledger import Ledger
from agentrl_jax.controller.tasks import TaskSampler
from agentrl_jax.errors import ConfigError
from agentrl_jax.testing.envs import ScriptedFamily
from agentrl_jax.types import EpisodeEnd, Group, Task, Trajectory

CONFIG = RolloutConfig(group_size=2, min_groups_per_batch=2, max_staleness=1)


def make_sampler(seed: int = 0, weights: dict[str, float] | None = None) -> TaskSampler:
    weights = weights or {"a": 1.0, "b": 1.0}
    return TaskSampler([ScriptedFamily(name=name, size=6) for name in weights], weights, seed)


def ended(group_id: int, task: Task, version: int) -> Group:
    members = [
        Trajectory(
            task=task,
            group_id=group_id,
            member=member,
            end=EpisodeEnd.MAX_TURNS,
            reward=float(member),
            env_reward=None,
            segments=(),
        )
        for member in range(2)
    ]
    return Group(group_id=group_id, task=task, start_version=version, trajectories=tuple(members))


class Run:
    """A journal and a sampler moved by hand."""

    def __init__(self, folder: Path, config: RolloutConfig = CONFIG) -> None:
        self.journal = Journal(folder)
        self.sampler = make_sampler()
        begin(self.journal, config, plan_start(self.journal, config))

    def admit(self, number: int) -> list[int]:
        ids = []
        for _ in range(number):
            ids.append(self.journal.history.next_group_id)
            task, version = self.sampler.draw(), self.journal.history.version
            self.journal.admitted(ids[-1], task, version, self.sampler.last_position)
        return ids

    def complete(self, *group_ids: int) -> None:
        for group_id in group_ids:
            entry = self.journal.history.groups[group_id]
            self.journal.completed(ended(group_id, entry.task, entry.version))

    def step(self, *group_ids: int) -> None:
        history = self.journal.history
        version = history.version
        ages = {group_id: version - history.groups[group_id].version for group_id in group_ids}
        self.journal.published(version + 1)
        self.journal.consumed(history.step + 1, version, ages)

    def save(self) -> dict[str, object]:
        saved: dict[str, object] = {"sampler": self.sampler.state(), "position": self.journal.position()}
        self.journal.checkpoint_durable(self.journal.history.step, self.journal.history.step)
        return saved


def test_a_new_run_starts_at_version_zero(tmp_path: Path) -> None:
    with Journal(tmp_path) as journal:
        plan = plan_start(journal, CONFIG)
        assert (plan.step, plan.version, plan.restored_version, plan.next_group_id) == (0, 0, None, 0)
        assert (plan.adopted, plan.reissued, plan.reasons) == ((), {}, {})


def test_ages_count_the_way_to_the_restored_weights_and_back(tmp_path: Path) -> None:
    config = replace(CONFIG, max_staleness=2, min_groups_per_batch=4)
    run = Run(tmp_path, config)
    old, first = run.admit(2)
    run.complete(old, first)
    run.step(first)
    (at,) = run.admit(1)
    run.complete(at)
    run.save()  # after step 1, of version 1
    undone, later = [], []
    for _ in range(3):
        undone += run.admit(1)
        run.complete(undone[-1])
        run.step(undone[-1])
        later += run.admit(1)
        run.complete(later[-1])
    running = run.admit(1)
    with run.journal as journal:
        plan = plan_start(journal, config, step=1, version=1)
    assert plan.version == 5  # 4 was the last
    ages = {group.group_id: plan.version - group.start_version for group in plan.adopted}
    assert ages == {old: 1, at: 0, undone[0]: 0, undone[1]: 1, undone[2]: 2, later[0]: 1, later[1]: 2}
    assert list(plan.reissued) == [later[2], *running]
    assert plan.reasons == {"too far from the restored weights": 1, "in flight": 1}


def test_more_groups_than_permits_are_drawn_again(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.save()
    run.complete(*run.admit(7))
    with run.journal as journal:
        plan = plan_start(journal, CONFIG, step=0, version=0)
    assert [group.group_id for group in plan.adopted] == [0, 1, 2, 3]
    assert list(plan.reissued) == [4, 5, 6]
    assert plan.reasons == {"no permit": 3}


def test_groups_that_are_due_at_once_must_fit_one_batch(tmp_path: Path) -> None:
    config = replace(CONFIG, max_groups_per_batch=2)
    run = Run(tmp_path, config)
    due_soon = run.admit(4)
    run.complete(*due_soon)
    run.complete(*(first := run.admit(2)))
    run.step(*first)
    run.save()
    with run.journal as journal:
        plan = plan_start(journal, config, step=1, version=1)
    assert [group.group_id for group in plan.adopted] == due_soon[:2]
    assert plan.reasons == {"no permit": 2}


def test_without_a_checkpoint_everything_is_drawn_again(tmp_path: Path) -> None:
    run = Run(tmp_path)
    ids = run.admit(3)
    run.complete(*ids)
    with run.journal as journal:
        plan = plan_start(journal, CONFIG)
        sampler = make_sampler()
        restore_sampler(sampler, journal, None, plan)
        assert (plan.version, plan.adopted, list(plan.reissued)) == (1, (), ids)
        assert [sampler.draw() for _ in ids] == list(plan.reissued.values())
        assert sampler.draw() == run.sampler.draw()


def test_a_resume_cut_short_before_it_began_changes_nothing(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.save()
    run.complete(*run.admit(2))
    with run.journal as journal:
        before = plan_start(journal, CONFIG, step=0, version=0)
        size = (tmp_path / HISTORY_NAME).stat().st_size
        begin(journal, CONFIG, before)
    data = (tmp_path / HISTORY_NAME).read_bytes()
    (tmp_path / HISTORY_NAME).write_bytes(data[: data.index(b"\n", size) + 1])  # published, but not begun
    with Journal(tmp_path) as journal:
        after = plan_start(journal, CONFIG, step=0, version=0)
        begin(journal, CONFIG, after)
    assert (before.version, after.version) == (1, 2)
    assert [group.group_id for group in after.adopted] == [group.group_id for group in before.adopted] == [0, 1]
    assert read_history(tmp_path)[0].problems == []


def test_lost_bytes_are_drawn_again(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.save()
    run.complete(*run.admit(1))
    for path in tmp_path.glob("groups-*"):
        path.write_bytes(b"\0" * path.stat().st_size)
    with run.journal as journal:
        assert plan_start(journal, CONFIG, step=0, version=0).reasons == {"bytes lost": 1}


def test_checkpoints_of_another_run_are_refused(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.complete(*run.admit(2))
    run.step(0, 1)
    run.save()
    with run.journal as journal:
        for step, version in ((2, 1), (1, 9), (0, 0)):
            with pytest.raises(ConfigError, match=f"checkpoint is of step {step} and version {version}"):
                plan_start(journal, CONFIG, step=step, version=version)
        with pytest.raises(ConfigError, match=r"checkpoints \(the last of step 1\) are gone"):
            plan_start(journal, CONFIG)


def test_other_tasks_are_refused(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.admit(6)
    with run.journal as journal:
        plan = plan_start(journal, CONFIG)
        with pytest.raises(ConfigError, match="cannot resume: the run drew"):
            restore_sampler(make_sampler(seed=1), journal, None, plan)


def test_the_weights_may_change_between_processes(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.save()
    ids = run.admit(6)
    with run.journal as journal:
        plan = plan_start(journal, CONFIG, step=0, version=0)
        sampler = make_sampler(weights={"a": 9.0, "b": 1.0})
        restore_sampler(sampler, journal, None, plan)
        reissued = [sampler.draw() for _ in ids]
        assert reissued == list(plan.reissued.values())
        later = [sampler.draw() for _ in range(20)]
    assert [task.env for task in later].count("b") in (1, 2, 3)
    unbroken = make_sampler()
    drawn = [unbroken.draw() for _ in range(60)]
    for env in "ab":  # each env goes on with its own next task
        after = [task for task in (*reissued, *later) if task.env == env]
        assert after == [task for task in drawn if task.env == env][: len(after)]


def test_one_process_at_a_time(tmp_path: Path) -> None:
    with Journal(tmp_path), pytest.raises(ConfigError, match="another process writes"):
        Journal(tmp_path)
    with Journal(tmp_path):
        pass


async def test_only_groups_of_an_earlier_process_are_adopted() -> None:
    task = Task(env="a", split="train", index=0, seed=0)
    admission = Admission(4)
    ledger = Ledger(CONFIG, initial_version=5, first_group_id=3)
    ledger.adopt(ended(1, task, 4), await admission.acquire())
    permit = await admission.acquire()
    for group_id in (1, 3):
        with pytest.raises(RuntimeError, match="cannot be adopted"):
            ledger.adopt(ended(group_id, task, 5), permit)
    ledger.adopt(ended(2, task, 5), permit)
    statistics = ledger.statistics()
    assert (statistics.num_admitted, statistics.num_complete) == (2, 2)
    batch = await ledger.collect()
    assert [(g.group_id, age) for g, age in zip(batch.groups, batch.ages, strict=True)] == [(1, 1), (2, 0)]
    ledger.finish_step(6)
    assert admission.statistics().num_held == 0
