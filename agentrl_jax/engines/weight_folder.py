"""Which tensors a folder of weights holds, from the headers of its safetensors files: nothing else is read. No jax."""

import json
from collections.abc import Mapping
from pathlib import Path

from safetensors import SafetensorError, safe_open

from agentrl_jax.errors import ConfigError, EngineError

TensorShapes = Mapping[str, tuple[int, ...]]

_WEIGHTS = "model.safetensors"
_INDEX = "model.safetensors.index.json"
_MAX_LISTED = 5


def tensor_shapes(folder: Path) -> dict[str, tuple[int, ...]]:
    """Name to shape of every tensor. Raises ConfigError: no weights, a damaged file, or a name that stands twice."""
    shapes: dict[str, tuple[int, ...]] = {}
    for file in _files(folder):
        try:
            with safe_open(file, "numpy") as handle:
                for name in handle.keys():  # noqa: SIM118 - a file handle, not a dict
                    if name in shapes:
                        raise ConfigError(f"{folder}: tensor {name} stands in two files")
                    shapes[name] = tuple(handle.get_slice(name).get_shape())
        except (OSError, SafetensorError) as error:
            raise ConfigError(f"cannot read the weights in {file}: {error}") from error
    return shapes


def check_tensors(folder: Path, expected: TensorShapes) -> None:
    """Raise EngineError unless `folder` holds exactly `expected`, each in its shape."""
    try:
        found = tensor_shapes(folder)
    except ConfigError as error:
        raise EngineError(f"weights cannot be served: {error}") from error
    problems = [f"missing {name}" for name in expected.keys() - found.keys()]
    problems += [f"unknown {name}" for name in found.keys() - expected.keys()]
    problems += [
        f"{name} must have shape {expected[name]}, got {found[name]}"
        for name in expected.keys() & found.keys()
        if expected[name] != found[name]
    ]
    if problems:
        more = f" and {len(problems) - _MAX_LISTED} more" if len(problems) > _MAX_LISTED else ""
        raise EngineError(f"weights cannot be served: {folder}: {'; '.join(sorted(problems)[:_MAX_LISTED])}{more}")


def _files(folder: Path) -> list[Path]:
    if not (folder / _INDEX).is_file():
        return [folder / _WEIGHTS]
    try:
        files = json.loads((folder / _INDEX).read_text(encoding="utf-8"))["weight_map"]
        return [folder / name for name in sorted(set(files.values()))]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{folder / _INDEX} must map tensors to files under weight_map: {error!r}") from error
