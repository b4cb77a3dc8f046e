"""A world for crashing in: processes that run the real loop on a real journal, in virtual time, and can be killed."""

import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import trio

from agentrl_jax.controller.config import RolloutConfig
from agentrl_jax.controller.group import AdmittedGroup
from agentrl_jax.controller.journal import HISTORY_NAME, Journal, read_history
from agentrl_jax.controller.journal_codec import task_from_json
from agentrl_jax.controller.journal_lines import decode_lines
from agentrl_jax.controller.journal_resume import ResumePlan, begin, plan_start, restore_sampler
from agentrl_jax.controller.ledger import Ending
from agentrl_jax.controller.loop import train_loop
from agentrl_jax.controller.ports import LoopResult, StepOutcome, StepRecord
from agentrl_jax.controller.tasks import TaskSampler
from agentrl_jax.seeding import derive_seed
from agentrl_jax.testing.engine import FakeEngine
from agentrl_jax.testing.envs import EnvScript
from agentrl_jax.testing.simulation import Simulation
from agentrl_jax.testing.virtual import run_virtual
from agentrl_jax.types import Group, Task


@dataclass
class Disk:
    """Knows how much of each file a power failure would leave."""

    flushed: dict[int, int] = field(default_factory=dict)

    def fsync(self, descriptor: int) -> None:
        status = os.fstat(descriptor)
        self.flushed[status.st_ino] = status.st_size

    def fail(self, folder: Path, flushed: Mapping[int, int], percent: int) -> None:
        """Take away `percent` of what nobody had flushed."""
        for path in folder.iterdir():
            size, safe = path.stat().st_size, flushed.get(path.stat().st_ino, 0)
            os.truncate(path, size - (size - safe) * percent // 100)


@dataclass
class SlowJournal:
    """`JournalPort` in virtual time."""

    journal: Journal
    world: "World"

    def admitted(self, group: AdmittedGroup) -> None:
        self.journal.admitted(group.group_id, group.task, group.start_version, group.task_position)

    def started(self, group: AdmittedGroup) -> None:
        self.journal.started(group.group_id, group.start_version)

    async def completed(self, group: Group) -> None:
        await trio.sleep(self.world.disk_s)
        self.world.sampled[group.group_id] = group
        self.journal.completed(group)
        await trio.sleep(self.world.disk_s)

    def ended(self, group_id: int, how: Ending) -> None:
        self.journal.ended(group_id, how)

    async def publishing(self, version: int) -> None:
        await trio.sleep(self.world.disk_s)
        self.journal.published(version)

    def consumed(self, step: int, version: int, ages: Mapping[int, int]) -> None:
        self.journal.consumed(step, version, ages)


@dataclass(frozen=True)
class Saved:
    updates: tuple[str, ...]
    trained: tuple[tuple[int, str], ...]
    version: int
    loop_state: dict[str, Any]


@dataclass
class World:
    """What outlives a process: the disk and the checkpoints; and what is known to have happened."""

    folder: Path
    config: RolloutConfig
    seed: int
    save_every: int
    fault_percent: int = 0
    tasks_per_env: int = 9
    disk_s: float = 0.5
    num_places: int | None = None
    disk: Disk = field(default_factory=Disk)
    checkpoints: dict[int, Saved] = field(default_factory=dict)
    published: list[int] = field(default_factory=list)
    records: list[StepRecord] = field(default_factory=list)
    plans: list[ResumePlan] = field(default_factory=list)
    updates: dict[int, tuple[str, ...]] = field(default_factory=dict)  # by version: what made its weights
    sampled: dict[int, Group] = field(default_factory=dict)  # as it was, before any resume

    def simulation(self, version: int) -> Simulation:
        def script(task: Task) -> EnvScript:
            draw = derive_seed(self.seed, task.key)
            return EnvScript(
                rewards=(0.0,) * (draw % 3) + (float(draw // 7 % 2),),
                step_s=1 + draw // 13 % (20 if task.env == "slow" else 4),
                fault="error" if draw // 19 % 100 < self.fault_percent else "none",
                fault_at=draw // 23 % 3,
            )

        return Simulation(
            config=self.config,
            script=script,
            weights={"fast": 2.0, "slow": 1.0},
            engine=FakeEngine(version=version, token_latency=lambda session, s: s.seed % 5 * 0.1, publish_s=0.7),
            tasks_per_env=self.tasks_per_env,
            num_places=self.num_places,
            seed=self.seed,
        )


@dataclass
class Process:
    """One life: resumes what is in the world and goes on until it is done or killed."""

    world: World
    journal: Journal
    updates: tuple[str, ...] = ()
    trained: tuple[tuple[int, str], ...] = ()
    sampler: TaskSampler = field(init=False)
    began_with: dict[str, Any] = field(init=False)  # the sampler's state, before its first draw

    async def run(self, num_steps: int) -> LoopResult:
        world, journal = self.world, self.journal
        step = max(world.checkpoints, default=0)
        saved = world.checkpoints.get(step)
        plan = plan_start(journal, world.config, step=step, version=saved.version if saved else None)
        world.plans.append(plan)
        simulation = world.simulation(plan.version)
        self.sampler = simulation.sampler()
        restore_sampler(self.sampler, journal, saved.loop_state if saved else None, plan)
        self.began_with = self.sampler.state()
        self.trained, self.updates = (saved.trained, saved.updates) if saved else ((), ())
        begin(journal, world.config, plan)
        world.published.append(plan.version)
        world.updates[plan.version] = self.updates
        if saved is None:
            self.save(0, plan.version)

        async def publish(version: int) -> None:
            world.published.append(version)
            world.updates[version] = self.updates
            await simulation.publish(version)

        return await train_loop(
            sampler=self.sampler,
            config=world.config,
            run_one_group=simulation.run_one_group,
            learner=self,
            publish=publish,
            max_steps=num_steps - step,
            on_step=self.on_step,
            initial_version=plan.version,
            first_group_id=plan.next_group_id,
            first_step=step,
            adopted=plan.adopted,
            journal=SlowJournal(journal, world),
        )

    async def step(self, groups: tuple[Group, ...], version: int) -> StepOutcome:
        await trio.sleep(3.0)
        self.trained += tuple((group.group_id, group.task.key) for group in groups)
        is_applied = any(group.has_signal for group in groups)
        if is_applied:
            self.updates += (f"{len(self.world.plans)}/{len(self.trained)}",)
        return StepOutcome(is_finite=True, is_applied=is_applied, metrics={})

    async def on_step(self, record: StepRecord) -> None:
        self.world.records.append(record)
        step, version = record.step + 1, record.version + record.is_applied
        if step % self.world.save_every == 0:
            saved = self.cut(version)
            self.journal.flush()
            await trio.sleep(self.world.disk_s)  # a crash in here finds no checkpoint
            self.keep(step, saved)

    def cut(self, version: int) -> Saved:
        loop_state = {"sampler": self.sampler.state(), "position": self.journal.position()}
        return Saved(updates=self.updates, trained=self.trained, version=version, loop_state=loop_state)

    def save(self, step: int, version: int) -> None:
        self.keep(step, self.cut(version))

    def keep(self, step: int, saved: Saved) -> None:
        self.world.checkpoints[step] = saved
        for old in sorted(self.world.checkpoints)[:-2]:
            del self.world.checkpoints[old]
        self.journal.checkpoint_durable(step, min(self.world.checkpoints))


def live(world: World, num_steps: int, *, kill_after_s: float | None = None, lost_percent: int = 0) -> Process:
    """Run one process on the world, to its end or until it is killed."""
    journal = Journal(world.folder, fsync=world.disk.fsync)
    process = Process(world, journal)

    async def main() -> None:
        with trio.move_on_after(float("inf") if kill_after_s is None else kill_after_s):
            await process.run(num_steps)

    run_virtual(main)
    flushed = dict(world.disk.flushed)
    with journal:
        pass
    if kill_after_s is not None:
        world.disk.fail(world.folder, flushed, lost_percent)
    return process


def check(world: World, last: Process) -> None:
    history, num_cut = read_history(world.folder)
    assert history.problems == []
    assert num_cut == 0
    # The journal agrees with what the surviving parameters saw.
    ids = [group_id for group_id, _ in last.trained]
    assert len(ids) == len(set(ids)) == history.totals["trained"]
    assert world.published == sorted(set(world.published))
    assert set(world.published) <= set(range(history.highest_version + 1))
    for record in world.records:
        check_staleness(world, record)
    # Every task that ever came out of the sampler is somewhere, and once.
    lines = decode_lines((world.folder / HISTORY_NAME).read_bytes()).records
    tasks = {line["group"]: task_from_json(line["task"]) for line in lines if line["kind"] == "admitted"}
    somewhere = Counter(key for _, key in last.trained)
    somewhere.update(tasks[line["group"]].key for line in lines if line["kind"] == "ended")
    somewhere.update(entry.task.key for entry in history.groups.values() if entry.state != "consumed")
    somewhere.update(task.key for task in history.pending)
    if world.config.curriculum.is_on:  # what it draws depends on what it was told
        assert somewhere.total() == num_drawn(last.sampler)
    else:
        assert somewhere == Counter(drawn_by(world, last.sampler))


def check_staleness(world: World, record: StepRecord) -> None:
    """Ages and versions tell how many updates really lie between the sampling weights and the learner's."""
    here = world.updates[record.version]
    for group, age in zip(record.groups, record.ages, strict=True):
        assert 0 <= age <= world.config.staleness_bound(group.task.env)
        assert num_updates_between(world.updates[world.sampled[group.group_id].start_version], here) <= age
        for was, now in zip(world.sampled[group.group_id].trajectories, group.trajectories, strict=True):
            for turn_was, turn in zip(was.turns, now.turns, strict=True):
                pairs = zip(turn_was.completion.versions, turn.completion.versions, strict=True)
                for version_was, version in {(int(a), int(b)) for a, b in pairs}:
                    assert record.version - version == num_updates_between(world.updates[version_was], here)
                    assert 0 <= record.version - version <= age


def num_updates_between(first: tuple[str, ...], second: tuple[str, ...]) -> int:
    num_common = next(
        (n for n, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), min(len(first), len(second))
    )
    return len(first) + len(second) - 2 * num_common


def drawn_by(world: World, sampler: TaskSampler) -> list[str]:
    """The tasks that an unbroken run would have drawn up to where `sampler` stands."""
    unbroken = world.simulation(0).sampler()
    return [unbroken.draw().key for _ in range(num_drawn(sampler))]


def next_new_tasks(world: World, state: Mapping[str, Any], curriculum: Mapping[str, Any]) -> list[str]:
    """What a sampler in `state` draws next when nothing is requeued, by what `curriculum` knows of the tasks."""
    sampler = world.simulation(0).sampler()
    sampler.restore({**state, "requeued": [], "curriculum": curriculum})
    return [sampler.draw().key for _ in range(3 * world.tasks_per_env)]


def num_drawn(sampler: TaskSampler) -> int:
    return sum(env["num_drawn"] for env in sampler.state()["envs"].values())
