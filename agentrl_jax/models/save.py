"""Params to a checkpoint folder in Hugging Face's layout, which transformers, SGLang and `load` read."""

import json
import os
import shutil
from collections import deque
from collections.abc import Iterator, Mapping
from math import prod
from pathlib import Path
from typing import Any, TypeAlias

import jax
import numpy as np

from agentrl_jax.distributed import is_first, together
from agentrl_jax.errors import ConfigError
from agentrl_jax.models.config import ModelConfig
from agentrl_jax.models.export import DTYPES, ExportDType, export_bytes, host_tensors
from agentrl_jax.models.families import hf_entries
from agentrl_jax.models.hf_config import TOKEN_IDS, read_json, to_hf_config
from agentrl_jax.models.load import INDEX, WEIGHTS
from agentrl_jax.models.params import check_params
from agentrl_jax.models.specs import HostArray, ParamSpec

MAX_FILE_BYTES = 5 * 10**9

COMPANION_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "special_tokens_map.json",
    "added_tokens.json",
    "generation_config.json",
    "vocab.json",
    "merges.txt",
)
"""What a checkpoint folder may hold besides weights and config.json."""

# Stated, because a reader that finds nothing takes the family's own ids.
_NO_TOKEN_IDS = dict.fromkeys(TOKEN_IDS)
_SAFETENSORS_NAMES = {"float32": "F32", "bfloat16": "BF16"}


def natural_dtype(params: Mapping[str, Any]) -> ExportDType:
    """The smallest export precision that loses nothing: bfloat16 if every leaf is, else float32."""
    is_half = all(leaf.dtype == DTYPES["bfloat16"] for leaf in jax.tree.leaves(dict(params)))
    return "bfloat16" if is_half else "float32"


def save_pretrained(
    params: Mapping[str, Any],
    config: ModelConfig,
    folder: Path,
    *,
    dtype: ExportDType | None = None,
    source: Path | None = None,
    max_file_bytes: int = MAX_FILE_BYTES,
) -> None:
    """Write a checkpoint folder that transformers, SGLang and `load_pretrained` read.

    dtype: None is that of the params, see `natural_dtype`. Values are rounded to nearest even.
    source: a folder from which to take what is not weights: the tokenizer's files, generation_config.json, and the
      token ids of its config.json. It may be `folder` itself.
    max_file_bytes: weights of more bytes are spread over several files with an index. A tensor is never split.

    Where several processes share the mesh that `params` lie on, all of them call this and take part in the gathering;
    the first one writes, and none returns before the folder is whole. Raises ProcessError in the others if it failed.

    Weights are written under other names and flushed to disk before any file is replaced, so that a disk that runs
    full leaves the old checkpoint. A crash in the moment of replacing several files leaves a folder without an index,
    which is refused, never one of mixed tensors. `config.json` comes last.
    """
    check_params(config, params)
    if max_file_bytes < 1:
        raise ConfigError(f"max_file_bytes must be >= 1, got {max_file_bytes}")
    dtype = dtype or natural_dtype(params)
    arrays = host_tensors(params, config, dtype)
    if all(getattr(leaf, "is_fully_addressable", True) for leaf in jax.tree.leaves(dict(params))):
        return _write(arrays, config, folder, dtype, source, max_file_bytes)
    with together():
        try:
            if is_first():
                _write(arrays, config, folder, dtype, source, max_file_bytes)
        finally:
            deque(arrays, maxlen=0)  # whatever happens here, the others are not left waiting for the rest


def _write(
    arrays: Iterator[tuple[str, HostArray]],
    config: ModelConfig,
    folder: Path,
    dtype: ExportDType,
    source: Path | None,
    max_file_bytes: int,
) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    token_ids = _copy_companions(source, folder) if source is not None else {}
    _write_weights(arrays, config, folder, dtype, max_file_bytes)
    _write_json(folder / "config.json", to_hf_config(config, dtype=dtype) | _NO_TOKEN_IDS | token_ids)


def _copy_companions(source: Path, folder: Path) -> dict[str, Any]:
    if source.resolve() != folder.resolve():
        for name in COMPANION_FILES:
            if (source / name).is_file():
                shutil.copyfile(source / name, folder / name)
    if not (source / "config.json").is_file():
        return {}
    described = read_json(source / "config.json")
    return {name: described[name] for name in TOKEN_IDS if name in described}


def _write_weights(
    arrays: Iterator[tuple[str, HostArray]], config: ModelConfig, folder: Path, dtype: ExportDType, max_file_bytes: int
) -> None:
    parts = _split(config, dtype, max_file_bytes)
    names = [WEIGHTS]
    if len(parts) > 1:
        names = [f"model-{i + 1:05}-of-{len(parts):05}.safetensors" for i in range(len(parts))]
    for name, part in zip(names, parts, strict=True):
        _write_partial(folder / name, _safetensors_chunks(part, arrays, dtype))
    old = set(folder.glob("model-*-of-*.safetensors")) | {folder / WEIGHTS}
    is_single = len(parts) == 1
    if not is_single:
        (folder / INDEX).unlink(missing_ok=True)
        _flush_folder(folder)
    for name in names:
        _partial(folder / name).replace(folder / name)
    _flush_folder(folder)
    if is_single:
        (folder / INDEX).unlink(missing_ok=True)
    else:
        weight_map = {entry: name for name, part in zip(names, parts, strict=True) for entry, _ in part}
        total = {"total_size": export_bytes(config, dtype=dtype)}
        _write_json(folder / INDEX, {"metadata": total, "weight_map": weight_map})
    for path in old - {folder / name for name in names}:
        path.unlink(missing_ok=True)


_Entries: TypeAlias = list[tuple[str, ParamSpec]]


def _split(config: ModelConfig, dtype: ExportDType, max_file_bytes: int) -> list[_Entries]:
    parts: list[_Entries] = [[]]
    size = 0
    for name, spec, _ in hf_entries(config):
        num_bytes = prod(spec.hf_shape) * DTYPES[dtype].itemsize
        if parts[-1] and size + num_bytes > max_file_bytes:
            parts.append([])
            size = 0
        parts[-1].append((name, spec))
        size += num_bytes
    return parts


def _safetensors_chunks(
    entries: _Entries, arrays: Iterator[tuple[str, HostArray]], dtype: ExportDType
) -> Iterator[Any]:
    """The safetensors format: length of the header (8 bytes, little endian), JSON header, data.

    Takes as many of `arrays` as there are entries.
    """
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, spec in entries:
        end = offset + prod(spec.hf_shape) * DTYPES[dtype].itemsize
        header[name] = {
            "dtype": _SAFETENSORS_NAMES[dtype],
            "shape": list(spec.hf_shape),
            "data_offsets": [offset, end],
        }
        offset = end
    encoded = json.dumps(header).encode()
    encoded += b" " * (-len(encoded) % 8)
    yield len(encoded).to_bytes(8, "little") + encoded
    for _, (_, array) in zip(entries, arrays, strict=False):
        yield array.reshape(-1).view(np.uint8).data


def _partial(path: Path) -> Path:
    return path.with_name(f".{path.name}.partial")


def _write_partial(path: Path, chunks: Iterator[Any]) -> None:
    with _partial(path).open("wb") as file:
        for chunk in chunks:
            file.write(chunk)
        file.flush()
        os.fsync(file.fileno())


def _write_json(path: Path, data: Mapping[str, Any]) -> None:
    _write_partial(path, iter([(json.dumps(data, indent=2) + "\n").encode()]))
    _partial(path).replace(path)
    _flush_folder(path.parent)


def _flush_folder(path: Path) -> None:
    folder = os.open(path, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
