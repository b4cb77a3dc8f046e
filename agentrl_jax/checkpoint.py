"""Checkpoints: everything a run needs to go on, made durable in one rename.

    FOLDER/step-00000012/arrays/           params, optimiser and step, and the lagging policy's weights (Orbax)
    FOLDER/step-00000012/checkpoint.json   step, the caller's loop state, shapes, and the size of every file
    FOLDER/step-00000014.partial/          a save under way, or one that a crash cut short
    FOLDER/step-00000008.removed/          an old checkpoint on its way out

A folder called step-N is complete: Orbax writes the arrays in the background under another name, then every file is
flushed to the disk, then the folder is renamed, then the disk is told of the rename. Only after that is an older
checkpoint renamed away and deleted, and the owner told that step N is durable. At every moment before, between and
after, at least one complete checkpoint exists once the first one does.

On several hosts every process calls `save`, `wait` and `restore`; the first one names, lists and deletes, and is the
only one to be told what is durable. The folder must be on a file system that all of them see.
"""

import json
import os
import re
import shutil
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Generic, NamedTuple, TypeVar

import jax
import orbax.checkpoint as ocp

from agentrl_jax.errors import AgentRLError, ConfigError

State = TypeVar("State")

FORMAT = 1
_NAME = re.compile(r"step-(\d{8,})")
_ARRAYS = "arrays"
_RECORD = "checkpoint.json"

OnDurable = Callable[[int, int], None]
"""Called with (step, the oldest step that is still kept), from the thread that saves; an exception fails the save."""


class CheckpointError(AgentRLError):
    """A checkpoint could not be written. Older ones are untouched."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored(Generic[State]):
    """What `save` was given. lagging: None if none was saved, or none was asked for."""

    state: State
    loop_state: dict[str, Any]
    lagging: Any


class _Job(NamedTuple):
    step: int
    loop_state: str
    shapes: dict[str, list[str]]


class CheckpointStore:
    """The checkpoints of one run. One thread at a time; use it as a context manager, which waits for the last save."""

    def __init__(self, folder: Path, *, keep: int = 2, on_durable: OnDurable | None = None) -> None:
        """Open or create `folder`, and remove what a crash left half-written or half-deleted.

        keep: newest checkpoints that stay. Raises ConfigError if it is below 1, or the folder cannot be written.
        """
        if keep < 1:
            raise ConfigError(f"a run must keep at least 1 checkpoint, got keep = {keep}")
        self.folder = folder.absolute()
        self._keep = keep
        self._on_durable = on_durable
        self._is_first_process = jax.process_index() == 0
        self._checkpointer = ocp.AsyncCheckpointer(ocp.CompositeCheckpointHandler())
        self._committer = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._pending: Future[None] | None = None
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._clean()
        except OSError as error:
            raise ConfigError(f"checkpoint folder {folder} cannot be written: {error.strerror or error}") from error

    def __enter__(self) -> "CheckpointStore":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.wait()
        finally:
            self._committer.shutdown()
            self._checkpointer.close()

    def steps(self) -> tuple[int, ...]:
        """The steps of the complete checkpoints, oldest first."""
        names = (_NAME.fullmatch(path.name) for path in self.folder.iterdir())
        return tuple(sorted(int(match.group(1)) for match in names if match))

    def latest(self) -> int | None:
        """The newest complete checkpoint's step, or None."""
        return max(self.steps(), default=None)

    def path(self, step: int) -> Path:
        return self.folder / f"step-{step:08d}"

    def save(self, step: int, state: Any, loop_state: Mapping[str, Any], lagging: Any = None) -> None:
        """Begin to save, and return once the arrays have been copied: the next learner step may take their buffers.

        state: a NamedTuple of arrays, params and optimiser included. loop_state: strict JSON. lagging: a tree of
        arrays, or None. Waits for the previous save first, and raises CheckpointError if that one failed, if the
        disk has too little room, or if the arrays cannot be copied; TypeError or ValueError if loop_state is no JSON.
        """
        job = _Job(step, json.dumps(loop_state, allow_nan=False), _shapes({"state": state, "lagging": lagging}))
        self.wait()
        if step in self.steps():
            raise CheckpointError(
                f"checkpoint {self.path(step)} exists; steps count up, and restarts call forget_after"
            )
        self._check_room((state, lagging))
        items = {"state": state} if lagging is None else {"state": state, "lagging": lagging}
        arguments = ocp.args.Composite(**{name: ocp.args.StandardSave(item) for name, item in items.items()})
        try:
            self._checkpointer.save(self._partial(step) / _ARRAYS, args=arguments, force=True)
        except (ValueError, OSError) as error:
            raise self._failure(step, error) from error
        self._pending = self._committer.submit(self._commit, job)

    def wait(self) -> None:
        """Return when the last save is durable. Raises CheckpointError if it failed (once)."""
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()

    def forget_after(self, step: int) -> None:
        """Remove the checkpoints of later steps: a run that goes on from `step` will make its own."""
        for later in [s for s in self.steps() if s > step]:
            self._remove(self.path(later))

    def restore(self, step: int, abstract_state: State, abstract_lagging: Any = None) -> Restored[State]:
        """Return checkpoint `step`, placed as the abstract trees say, whatever mesh it was saved from.

        abstract_state, abstract_lagging: trees of jax.ShapeDtypeStruct with shardings. The lagging weights are
        read only if asked for. Raises ConfigError, naming the folder, if it is not a whole checkpoint of such a state.
        """
        record = self._read_record(step)
        wanted = {"state": abstract_state}
        if abstract_lagging is not None and record["has_lagging"]:
            wanted["lagging"] = abstract_lagging
        self._check_shapes(step, record["shapes"], wanted)
        arguments = ocp.args.Composite(**{name: ocp.args.StandardRestore(item) for name, item in wanted.items()})
        try:
            items = self._checkpointer.restore(self.path(step) / _ARRAYS, args=arguments)
        except (ValueError, KeyError, OSError) as error:
            raise ConfigError(
                f"checkpoint {self.path(step)} cannot be read: {_first_line(error)}. Remove it to go on from an "
                f"older one (there are {list(self.steps())})"
            ) from error
        return Restored(state=items["state"], loop_state=record["loop_state"], lagging=items.get("lagging"))

    def loop_state(self, step: int) -> dict[str, Any]:
        """Return the loop state of checkpoint `step` without its arrays. Raises ConfigError like `restore`."""
        loop_state: dict[str, Any] = self._read_record(step)["loop_state"]
        return loop_state

    def _commit(self, job: _Job) -> None:
        partial, final = self._partial(job.step), self.path(job.step)
        try:
            self._checkpointer.wait_until_finished()
            if not self._is_first_process:
                return
            record = {
                "format": FORMAT,
                "step": job.step,
                "loop_state": json.loads(job.loop_state),
                "has_lagging": any(name.startswith("['lagging']") for name in job.shapes),
                "shapes": job.shapes,
                "file_bytes": _file_bytes(partial),
            }
            (partial / _RECORD).write_text(json.dumps(record, allow_nan=False), encoding="utf-8")
            _flush(partial)
            partial.rename(final)
            _flush_one(self.folder)
        except (ValueError, OSError) as error:
            raise self._failure(job.step, error) from error
        for old in self.steps()[: -self._keep]:
            self._remove(self.path(old))
        if self._on_durable is not None:
            self._on_durable(job.step, self.steps()[0])

    def _read_record(self, step: int) -> dict[str, Any]:
        path = self.path(step)
        hint = f"; expected a checkpoint of this program, and there are {list(self.steps())}"
        try:
            record: dict[str, Any] = json.loads((path / _RECORD).read_text(encoding="utf-8"))
            is_ours = record["format"] == FORMAT and record["step"] == step
        except FileNotFoundError as error:
            raise ConfigError(f"{path} has no {_RECORD}{hint}") from error
        except (ValueError, KeyError, TypeError, OSError) as error:
            raise ConfigError(f"{path / _RECORD} cannot be read: {_first_line(error)}{hint}") from error
        if not is_ours:
            raise ConfigError(f"{path / _RECORD} is of format {record['format']} and step {record['step']}{hint}")
        there = _file_bytes(path)
        for name, size in record["file_bytes"].items():
            if there.get(name) != size:
                raise ConfigError(f"{path / name} should have {size} bytes, but has {there.get(name, 'gone')}{hint}")
        return record

    def _check_shapes(self, step: int, saved: Mapping[str, list[str]], wanted: Mapping[str, Any]) -> None:
        expected = _shapes(wanted)
        kept = {name: leaf for name, leaf in saved.items() if any(name.startswith(f"['{w}']") for w in wanted)}
        different = [name for name in sorted(expected.keys() | kept.keys()) if expected.get(name) != kept.get(name)]
        if different:
            name = different[0]
            raise ConfigError(
                f"checkpoint {self.path(step)} is of another model or optimiser: {len(different)} arrays differ, the "
                f"first being {name}: expected {expected.get(name, 'none')}, saved is {kept.get(name, 'none')}"
            )

    def _check_room(self, tree: Any) -> None:
        needed = sum(leaf.nbytes for leaf in jax.tree.leaves(tree))
        free = shutil.disk_usage(self.folder).free
        if free < needed:
            raise CheckpointError(
                f"no room for a checkpoint in {self.folder}: it needs up to {needed / 1e9:.3g} GB, {free / 1e9:.3g} GB "
                f"are free. The checkpoints of steps {list(self.steps())} are untouched"
            )

    def _failure(self, step: int, error: Exception) -> CheckpointError:
        return CheckpointError(
            f"checkpoint of step {step} in {self.folder} failed: {_first_line(error)}. The checkpoints of steps "
            f"{list(self.steps())} are untouched"
        )

    def _partial(self, step: int) -> Path:
        return self.folder / f"{self.path(step).name}.partial"

    def _clean(self) -> None:
        if self._is_first_process:
            for path in [*self.folder.glob("step-*.partial"), *self.folder.glob("step-*.removed")]:
                shutil.rmtree(path)

    def _remove(self, path: Path) -> None:
        """Delete a checkpoint so that no moment shows half of one under its name."""
        removed = path.with_name(f"{path.name}.removed")
        path.rename(removed)
        shutil.rmtree(removed)


def _shapes(trees: Mapping[str, Any]) -> dict[str, list[str]]:
    """Shape and dtype of every array, by its path in the tree."""
    leaves = jax.tree_util.tree_flatten_with_path(dict(trees))[0]
    return {jax.tree_util.keystr(path): [str(tuple(leaf.shape)), str(leaf.dtype)] for path, leaf in leaves}


def _file_bytes(folder: Path) -> dict[str, int]:
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != _RECORD)
    return {path.relative_to(folder).as_posix(): path.stat().st_size for path in files}


def _flush(folder: Path) -> None:
    """Have every file and folder under `folder` written to the disk, the folder itself last."""
    for root, _, names in os.walk(folder, topdown=False):
        for name in names:
            _flush_one(Path(root) / name)
        _flush_one(Path(root))


def _flush_one(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines() or ["no text"]
    return f"{type(error).__name__}: {lines[0]}"
