"""The reading half of checkpoints: which there are, whether one is whole and of the wanted shapes, and its content.

Nothing here writes, so that a run can be looked at while it goes on.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import jax
import orbax.checkpoint as ocp

from agentrl_jax.errors import ConfigError

State = TypeVar("State")

FORMAT = 1
ARRAYS = "arrays"
RECORD = "checkpoint.json"
_NAME = re.compile(r"step-(\d{8,})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored(Generic[State]):
    """What `save` was given. lagging: None if none was saved, or none was asked for."""

    state: State
    loop_state: dict[str, Any]
    lagging: Any


class CheckpointReader:
    """The checkpoints in a folder, as `CheckpointStore` writes them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.absolute()

    def steps(self) -> tuple[int, ...]:
        """The steps of the complete checkpoints, oldest first; () where there is no folder."""
        if not self.folder.is_dir():
            return ()
        names = (_NAME.fullmatch(path.name) for path in self.folder.iterdir())
        return tuple(sorted(int(match.group(1)) for match in names if match))

    def latest(self) -> int | None:
        """The newest complete checkpoint's step, or None."""
        return max(self.steps(), default=None)

    def path(self, step: int) -> Path:
        return self.folder / f"step-{step:08d}"

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
            with ocp.Checkpointer(ocp.CompositeCheckpointHandler()) as checkpointer:
                items = checkpointer.restore(self.path(step) / ARRAYS, args=arguments)
        except (ValueError, KeyError, OSError) as error:
            raise ConfigError(
                f"checkpoint {self.path(step)} cannot be read: {first_line(error)}. Remove it to go on from an "
                f"older one (there are {list(self.steps())})"
            ) from error
        return Restored(state=items["state"], loop_state=record["loop_state"], lagging=items.get("lagging"))

    def loop_state(self, step: int) -> dict[str, Any]:
        """Return the loop state of checkpoint `step` without its arrays. Raises ConfigError like `restore`."""
        loop_state: dict[str, Any] = self._read_record(step)["loop_state"]
        return loop_state

    def _read_record(self, step: int) -> dict[str, Any]:
        path = self.path(step)
        hint = f"; expected a checkpoint of this program, and there are {list(self.steps())}"
        try:
            record: dict[str, Any] = json.loads((path / RECORD).read_text(encoding="utf-8"))
            is_ours = record["format"] == FORMAT and record["step"] == step
        except FileNotFoundError as error:
            raise ConfigError(f"{path} has no {RECORD}{hint}") from error
        except (ValueError, KeyError, TypeError, OSError) as error:
            raise ConfigError(f"{path / RECORD} cannot be read: {first_line(error)}{hint}") from error
        if not is_ours:
            if isinstance(record["format"], int) and record["format"] > FORMAT:
                raise ConfigError(
                    f"{path / RECORD} is of format {record['format']}, but this version of agentrl_jax reads up to "
                    f"format {FORMAT}: go on with the version that wrote it, or a later one"
                )
            raise ConfigError(f"{path / RECORD} is of format {record['format']} and step {record['step']}{hint}")
        there = file_bytes(path)
        for name, size in record["file_bytes"].items():
            if there.get(name) != size:
                raise ConfigError(f"{path / name} should have {size} bytes, but has {there.get(name, 'gone')}{hint}")
        return record

    def _check_shapes(self, step: int, saved: Mapping[str, list[str]], wanted: Mapping[str, Any]) -> None:
        expected = shapes(wanted)
        kept = {name: leaf for name, leaf in saved.items() if any(name.startswith(f"['{w}']") for w in wanted)}
        different = [name for name in sorted(expected.keys() | kept.keys()) if expected.get(name) != kept.get(name)]
        if different:
            name = different[0]
            raise ConfigError(
                f"checkpoint {self.path(step)} is of another model or optimiser: {len(different)} arrays differ, the "
                f"first being {name}: expected {expected.get(name, 'none')}, saved is {kept.get(name, 'none')}"
            )


def shapes(trees: Mapping[str, Any]) -> dict[str, list[str]]:
    """Shape and dtype of every array, by its path in the tree."""
    leaves = jax.tree_util.tree_flatten_with_path(dict(trees))[0]
    return {jax.tree_util.keystr(path): [str(tuple(leaf.shape)), str(leaf.dtype)] for path, leaf in leaves}


def file_bytes(folder: Path) -> dict[str, int]:
    """Size of every file under `folder`, but the record itself, by its path in it."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != RECORD)
    return {path.relative_to(folder).as_posix(): path.stat().st_size for path in files}


def first_line(error: BaseException) -> str:
    """Type and first line of an exception: Orbax's are pages long."""
    lines = str(error).strip().splitlines() or ["no text"]
    return f"{type(error).__name__}: {lines[0]}"
