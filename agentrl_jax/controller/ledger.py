"""Which groups are in flight and how old each may get. A group ends exactly once: consumed, dropped or cancelled.

    live ──▶ complete ──▶ consumed
      ├────▶ dropped     no member is valid; or, with dynamic sampling, there is no signal
      └────▶ cancelled   a straggler under `stragglers = cancel`, its own switch, or the end of the run

A group that started at version a, with staleness bound k, is *due* at version a + k: the last version it may be
consumed from. One that still waits for places is due as if it started now: nothing of it can be older. The learner may
step from version v only if everything it leaves behind can still meet its due date, that is

    for every d >= v:  number of groups left behind that are due by d  <=  (d - v) × largest batch

(for d = v: none is left behind; for d > v it matters only if a batch can be smaller than the number of permits).
Admissions obey the same rule, so that it can always be satisfied by completing, or cancelling, live groups.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Literal

import trio

from agentrl_jax.controller.admission import Permit
from agentrl_jax.controller.breaker import CircuitBreaker
from agentrl_jax.controller.config import RolloutConfig
from agentrl_jax.controller.group import AdmittedGroup
from agentrl_jax.types import Group, Task

Ending = Literal["dropped", "no_signal", "cancelled"]
"""How a group ends that is not consumed; `no_signal`: dropped by dynamic sampling."""

Fate = Literal["complete"] | Ending


class _State(Enum):
    LIVE = auto()
    COMPLETE = auto()
    CONSUMED = auto()  # its step has not been published yet
    CANCELLED = auto()  # its episodes are still closing their sessions
    ENDED = auto()  # no entry any more


@dataclass(kw_only=True, eq=False)
class _Entry:
    admitted: AdmittedGroup
    permit: Permit
    bound: int
    state: _State = _State.LIVE
    group: Group | None = None

    @property
    def group_id(self) -> int:
        return self.admitted.group_id

    @property
    def is_open(self) -> bool:
        return self.state in (_State.LIVE, _State.COMPLETE)


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerStatistics:
    """A snapshot. num_admitted = num_live + num_complete + num_consumed + num_dropped + num_cancelled.

    num_admitted: adopted groups included. num_no_signal: of num_dropped, those that dynamic sampling dropped.
    """

    version: int
    num_admitted: int
    num_live: int
    num_complete: int
    num_consumed: int
    num_dropped: int
    num_no_signal: int
    num_cancelled: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CollectedBatch:
    """The groups of one step, most urgent first, and their ages. straggler_wait_s: see StepTimings."""

    groups: tuple[Group, ...]
    ages: tuple[int, ...]
    straggler_wait_s: Mapping[str, float]


@dataclass
class EndedGroups:
    """Groups that ended without being consumed. num_no_signal: of `dropped`, those that dynamic sampling dropped."""

    dropped: list[Group] = field(default_factory=list)
    cancelled: list[Group] = field(default_factory=list)
    num_no_signal: int = 0


class Ledger:
    """See the module. Everything but `admissible` and `collect` happens at once, without a checkpoint.

    One task admits (`admissible`, `admit`), one task collects (`collect`, `finish_step`); any number settle.
    """

    def __init__(self, config: RolloutConfig, *, initial_version: int = 0, first_group_id: int = 0) -> None:
        self._config = config
        self._version = initial_version
        self._next_group_id = self._first_group_id = first_group_id
        self._entries: dict[int, _Entry] = {}
        self._num: Counter[_State] = Counter()  # of the entries: there are tens of thousands in a large run
        self._is_stepping = False
        self._changed = trio.Event()
        self._num_adopted = self._num_consumed = self._num_dropped = self._num_no_signal = self._num_cancelled = 0
        self._breaker = CircuitBreaker(config)
        self._ended = EndedGroups()
        self._cut: dict[int, Task] = {}

    @property
    def version(self) -> int:
        """The last published version: what age is counted from, and what a step starts from."""
        return self._version

    @property
    def newest_version(self) -> int:
        """The newest version that an engine can serve: while a step is running, the next one may be published."""
        return self._version + self._is_stepping

    @property
    def next_group_id(self) -> int:
        return self._next_group_id

    @property
    def open_tasks(self) -> tuple[Task, ...]:
        """The tasks of live and complete groups, oldest first."""
        return tuple(e.admitted.task for e in self._entries.values() if e.is_open)

    @property
    def cut_tasks(self) -> tuple[Task, ...]:
        """The tasks of groups that the end of the run cut off, oldest first."""
        return tuple(self._cut[group_id] for group_id in sorted(self._cut))

    async def admissible(self, env: str) -> None:
        """Wait until a group of `env` can be admitted and still be consumed in time."""
        while not self._is_admissible(env):
            before = self._pressure()
            while self._pressure() == before:
                await self._changed.wait()

    def _pressure(self) -> tuple[int, int, bool]:
        """What admissions wait for, as only one task admits: it does not change with each group that completes.

        The version besides, as a step may begin at once after another.
        """
        return self._num_open, self._version, self._is_stepping

    @property
    def _num_open(self) -> int:
        return self._num[_State.LIVE] + self._num[_State.COMPLETE]

    def _due(self, entry: _Entry) -> int:
        return entry.bound + (self._version if entry.admitted.is_waiting else entry.admitted.start_version)

    def _is_admissible(self, env: str) -> bool:
        # While a step is running, nothing can be consumed before the version after it.
        next_version = self.newest_version
        due = self._version + self._config.staleness_bound(env)
        capacity = self._config.batch_capacity
        if self._num_open < (due - next_version + 1) * capacity:
            return True  # nothing is due so soon, and so many, that it could matter
        dues = sorted([due, *(self._due(e) for e in self._entries.values() if e.is_open)])
        return all(count <= (d - next_version + 1) * capacity for count, d in enumerate(dues, start=1) if d >= due)

    def admit(self, task: Task, permit: Permit, task_position: int | None = None) -> AdmittedGroup:
        """Enter a group that holds `permit`. The ledger returns the permit from now on."""
        admitted = AdmittedGroup(
            group_id=self._next_group_id, task=task, start_version=self._version, task_position=task_position
        )
        bound = self._config.staleness_bound(task.env)
        self._enter(_Entry(admitted=admitted, permit=permit, bound=bound))
        self._next_group_id += 1
        return admitted

    def start(self, admitted: AdmittedGroup) -> None:
        """The episodes of a group that waited for places begin."""
        admitted.start_version = self._version

    def adopt(self, group: Group, permit: Permit) -> None:
        """Enter a group that an earlier process completed; its id lies below the first of this one."""
        if not 0 <= group.group_id < self._first_group_id or group.group_id in self._entries:
            raise RuntimeError(f"group {group.group_id} cannot be adopted: ids start at {self._first_group_id}")
        admitted = AdmittedGroup(group_id=group.group_id, task=group.task, start_version=group.start_version)
        bound = self._config.staleness_bound(group.task.env)
        self._enter(_Entry(admitted=admitted, permit=permit, bound=bound, state=_State.COMPLETE, group=group))
        self._num_adopted += 1

    def fate(self, group: Group) -> Fate:
        """What `settle` would do now with a group whose episodes have ended."""
        entry = self._running(group.group_id)
        if entry.admitted.switch.is_tripped:
            return "cancelled"
        if not any(trajectory.is_valid for trajectory in group.trajectories):
            return "dropped"
        return "no_signal" if self._config.dynamic_sampling and not group.has_signal else "complete"

    def settle(self, group: Group) -> None:
        """All episodes of `group` have ended. Raises NoProgressError, RuntimeError if it was settled before."""
        entry, fate = self._running(group.group_id), self.fate(group)
        try:
            if fate == "cancelled":
                self._ended.cancelled.append(group)
                self._cancelled(entry)
            elif fate == "complete":
                entry.group = group
                self._become(entry, _State.COMPLETE)
                self._breaker.completed(group)
            else:
                self._drop(entry, group, has_valid=fate == "no_signal")
        finally:
            self._notify()

    def _drop(self, entry: _Entry, group: Group, *, has_valid: bool) -> None:
        self._ended.dropped.append(group)
        self._ended.num_no_signal += has_valid
        self._num_dropped += 1
        self._num_no_signal += has_valid
        self._remove(entry)
        if has_valid:
            self._breaker.without_signal(group)
        else:
            self._breaker.failed(group)

    def abandon(self, group_id: int) -> None:
        """A group's episodes ended without a record, because the run is ending. Raises RuntimeError like `settle`."""
        entry = self._running(group_id)
        self._cut[group_id] = entry.admitted.task
        self._cancelled(entry)
        self._notify()

    def _running(self, group_id: int) -> _Entry:
        entry = self._entries.get(group_id)
        if entry is None or entry.state not in (_State.LIVE, _State.CANCELLED):
            raise RuntimeError(f"group {group_id} is not running; a group ends exactly once")
        return entry

    async def collect(self) -> CollectedBatch:
        """Wait for the batch of the next step and take it. `finish_step` must follow.

        The batch is every complete group, most urgent first (the oldest, where all tasks share one bound), at least
        min_groups_per_batch and at most max_groups_per_batch.
        """
        waits: dict[str, float] = {}
        while True:
            while self._num[_State.COMPLETE] < self._config.min_groups_per_batch:
                await self._changed.wait()
            batch, left_late = self._plan()
            if self._config.stragglers == "cancel":
                for entry in left_late:
                    self._become(entry, _State.CANCELLED)
                    entry.admitted.switch.trip()
                return self._take(batch, waits)
            if not left_late:
                return self._take(batch, waits)
            begun, awaited = trio.current_time(), self._awaited(left_late)
            await self._changed.wait()
            while awaited and len(self._awaited(awaited)) == len(awaited):
                await self._changed.wait()  # thousands end meanwhile, in a large run; to plan anew takes long
            for env in {entry.admitted.task.env for entry in awaited or left_late}:
                waits[env] = waits.get(env, 0.0) + trio.current_time() - begun

    def _awaited(self, left_late: Sequence[_Entry]) -> list[_Entry]:
        """Those without which there is no step, whatever else ends; of the others some may be left once more have."""
        return [e for e in left_late if e.state is _State.LIVE and self._due(e) <= self._version]

    def _plan(self) -> tuple[list[_Entry], list[_Entry]]:
        """The batch that a step would take now, and the groups that it must not leave behind."""
        capacity = self._config.batch_capacity
        in_order = sorted((e for e in self._entries.values() if e.is_open), key=lambda e: (self._due(e), e.group_id))
        batch = [e for e in in_order if e.state is _State.COMPLETE][:capacity]
        taken = {e.group_id for e in batch}
        num_left, left_late = 0, []
        for entry in in_order:
            if entry.group_id in taken:
                continue
            if num_left + 1 > (self._due(entry) - self._version) * capacity:
                left_late.append(entry)
            else:
                num_left += 1
        return batch, left_late

    def _take(self, batch: Sequence[_Entry], waits: Mapping[str, float]) -> CollectedBatch:
        self._is_stepping = True
        self._num_consumed += len(batch)
        for entry in batch:
            self._become(entry, _State.CONSUMED)
        return CollectedBatch(
            groups=tuple(entry.group for entry in batch if entry.group is not None),
            ages=tuple(self._version - entry.admitted.start_version for entry in batch),
            straggler_wait_s=waits,
        )

    def finish_step(self, version: int) -> None:
        """The step's version is served (or, after a step that was not finite, still is): return its permits."""
        if version < self._version:
            raise RuntimeError(f"versions never go back: {version} after {self._version}")
        self._version, self._is_stepping = version, False
        for entry in [e for e in self._entries.values() if e.state is _State.CONSUMED]:
            self._remove(entry)
        self._notify()

    def close(self) -> None:
        """End the complete groups that no step will consume; every episode must have ended."""
        for entry in list(self._entries.values()):
            self._cut[entry.group_id] = entry.admitted.task
            self._cancelled(entry)

    def drain_ended(self) -> EndedGroups:
        """Return and forget the groups that were dropped or cancelled since the last call."""
        ended, self._ended = self._ended, EndedGroups()
        return ended

    def _cancelled(self, entry: _Entry) -> None:
        self._num_cancelled += 1
        self._remove(entry)

    def _enter(self, entry: _Entry) -> None:
        self._entries[entry.group_id] = entry
        self._num[entry.state] += 1

    def _become(self, entry: _Entry, state: _State) -> None:
        self._num[entry.state] -= 1
        self._num[state] += 1
        entry.state = state

    def _remove(self, entry: _Entry) -> None:
        del self._entries[entry.group_id]
        self._become(entry, _State.ENDED)
        entry.permit.release()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    def statistics(self) -> LedgerStatistics:
        return LedgerStatistics(
            version=self._version,
            num_admitted=self._next_group_id - self._first_group_id + self._num_adopted,
            num_live=self._num[_State.LIVE] + self._num[_State.CANCELLED],
            num_complete=self._num[_State.COMPLETE],
            num_consumed=self._num_consumed,
            num_dropped=self._num_dropped,
            num_no_signal=self._num_no_signal,
            num_cancelled=self._num_cancelled,
        )
