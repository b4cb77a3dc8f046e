"""A Hugging Face checkpoint, or a GGUF file, to params: on the host, or straight onto a mesh."""

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import jax
import ml_dtypes  # noqa: F401 - registers bfloat16, which safetensors returns
import numpy as np
from jax.sharding import Mesh
from safetensors import SafetensorError, safe_open

from agentrl_jax.errors import ConfigError
from agentrl_jax.models.config import ModelConfig
from agentrl_jax.models.export import ExportDType
from agentrl_jax.models.families import hf_entries
from agentrl_jax.models.gguf_file import open_gguf
from agentrl_jax.models.hf_config import from_hf_config, read_json
from agentrl_jax.models.params import Params, build_tree, leaf_at
from agentrl_jax.models.specs import HostArray, Index, ParamSpec
from agentrl_jax.sharding import named_sharding

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
_DTYPES = {"F32", "F16", "BF16"}


def inspect_pretrained(folder: Path) -> tuple[ModelConfig, ExportDType]:
    """Return the architecture of a checkpoint folder, and the precision to save it in again, reading no weights.

    The precision is bfloat16 if every tensor is in it, else float32. Raises ConfigError as `load_pretrained` does.
    """
    if (file := _gguf_in(folder)) is not None:
        return open_gguf(file)[0], "float32"
    with ExitStack() as stack:
        config, tensors = _open_checked(folder, stack)
        dtypes = {tensor.get_dtype() for tensor in tensors.values()}
        return config, "bfloat16" if dtypes == {"BF16"} else "float32"


def load_pretrained(folder: Path, *, mesh: Mesh | None = None) -> tuple[ModelConfig, Params]:
    """Return the architecture and the params of a checkpoint folder: safetensors, in one file or sharded, or a GGUF.

    Values and their precision (float32, float16, bfloat16) are kept bit for bit; only the layout changes. A GGUF
    file, read only where there are no safetensors, gives float32: see `gguf_file`.

    mesh: None returns NumPy arrays. With a mesh every leaf is placed by its logical axes, and each process reads
      the slices of its own devices, no more.

    Raises ConfigError if a file is missing or damaged, the architecture is none that we compute, or the tensors are
    not exactly those of the architecture: none missing, none besides, each in its shape, one precision per leaf.
    """
    with ExitStack() as stack:
        file = _gguf_in(folder)
        config, tensors = _open_checked(folder, stack) if file is None else open_gguf(file)
        if mesh is None:
            return config, build_tree(config, lambda spec: _read_part(spec, _whole(spec), tensors))
        placed_on = mesh  # what the function below sees is not optional
        return config, build_tree(
            config, lambda spec: _place(spec, placed_on, lambda index: _read_part(spec, index, tensors))
        )


def place_params(config: ModelConfig, host: Params, mesh: Mesh) -> Params:
    """Return host params on `mesh`, by their logical axes, in their own precision; every process has the same ones."""

    def place(spec: ParamSpec) -> jax.Array:
        leaf: HostArray = leaf_at(host, spec.path)
        return _place(spec, mesh, lambda index: leaf[index])

    return build_tree(config, place)


def _gguf_in(folder: Path) -> Path | None:
    files = [] if has_safetensors(folder) else sorted(folder.glob("*.gguf"))
    if len(files) > 1:
        raise ConfigError(f"{folder}: expected one .gguf file, got {', '.join(file.name for file in files)}")
    return files[0] if files else None


def _open_checked(folder: Path, stack: ExitStack) -> tuple[ModelConfig, dict[str, Any]]:
    """The architecture, and each tensor in its open file, by name."""
    config = from_hf_config(read_json(folder / "config.json"), source=str(folder / "config.json"))
    tensors = _open_tensors(folder, stack)
    _check_names(folder, config, set(tensors))
    _check_shapes(folder, config, tensors)
    return config, tensors


def has_safetensors(folder: Path) -> bool:
    """Whether `folder` holds weights in Hugging Face's layout."""
    return (folder / INDEX).is_file() or (folder / WEIGHTS).is_file()


def _open_tensors(folder: Path, stack: ExitStack) -> dict[str, Any]:
    weight_map = None
    if (folder / INDEX).exists():
        weight_map = read_json(folder / INDEX).get("weight_map")
        if not isinstance(weight_map, dict) or not weight_map:
            raise ConfigError(f"{folder / INDEX} must map tensors to files under weight_map, got {weight_map!r}")
    tensors: dict[str, Any] = {}
    for name in [WEIGHTS] if weight_map is None else sorted(set(weight_map.values())):
        try:
            handle = stack.enter_context(safe_open(folder / name, "numpy"))
        except (FileNotFoundError, SafetensorError) as error:
            raise ConfigError(f"cannot read the weights in {folder / name}: {error}") from error
        for tensor in handle.keys():  # noqa: SIM118 - a file handle, not a dict
            if tensor in tensors:
                raise ConfigError(f"{folder}: tensor {tensor} stands in two files")
            tensors[tensor] = handle.get_slice(tensor)
    return tensors


def _check_names(folder: Path, config: ModelConfig, found: set[str]) -> None:
    expected = {name for name, _, _ in hf_entries(config)}
    problems = []
    if expected - found:
        problems.append(f"missing {_listed(expected - found)}")
    if found - expected:
        problems.append(f"unexpected {_listed(found - expected)}")
    if problems:
        raise ConfigError(f"{folder}: the tensors do not fit its config.json: {'; '.join(problems)}")


def _listed(names: set[str]) -> str:
    shown = sorted(names)
    return ", ".join(shown[:5]) + (f" and {len(shown) - 5} more" if len(shown) > 5 else "")


def _check_shapes(folder: Path, config: ModelConfig, tensors: Mapping[str, Any]) -> None:
    dtypes: dict[ParamSpec, str] = {}
    for name, spec, _ in hf_entries(config):
        view = tensors[name]
        shape, dtype = tuple(view.get_shape()), view.get_dtype()
        if shape != spec.hf_shape:
            raise ConfigError(f"{folder}: {name} must have shape {spec.hf_shape}, got {shape}")
        if dtype not in _DTYPES or dtypes.setdefault(spec, dtype) != dtype:
            raise ConfigError(
                f"{folder}: {name} must be one of {', '.join(sorted(_DTYPES))}, the same in all layers; got {dtype}"
            )


def _whole(spec: ParamSpec) -> Index:
    return tuple(slice(0, size) for size in spec.shape)


def _read_part(spec: ParamSpec, index: Index, tensors: Mapping[str, Any]) -> HostArray:
    """The part `index` of a leaf, as a C-contiguous array of its own."""

    def read_layer(name: str, part: Index) -> HostArray:
        view = tensors[name]
        return spec.read(part, lambda rectangle: view[rectangle])

    if not spec.is_stacked:
        return np.ascontiguousarray(read_layer(spec.hf_name, index))
    layers = range(spec.shape[0])[index[0]]
    parts = (read_layer(spec.hf_name.format(layer=layer), index[1:]) for layer in layers)
    first = next(parts)
    out = np.empty((len(layers), *first.shape), first.dtype)
    for place, part in zip(out, (first, *parts), strict=True):
        place[...] = part
    return out


def _place(spec: ParamSpec, mesh: Mesh, read: Callable[[Index], HostArray]) -> jax.Array:
    """The leaf on `mesh`, from a function that returns a part of it."""
    parts: dict[tuple[tuple[int, int, int], ...], HostArray] = {}

    def read_once(index: Index | None) -> HostArray:
        assert index is not None
        key = tuple(part.indices(size) for part, size in zip(index, spec.shape, strict=True))
        if key not in parts:  # devices that hold the same part
            parts[key] = read(index)
        return parts[key]

    sharding = named_sharding(mesh, spec.axes, spec.shape)
    return jax.make_array_from_callback(spec.shape, sharding, read_once)
