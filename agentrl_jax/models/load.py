"""A Hugging Face checkpoint to host params."""

import json
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import ml_dtypes  # noqa: F401 - registers bfloat16, which safetensors returns
import numpy as np
from safetensors import SafetensorError, safe_open

from agentrl_jax.errors import ConfigError
from agentrl_jax.models.config import ModelConfig
from agentrl_jax.models.hf_config import from_hf_config
from agentrl_jax.models.params import HostArray, Params, ParamSpec, build_tree, hf_entries

_WEIGHTS = "model.safetensors"
_INDEX = "model.safetensors.index.json"
_DTYPES = {"F32", "F16", "BF16"}


def load_pretrained(folder: Path) -> tuple[ModelConfig, Params]:
    """Return the architecture and the host params of a Qwen2 checkpoint in safetensors, in one file or sharded.

    Values and their precision (float32, float16, bfloat16) are kept bit for bit; only the layout changes.
    Raises ConfigError if a file is missing or damaged, the architecture is another one, or the tensors are not
    exactly those of the architecture: none missing, none besides, each in its shape, one precision per leaf.
    """
    config = from_hf_config(_read_json(folder / "config.json"), source=str(folder / "config.json"))
    with ExitStack() as stack:
        tensors = _open_tensors(folder, stack)
        _check_names(folder, config, set(tensors))
        _check_shapes(folder, config, tensors)
        return config, build_tree(config, lambda spec: _read_leaf(config, spec, tensors))


def _read_json(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise ConfigError(f"expected a Hugging Face checkpoint, but there is no {path}") from None
    except ValueError as error:
        raise ConfigError(f"{path} must hold JSON: {error}") from error
    if not isinstance(data, dict):
        raise ConfigError(f"{path} must hold a JSON object, got {type(data).__name__}")
    return data


def _open_tensors(folder: Path, stack: ExitStack) -> dict[str, Any]:
    """Map each tensor's name to the open file that holds it."""
    if (folder / _INDEX).exists():
        files = sorted(set(_read_json(folder / _INDEX).get("weight_map", {}).values()))
    else:
        files = [_WEIGHTS]
    tensors: dict[str, Any] = {}
    for name in files:
        try:
            handle = stack.enter_context(safe_open(folder / name, "numpy"))
        except (FileNotFoundError, SafetensorError) as error:
            raise ConfigError(f"cannot read the weights in {folder / name}: {error}") from error
        for tensor in handle.keys():  # noqa: SIM118 - a file handle, not a dict
            if tensor in tensors:
                raise ConfigError(f"{folder}: tensor {tensor} stands in two files")
            tensors[tensor] = handle
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
        view = tensors[name].get_slice(name)
        shape, dtype = tuple(view.get_shape()), view.get_dtype()
        if shape != spec.hf_shape:
            raise ConfigError(f"{folder}: {name} must have shape {spec.hf_shape}, got {shape}")
        if dtype not in _DTYPES or dtypes.setdefault(spec, dtype) != dtype:
            raise ConfigError(
                f"{folder}: {name} must be one of {', '.join(sorted(_DTYPES))}, the same in all layers; got {dtype}"
            )


def _read_leaf(config: ModelConfig, spec: ParamSpec, tensors: Mapping[str, Any]) -> HostArray:
    if not spec.is_stacked:
        return np.ascontiguousarray(spec.from_hf(tensors[spec.hf_name].get_tensor(spec.hf_name)))
    names = [spec.hf_name.format(layer=layer) for layer in range(config.num_layers)]
    first = tensors[names[0]].get_tensor(names[0])
    leaf = np.empty(spec.shape, first.dtype)
    for layer, name in enumerate(names):
        leaf[layer] = spec.from_hf(tensors[name].get_tensor(name))
    return leaf
