"""The durable half of the ledger: what a run must not forget, on disk before it counts.

    RUN_DIR/ledger/history.jsonl     every event of every group, version and step (journal_history.py); kept forever,
                                     some 300 bytes a group
    RUN_DIR/ledger/groups-00003.bin  completed groups, whole (journal_codec.py), one after the other; a new file after
                                     each checkpoint, deleted once no kept checkpoint could need a group in it

A group's bytes are flushed before the line that says where they lie, and that line before `completed` returns: no
step consumes a group that a crash could take away. `published` returns, flushed, before the first weight is sent. The
other lines may be lost with the crash, as if the event had not happened: their groups are drawn or rolled out again.

Any number of threads may write; those that wait for the disk at the same time share one flush.
"""

import json
import os
import zlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from threading import Lock
from types import TracebackType
from typing import Any

from agentrl_jax.controller.journal_codec import decode_group, encode_group, task_to_json
from agentrl_jax.controller.journal_files import AppendFile, flush_folder
from agentrl_jax.controller.journal_history import History, Position, fold
from agentrl_jax.controller.journal_lines import decode_lines, encode_line
from agentrl_jax.controller.ledger import Ending
from agentrl_jax.errors import ConfigError, RecordError
from agentrl_jax.types import Group, Task

HISTORY_NAME = "history.jsonl"


class Journal:
    """Writes one run's journal. Use it as a context manager; one process at a time."""

    def __init__(self, folder: Path, *, fsync: Callable[[int], None] = os.fsync) -> None:
        """Open or create `folder` and read its history; a torn last line is cut off.

        fsync: replaced in tests. Raises ConfigError if the folder cannot be written, another process writes to it, or
        its history is damaged.
        """
        self.folder = folder
        self._fsync = fsync
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with ExitStack() as unopened:
                self._lines = AppendFile(folder / HISTORY_NAME, fsync)
                unopened.callback(self._lines.close)
                self.history, self.num_cut_bytes = read_history(folder)
                self._lines.truncate(self._lines.size - self.num_cut_bytes)
                flush_folder(folder, fsync)
                unopened.pop_all()
        except BlockingIOError as error:
            raise ConfigError(
                f"another process writes to {folder}; a run directory belongs to one run at a time"
            ) from error
        except OSError as error:
            raise ConfigError(f"ledger {folder} cannot be written: {error.strerror or error}") from error
        self._lock = Lock()
        self._files: dict[int, AppendFile] = {}
        self._num_writing: Counter[int] = Counter()
        self._file = max(_group_files(folder), default=-1) + 1  # what a crash left is never written again

    def __enter__(self) -> "Journal":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lines.close()
        for file in self._files.values():
            file.close()

    def begin(
        self,
        *,
        step: int,
        version: int,
        restored_version: int | None,
        bounds: Mapping[str, int],
        adopted: Mapping[int, int],
        reissued: Sequence[int],
    ) -> None:
        """This process starts from `step` and is about to serve `version`; flushed.

        bounds: the largest age by env, "" for all others. adopted: ages by group id. reissued: group ids whose tasks
        are drawn again. See journal_resume.py, which decides all of them.
        """
        self._append({"kind": "published", "version": version})
        self._append(
            {
                "kind": "begun",
                "step": step,
                "version": version,
                "restored_version": restored_version,
                "bounds": dict(bounds),
                "adopted": list(adopted.items()),
                "reissued": list(reissued),
            }
        )
        self.flush()

    def admitted(self, group_id: int, task: Task, version: int, task_position: int | None) -> None:
        """A group took its permit. task_position: see `AdmittedGroup`. Not flushed."""
        self._append(
            {
                "kind": "admitted",
                "group": group_id,
                "task": task_to_json(task),
                "position": task_position,
                "version": version,
            }
        )

    def started(self, group_id: int, version: int) -> None:
        """A group that waited for places starts, later than it was admitted. Not flushed."""
        self._append({"kind": "started", "group": group_id, "version": version})

    def completed(self, group: Group) -> None:
        """A group's episodes ended and it is to be trained; flushed, bytes and line."""
        data = encode_group(group)
        with self._lock:
            number = self._file
            file = self._open_file(number)
            self._num_writing[number] += 1
            offset = file.write(data)
        try:
            file.flush(offset + len(data))
            location = [number, offset, len(data), zlib.crc32(data)]
            self._append({"kind": "completed", "group": group.group_id, "location": location})
            self.flush()
        finally:
            with self._lock:
                self._num_writing[number] -= 1
                self._close_unused()

    def ended(self, group_id: int, how: Ending) -> None:
        """A group ended without being trained. Not flushed."""
        self._append({"kind": "ended", "group": group_id, "how": how})

    def published(self, version: int) -> None:
        """`version` is about to be sent to the engines; flushed."""
        self._append({"kind": "published", "version": version})
        self.flush()

    def consumed(self, step: int, version: int, ages: Mapping[int, int]) -> None:
        """Step number `step` (from 1) was taken from `version`. ages: by group id. Not flushed: flush, then save."""
        self._append({"kind": "consumed", "step": step, "version": version, "groups": list(ages.items())})

    def checkpoint_durable(self, step: int, oldest: int) -> None:
        """The params after `step` steps are on disk; `oldest` is the oldest kept checkpoint. Deletes what is final."""
        self._append({"kind": "checkpoint", "step": step, "oldest": oldest})
        self.flush()
        with self._lock:
            self._file += self._file in self._files  # an empty file serves the next interval as well
            self._close_unused()
            for number in _group_files(self.folder) - self._files.keys() - self.history.needed_files():
                (self.folder / _group_name(number)).unlink()

    def position(self) -> list[int]:
        """Where the task draws stand, as JSON; to be saved together with the sampler's state of this very moment."""
        with self._lock:
            return list(self.history.position)

    def load(self, group_id: int) -> Group | None:
        """A complete or consumed group that is not final, or None if its bytes are gone or damaged.

        Raises ConfigError if they are whole, but none that this version writes.
        """
        entry = self.history.groups.get(group_id)
        if entry is None or entry.location is None:
            return None
        number, offset, num_bytes, checksum = entry.location
        try:
            with (self.folder / _group_name(number)).open("rb") as file:
                file.seek(offset)
                data = file.read(num_bytes)
        except FileNotFoundError:
            return None
        if len(data) != num_bytes or zlib.crc32(data) != checksum:
            return None
        try:
            return decode_group(data)
        except RecordError as error:
            raise ConfigError(
                f"ledger {self.folder}: group {group_id} was written by another version of agentrl_jax ({error}). Go "
                "on with that version, or start a new run from what this one learnt: --model with its directory"
            ) from error

    def flush(self) -> None:
        """Return when everything written so far is on disk."""
        self._lines.flush(self._lines.size)

    def _open_file(self, number: int) -> AppendFile:
        if number not in self._files:
            self._files[number] = AppendFile(self.folder / _group_name(number), self._fsync)
            flush_folder(self.folder, self._fsync)
        return self._files[number]

    def _close_unused(self) -> None:
        for number in [n for n in self._files if n < self._file and not self._num_writing[n]]:
            self._files.pop(number).close()

    def _append(self, record: Mapping[str, Any]) -> None:
        line = encode_line(record)
        with self._lock:
            self._lines.write(line)
            self.history.apply(json.loads(line))


def read_history(folder: Path) -> tuple[History, int]:
    """The state of the journal in `folder`, and how many bytes of a torn end it has; empty if there is no journal.

    Raises ConfigError if the history is damaged.
    """
    path = folder / HISTORY_NAME
    if not path.exists():
        return History(), 0
    data = path.read_bytes()
    try:
        lines = decode_lines(data)
        history = fold(lines.records)
    except RecordError as error:
        raise ConfigError(f"{path} cannot be used: {error}. Restore it from a backup") from error
    return history, len(data) - lines.num_bytes


def position_from_json(values: Sequence[int]) -> Position:
    """Undo `Journal.position`."""
    life, group_id = values
    return Position(life, group_id)


def _group_name(number: int) -> str:
    return f"groups-{number:05d}.bin"


def _group_files(folder: Path) -> set[int]:
    return {int(path.stem.removeprefix("groups-")) for path in folder.glob("groups-*.bin")}
