"""The training loop: admit groups, collect a batch, learn, publish, return the permits, repeat.

Asynchronous and synchronous training are this one program; `max_staleness = 0` is the synchronous baseline.
Order of a step: collect from version v → learn → publish v + 1 → the version becomes v + 1 → permits return. A group
that starts before the publish has returned therefore counts its age from v, because its tokens may be v's.
"""

from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

import trio

from agentrl_jax.controller.admission import Admission
from agentrl_jax.controller.cancellation import unwrapped_errors
from agentrl_jax.controller.config import RolloutConfig
from agentrl_jax.controller.group import AdmittedGroup, check_versions
from agentrl_jax.controller.ledger import CollectedBatch, Ledger
from agentrl_jax.controller.ports import (
    JournalPort,
    LearnerPort,
    LoopResult,
    NoJournal,
    OnStep,
    Publish,
    RunOneGroup,
    StepOutcome,
    StepRecord,
    StepTimings,
)
from agentrl_jax.controller.tasks import TaskSampler
from agentrl_jax.controller.watch import Watch
from agentrl_jax.errors import ConfigError, NoProgressError
from agentrl_jax.types import Group


async def train_loop(
    *,
    sampler: TaskSampler,
    config: RolloutConfig,
    run_one_group: RunOneGroup,
    learner: LearnerPort,
    publish: Publish,
    max_steps: int,
    on_step: OnStep,
    stop: trio.Event | None = None,
    initial_version: int = 0,
    first_group_id: int = 0,
    first_step: int = 0,
    adopted: Sequence[Group] = (),
    journal: JournalPort | None = None,
) -> LoopResult:
    """Take `max_steps` steps, or fewer if `stop` is set: the running step is finished, then the rest is cancelled.

    Engines must serve `initial_version` already. `adopted`: complete groups of an earlier process, with ids below
    `first_group_id`, that fit the permits and the staleness bounds (journal_resume.py). `on_step` is awaited after
    each step while rollouts go on; what it reads from the sampler and the journal before its first checkpoint belongs
    to its record. When this returns, every group has ended, every permit is free, and nothing runs any more; what the
    end cut off is not told to the journal, for a resumed run to take up. The first exception of any part ends
    everything and is raised as itself. Raises NoProgressError, ConfigError (a bound for an env that the sampler does
    not have, more adopted groups than permits).
    """
    unknown = sorted(set(config.task_max_staleness) - set(sampler.envs))
    if unknown:
        raise ConfigError(f"task_max_staleness names {unknown}, but the envs are {sorted(sampler.envs)}")
    run = _Run(
        sampler=sampler,
        config=config,
        run_one_group=run_one_group,
        learner=learner,
        publish=publish,
        on_step=on_step,
        stop=trio.Event() if stop is None else stop,
        ledger=Ledger(config, initial_version=initial_version, first_group_id=first_group_id),
        admission=Admission(config.num_permits),
        journal=NoJournal() if journal is None else journal,
    )
    await run.adopt(adopted)
    with unwrapped_errors():
        async with trio.open_nursery() as rollouts:
            rollouts.start_soon(run.admit_groups, rollouts)
            await run.take_steps(first_step, max_steps)
            rollouts.cancel_scope.cancel()
    run.ledger.close()
    return LoopResult(
        version=run.ledger.version,
        num_steps=run.num_steps,
        is_stopped=run.num_steps < max_steps,
        next_group_id=run.ledger.next_group_id,
        open_tasks=run.ledger.cut_tasks,
        ledger=run.ledger.statistics(),
        admission=run.admission.statistics(),
    )


@dataclass(kw_only=True, eq=False)
class _Run:
    sampler: TaskSampler
    config: RolloutConfig
    run_one_group: RunOneGroup
    learner: LearnerPort
    publish: Publish
    on_step: OnStep
    stop: trio.Event
    ledger: Ledger
    admission: Admission
    journal: JournalPort
    admitting: trio.CancelScope = field(default_factory=trio.CancelScope)
    watch: Watch = field(default_factory=Watch)
    num_steps: int = 0
    num_fruitless: int = 0

    async def adopt(self, groups: Sequence[Group]) -> None:
        if len(groups) > self.config.num_permits:
            raise ConfigError(f"{len(groups)} groups cannot be adopted with {self.config.num_permits} permits")
        for group in groups:
            self.ledger.adopt(group, await self.admission.acquire())

    async def admit_groups(self, rollouts: trio.Nursery) -> None:
        with self.admitting:
            while True:
                with ExitStack() as unused:
                    permit = await self.admission.acquire()
                    unused.callback(permit.release)
                    await self.ledger.admissible(self.sampler.peek().env)
                    await trio.lowlevel.checkpoint_if_cancelled()  # a permit may come from a group that the end cut off
                    unused.pop_all()
                # Drawn and entered at once: a task is at any time either the sampler's or the ledger's to remember.
                admitted = self.ledger.admit(self.sampler.draw(), permit, self.sampler.last_position)
                self.journal.admitted(admitted)
                admitted.on_start = self._started
                rollouts.start_soon(self._run_group, admitted, name=f"group {admitted.group_id}")

    def _started(self, admitted: AdmittedGroup) -> None:
        before = admitted.start_version
        self.ledger.start(admitted)
        if admitted.start_version != before:
            self.journal.started(admitted)

    async def _run_group(self, admitted: AdmittedGroup) -> None:
        with ExitStack() as unsettled:
            unsettled.callback(self.ledger.abandon, admitted.group_id)
            group = await self.run_one_group(admitted)
            check_versions(group, self.ledger.newest_version)
            if self.ledger.fate(group) == "complete":
                await self.journal.completed(group)
            unsettled.pop_all()
        fate = self.ledger.fate(group)
        if fate != "complete":
            self.journal.ended(group.group_id, fate)
        self.ledger.settle(group)

    async def take_steps(self, first_step: int, max_steps: int) -> None:
        for step in range(first_step, first_step + max_steps):
            begun = trio.current_time()
            batch = await self._collect_unless_stopped()
            if batch is None:
                return
            collect_s = trio.current_time() - begun
            await self._take_step(step, batch, collect_s, is_last=step == first_step + max_steps - 1)

    async def _take_step(self, step: int, batch: CollectedBatch, collect_s: float, *, is_last: bool) -> None:
        begun, version = trio.current_time(), self.ledger.version
        outcome = await self.learner.step(batch.groups, version)
        learned = trio.current_time()

        async def finish() -> None:
            timings = StepTimings(
                collect_s=collect_s,
                learn_s=learned - begun,
                publish_s=trio.current_time() - learned,
                straggler_wait_s=batch.straggler_wait_s,
            )
            self.ledger.finish_step(version + outcome.is_applied)
            ids = [group.group_id for group in batch.groups]
            self.journal.consumed(step + 1, version, dict(zip(ids, batch.ages, strict=True)))
            self.num_steps += 1
            await self.on_step(self._record(step, version, batch, outcome, timings))

        try:
            if outcome.is_applied:
                with trio.CancelScope(shield=True):  # milliseconds, and a version that is saved must be written down
                    await self.journal.publishing(version + 1)
                await self.publish(version + 1)
        except BaseException:
            # The learner's params contain this step. Did it not count, they could not be saved as those of any, and all
            # that was learnt since the last checkpoint would be lost with them.
            self.admitting.cancel()
            await finish()
            raise
        if self.stop.is_set() or is_last:
            self.admitting.cancel()  # before the permits come back: nothing admitted now would be consumed
        await finish()
        self._check_progress(batch.groups, outcome)

    async def _collect_unless_stopped(self) -> CollectedBatch | None:
        if self.stop.is_set():
            return None
        batch: CollectedBatch | None = None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._cancel_on_stop, nursery.cancel_scope)
            batch = await self.ledger.collect()
            nursery.cancel_scope.cancel()
        return batch

    async def _cancel_on_stop(self, scope: trio.CancelScope) -> None:
        await self.stop.wait()
        scope.cancel()

    def _record(
        self, step: int, version: int, batch: CollectedBatch, outcome: StepOutcome, timings: StepTimings
    ) -> StepRecord:
        ended = self.ledger.drain_ended()
        dropped, cancelled = tuple(ended.dropped), tuple(ended.cancelled)
        # Before `on_step`: what a checkpoint of this step saves has seen the groups that its params contain.
        self.sampler.observe((*batch.groups, *dropped))
        return StepRecord(
            step=step,
            version=version,
            is_finite=outcome.is_finite,
            is_applied=outcome.is_applied,
            groups=batch.groups,
            ages=batch.ages,
            dropped=dropped,
            cancelled=cancelled,
            num_no_signal=ended.num_no_signal,
            ends=Counter(t.end for g in (*batch.groups, *dropped, *cancelled) for t in g.trajectories),
            metrics=outcome.metrics,
            timings=timings,
            open_tasks=self.ledger.open_tasks,
            tasks=self.sampler.statistics(),
            warnings=self.watch.observe(batch.groups, dropped, cancelled),
            ledger=self.ledger.statistics(),
            admission=self.admission.statistics(),
        )

    def _check_progress(self, groups: tuple[Group, ...], outcome: StepOutcome) -> None:
        rewards = [t.reward for group in groups for t in group.trajectories if t.reward is not None]
        # Without a signal, but with a positive reward, the tasks may simply have been solved.
        can_teach = any(group.has_signal for group in groups) or any(reward > 0 for reward in rewards)
        self.num_fruitless = 0 if outcome.is_finite and can_teach else self.num_fruitless + 1
        if self.num_fruitless >= self.config.max_fruitless_steps:
            why = "had no signal and no positive reward" if outcome.is_finite else "did not give a finite step"
            raise NoProgressError(
                f"{self.num_fruitless} steps in a row taught nothing: the last {len(groups)} groups {why}. Start from "
                "a policy that solves some tasks, or look at the learner's metrics"
            )
