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
import shutil
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import jax
import orbax.checkpoint as ocp

from agentrl_jax.checkpoint_reading import ARRAYS, FORMAT, RECORD, CheckpointReader, file_bytes, first_line, shapes
from agentrl_jax.errors import AgentRLError, ConfigError

OnDurable = Callable[[int, int], None]
"""Called with (step, the oldest step that is still kept), from the thread that saves; an exception fails the save."""


class CheckpointError(AgentRLError):
    """A checkpoint could not be written. Older ones are untouched."""


class _Job(NamedTuple):
    step: int
    loop_state: str
    shapes: dict[str, list[str]]


class CheckpointStore(CheckpointReader):
    """The checkpoints of one run. One thread at a time; use it as a context manager, which waits for the last save."""

    def __init__(
        self,
        folder: Path,
        *,
        keep: int = 2,
        on_durable: OnDurable | None = None,
        before_save: Callable[[int], None] | None = None,
    ) -> None:
        """Open or create `folder`, and remove what a crash left half-written or half-deleted.

        keep: newest checkpoints that stay. before_save: called with the step once a save can begin, before anything
        that several processes do together. Raises ConfigError if it is below 1, or the folder cannot be written.
        """
        if keep < 1:
            raise ConfigError(f"a run must keep at least 1 checkpoint, got keep = {keep}")
        super().__init__(folder)
        self._keep = keep
        self._on_durable, self._before_save = on_durable, before_save
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

    def save(self, step: int, state: Any, loop_state: Mapping[str, Any], lagging: Any = None) -> None:
        """Begin to save, and return once the arrays have been copied: the next learner step may take their buffers.

        state: a NamedTuple of arrays, params and optimiser included. loop_state: strict JSON. lagging: a tree of
        arrays, or None. Waits for the previous save first, and raises CheckpointError if that one failed, if the
        disk has too little room, or if the arrays cannot be copied; TypeError or ValueError if loop_state is no JSON.
        """
        job = _Job(step, json.dumps(loop_state, allow_nan=False), shapes({"state": state, "lagging": lagging}))
        self.wait()
        if step in self.steps():
            raise CheckpointError(
                f"checkpoint {self.path(step)} exists; steps count up, and restarts call forget_after"
            )
        if self._is_first_process:
            self._check_room((state, lagging))
        if self._before_save is not None:
            self._before_save(step)
        items = {"state": state} if lagging is None else {"state": state, "lagging": lagging}
        arguments = ocp.args.Composite(**{name: ocp.args.StandardSave(item) for name, item in items.items()})
        try:
            self._checkpointer.save(self._partial(step) / ARRAYS, args=arguments, force=True)
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
        if self._is_first_process:
            for later in [s for s in self.steps() if s > step]:
                self._remove(self.path(later))

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
                "file_bytes": file_bytes(partial),
            }
            (partial / RECORD).write_text(json.dumps(record, allow_nan=False), encoding="utf-8")
            _flush(partial)
            partial.rename(final)
            _flush_one(self.folder)
        except (ValueError, OSError) as error:
            raise self._failure(job.step, error) from error
        for old in self.steps()[: -self._keep]:
            self._remove(self.path(old))
        if self._on_durable is not None:
            self._on_durable(job.step, self.steps()[0])

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
            f"checkpoint of step {step} in {self.folder} failed: {first_line(error)}. The checkpoints of steps "
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
