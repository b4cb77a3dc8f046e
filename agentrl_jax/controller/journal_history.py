"""What became of every group, version and step of a run: a fold over the lines of its journal.

    begun       a process starts from `step`: `version` serves the weights of `restored_version`; groups that the
                restored params do not contain are `adopted` (still complete, at an age) or `reissued` (drawn again)
    admitted    a group took its permit at a version; its task, and at which position of its env that was drawn
    started     it waited for places until this version, from which its age counts
    completed   its episodes ended; where its bytes lie
    ended       it was dropped or cancelled
    published   a version is about to be sent to the engines
    consumed    a step was taken from a version, on groups of these ages
    checkpoint  `step` is durable, and so is every kept one since `oldest`

One fold serves both readers: a run that resumes asks where things stand, the audit asks what went wrong.
"""

from collections import Counter, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from agentrl_jax.controller.journal_codec import task_from_json
from agentrl_jax.controller.journal_lines import Record
from agentrl_jax.errors import RecordError
from agentrl_jax.types import Task

KINDS = frozenset({"begun", "admitted", "started", "completed", "ended", "published", "consumed", "checkpoint"})


class Location(NamedTuple):
    """Where a completed group's bytes lie."""

    file: int
    offset: int
    num_bytes: int
    checksum: int


@dataclass(slots=True, kw_only=True)
class GroupEntry:
    """A group that is not final yet. version: its age counts from there. step: that consumed it, if one did."""

    group_id: int
    task: Task
    version: int
    state: Literal["live", "complete", "consumed"] = "live"
    step: int = 0
    location: Location | None = None


class Position(NamedTuple):
    """A point in the sequence of draws: processes begun, and the next group's id."""

    life: int
    group_id: int


class Draw(NamedTuple):
    """What happened to the task sampler: `drawn` came out of it, or (None) `requeued` were put into it.

    task_position: of `drawn`, see `TaskSampler.last_position`.
    """

    position: Position
    drawn: Task | None
    task_position: int | None
    requeued: tuple[Task, ...]


@dataclass(kw_only=True)
class History:
    """The state after the lines so far.

    step: the last one taken. version: what a step would start from. highest_version: -1 before the first publish.
    num_lives: processes that began. restarts: the version each of them began with, and what it restored (or None).
    groups: those whose end may still change, by id; a group consumed by a step that every kept checkpoint contains
    is final. pending: tasks that were put back and must be drawn next. draws: since the oldest kept checkpoint.
    positions: where each step left the draws, since that checkpoint. task_positions: of the last new draw of each env.
    totals: counts by name. problems: what cannot have happened in a correct run.
    """

    step: int = 0
    version: int = -1
    highest_version: int = -1
    oldest_step: int = 0
    num_lives: int = 0
    next_group_id: int = 0
    checkpoint_steps: list[int] = field(default_factory=list)
    restarts: dict[int, int | None] = field(default_factory=dict)
    bounds: Mapping[str, int] = field(default_factory=dict)
    groups: dict[int, GroupEntry] = field(default_factory=dict)
    pending: deque[Task] = field(default_factory=deque)
    draws: list[Draw] = field(default_factory=list)
    positions: dict[int, Position] = field(default_factory=dict)
    task_positions: dict[str, int] = field(default_factory=dict)
    totals: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)

    def apply(self, record: Record) -> None:
        """Fold one line in. Raises RecordError for a kind that does not exist, and for one that lacks something."""
        if record["kind"] not in KINDS:
            raise RecordError(
                f"there are no lines of kind {record['kind']!r}; another version of this package wrote it"
            )
        try:
            getattr(self, f"_{record['kind']}")(record)
        except KeyError as error:
            raise RecordError(
                f"a line of kind {record['kind']!r} lacks {error}; another version of this package wrote it"
            ) from error

    def distance(self, version: int, other: int | None) -> int | None:
        """Updates between the weights of two versions: back to what they have in common, and up again.

        None if they have nothing in common that is recorded, or one of them is None.
        """
        if other is None:
            return None
        count, older, newer = 0, *sorted((version, other))
        while older != newer:
            if newer in self.restarts:
                restored = self.restarts[newer]
                if restored is None:
                    return None
                newer = restored
            else:
                newer, count = newer - 1, count + 1
            older, newer = sorted((older, newer))
        return count

    def bound(self, env: str) -> int:
        """The largest age of a consumed group of `env`."""
        return self.bounds.get(env, self.bounds[""])

    def uncontained(self, step: int) -> list[GroupEntry]:
        """Groups that params after `step` steps do not contain and that have not been given up, in admission order."""
        entries = (self.groups[group_id] for group_id in sorted(self.groups))
        return [entry for entry in entries if entry.state != "consumed" or entry.step > step]

    @property
    def position(self) -> Position:
        return Position(self.num_lives, self.next_group_id)

    def draws_after(self, position: Position) -> list[Draw]:
        """What happened to the sampler since it stood at `position`."""
        life, group_id = position
        return [
            draw
            for draw in self.draws
            if draw.position.life > life
            or (draw.drawn is not None and draw.position.life == life and draw.position.group_id >= group_id)
        ]

    def needed_files(self) -> set[int]:
        return {entry.location.file for entry in self.groups.values() if entry.location is not None}

    def _problem(self, text: str) -> None:
        self.problems.append(f"life {self.num_lives}, after step {self.step}: {text}")

    def _begun(self, record: Record) -> None:
        self.num_lives += 1
        self.totals["lives"] += 1
        step, version = record["step"], record["version"]
        if self.num_lives > 1 and not self.oldest_step <= step <= self.step:
            self._problem(f"resumed at step {step}, but only steps {self.oldest_step} to {self.step} can be kept")
        if version != self.highest_version:
            self._problem(f"began with version {version}, but {self.highest_version} was published last")
        undone = [entry for entry in self.groups.values() if entry.state == "consumed" and entry.step > step]
        for entry in undone:
            entry.state, entry.step = "complete", 0
        self.totals["trained"] -= len(undone)
        self.totals["undone"] += len(undone)
        self._hand_over(record, version)
        self.checkpoint_steps = [kept for kept in self.checkpoint_steps if kept <= step]
        self.step, self.version, self.bounds = step, version, record["bounds"]
        self.restarts[version] = record["restored_version"]
        self.positions.setdefault(step, self.position)

    def _hand_over(self, record: Record, version: int) -> None:
        """Every group that the restored params do not contain is adopted or reissued; nothing else is."""
        ages = dict(record["adopted"])
        reissued = [entry for group_id in record["reissued"] if (entry := self._remove(group_id, "reissued"))]
        for entry in [entry for entry in self.groups.values() if entry.state != "consumed"]:
            age = ages.pop(entry.group_id, None)
            if age is None or entry.state != "complete":
                self._problem(f"group {entry.group_id} ({entry.task.key}) was lost: neither adopted nor reissued")
                self._remove(entry.group_id, "lost")
            else:
                entry.version = version - age
        for group_id in ages:
            self._problem(f"group {group_id} was adopted, but it had ended before")
        tasks = tuple(entry.task for entry in reissued)
        self.pending.extend(tasks)
        self.draws.append(Draw(self.position, None, None, tasks))
        self.totals["adopted"] += len(record["adopted"])

    def _admitted(self, record: Record) -> None:
        group_id, task, task_position = record["group"], task_from_json(record["task"]), record["position"]
        if group_id != self.next_group_id:
            self._problem(f"group {group_id} was admitted, but the next one is {self.next_group_id}")
        if record["version"] != self.version:
            self._problem(f"group {group_id} was admitted at version {record['version']}, not {self.version}")
        if self.pending and self.pending.popleft() != task:
            self._problem(f"group {group_id} is of {task.key}, but a reissued task should have come first")
        if task_position is not None:
            if task_position <= (before := self.task_positions.get(task.env, -1)):
                self._problem(f"group {group_id} drew position {task_position} of {task.env}, after {before}")
            self.task_positions[task.env] = task_position
        self.draws.append(Draw(Position(self.num_lives, group_id), task, task_position, ()))
        self.groups[group_id] = GroupEntry(group_id=group_id, task=task, version=record["version"])
        self.next_group_id = group_id + 1
        self.totals["admitted"] += 1

    def _started(self, record: Record) -> None:
        if record["version"] != self.version:
            self._problem(f"group {record['group']} started at version {record['version']}, not {self.version}")
        if (entry := self._entry(record["group"], "started", "live")) is not None:
            entry.version = record["version"]

    def _completed(self, record: Record) -> None:
        entry = self._entry(record["group"], "completed", "live")
        if entry is not None:
            entry.state, entry.location = "complete", Location(*record["location"])

    def _ended(self, record: Record) -> None:
        if self._entry(record["group"], record["how"], "live", "complete") is not None:
            self._remove(record["group"], record["how"])

    def _published(self, record: Record) -> None:
        version = record["version"]
        if version <= self.highest_version:
            self._problem(f"version {version} was published, after {self.highest_version}: versions never repeat")
        self.highest_version = max(version, self.highest_version)
        self.totals["published"] += 1

    def _consumed(self, record: Record) -> None:
        step, version = record["step"], record["version"]
        if step != self.step + 1:
            self._problem(f"step {step} was taken, but the next one is {self.step + 1}")
        if version != self.version:
            self._problem(f"step {step} started from version {version}, not {self.version}")
        for group_id, age in record["groups"]:
            entry = self._entry(group_id, f"consumed by step {step}", "complete")
            if entry is None:
                continue
            bound = self.bound(entry.task.env)
            if age != version - entry.version or not 0 <= age <= bound:
                self._problem(
                    f"step {step} consumed group {group_id} at age {age}: it is {version - entry.version}, and at "
                    f"most {bound} is allowed"
                )
            entry.state, entry.step = "consumed", step
            self.totals["trained"] += 1
        self.step, self.version = step, self.highest_version
        self.positions[step] = self.position

    def _checkpoint(self, record: Record) -> None:
        self.oldest_step = record["oldest"]
        self.checkpoint_steps.append(record["step"])
        self.totals["checkpoints"] += 1
        self._forget()

    def _forget(self) -> None:
        """Drop what is final: no checkpoint that is kept lies before it."""
        final = [e.group_id for e in self.groups.values() if e.state == "consumed" and e.step <= self.oldest_step]
        for group_id in final:
            del self.groups[group_id]
        oldest = self.positions.get(self.oldest_step)
        if oldest is not None:
            self.draws = self.draws_after(oldest)
            self.positions = {step: position for step, position in self.positions.items() if step >= self.oldest_step}

    def _entry(self, group_id: int, event: str, *states: str) -> GroupEntry | None:
        entry = self.groups.get(group_id)
        if entry is None:
            self._problem(f"group {group_id} was {event}, but it is unknown or has ended before")
        elif entry.state not in states:
            self._problem(f"group {group_id} was {event}, but it is {entry.state} already (step {entry.step})")
            entry = None
        return entry

    def _remove(self, group_id: int, how: str) -> GroupEntry | None:
        entry = self.groups.pop(group_id, None)
        if entry is None:
            self._problem(f"group {group_id} was {how}, but it is unknown or has ended before")
        else:
            self.totals[how] += 1
        return entry


def fold(records: Iterable[Record]) -> History:
    """The state after `records`."""
    history = History()
    for record in records:
        history.apply(record)
    return history
