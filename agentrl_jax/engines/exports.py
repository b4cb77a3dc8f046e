"""Complete weights of a version as a folder that servers read: one safetensors file and config.json. No jax.

    FOLDER/v12-0a1b2c3d/model.safetensors      written once, complete before it has its name, never changed

The file is also what lies between learner and servers where they share a machine: on tmpfs it is memory. Invariants:
- Every tensor of the model is in it, exactly once, in its shape; nothing else.
- A bucket is written while the next one is being gathered; no tensor is copied in this process on its way to the file.
"""

import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, Literal
from uuid import uuid4

import numpy as np

from agentrl_jax.engines.export_folders import own_folder
from agentrl_jax.engines.weight_folder import TensorShapes
from agentrl_jax.errors import ConfigError, EngineError
from agentrl_jax.models.buckets import HostBucket, HostTensor, checksum

WeightDType = Literal["float32", "bfloat16"]

_NAMES: Mapping[str, str] = {"float32": "F32", "bfloat16": "BF16"}
_WIDTHS: Mapping[str, int] = {"float32": 4, "bfloat16": 2}
_FILE = "model.safetensors"
_MAX_BUFFERS = 512  # of one system call; Linux takes 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Bytes [offset, offset + num_bytes) of the file hold a tensor of `shape`, C order."""

    offset: int
    num_bytes: int
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Export:
    """The weights of one version. places, checksums: by Hugging Face's name, in the file's order."""

    folder: Path
    version: int
    dtype: WeightDType
    places: Mapping[str, Place]
    checksums: Mapping[str, str]

    @property
    def file(self) -> Path:
        return self.folder / _FILE

    @property
    def num_bytes(self) -> int:
        """Of the tensors."""
        return sum(place.num_bytes for place in self.places.values())

    def read(self, name: str) -> np.ndarray[Any, Any]:
        """The tensor's elements as unsigned integers of their width, in its shape; a view of the file."""
        place = self.places[name]
        kind = np.dtype(f"<u{_WIDTHS[self.dtype]}")
        return np.memmap(self.file, kind, "r", place.offset, place.shape)

    def check(self) -> None:
        """Raise EngineError if the file no longer holds what was exported."""
        for name, expected in self.checksums.items():
            found = checksum(self.read(name))
            if found != expected:
                raise EngineError(f"{self.file} is damaged: {name} must have checksum {expected}, got {found}")


class ExportFolder:
    """The exports of one run. Made by `open_exports`; one thread at a time."""

    def __init__(self, folder: Path, shapes: TensorShapes, *, dtype: WeightDType, config: Mapping[str, Any]) -> None:
        self.folder = folder
        self._config, self._dtype = dict(config), dtype
        self._header, self._places = _layout(shapes, dtype)
        self._exports: dict[int, Export] = {}
        # A server that was given an export of the same number before must not take this for it.
        self._suffix = uuid4().hex[:8]

    @property
    def dtype(self) -> WeightDType:
        return self._dtype

    @property
    def shapes(self) -> TensorShapes:
        return {name: place.shape for name, place in self._places.items()}

    def write(self, version: int, buckets: Iterable[HostBucket]) -> Export:
        """Write `buckets` as `version`, which this folder must not have yet, and return what servers can read.

        Raises EngineError, and leaves nothing, if a tensor is missing, unknown, twice there or of another shape or
        dtype, or if the file system is full.
        """
        partial = self.folder / f".v{version}.partial"
        shutil.rmtree(partial, ignore_errors=True)
        try:
            partial.mkdir()
            checksums = self._fill(partial / _FILE, buckets)
            (partial / "config.json").write_text(json.dumps(self._config), encoding="utf-8")
            final = partial.rename(self.folder / f"v{version}-{self._suffix}")
        except OSError as error:
            shutil.rmtree(partial, ignore_errors=True)
            raise EngineError(f"cannot write version {version} to {self.folder}: {error}") from error
        except EngineError:
            shutil.rmtree(partial, ignore_errors=True)
            raise
        export = Export(folder=final, version=version, dtype=self._dtype, places=self._places, checksums=checksums)
        self._exports[version] = export
        return export

    def keep(self, versions: Iterable[int]) -> None:
        """Delete every export but these."""
        for version in self._exports.keys() - set(versions):
            shutil.rmtree(self._exports.pop(version).folder, ignore_errors=True)

    def _fill(self, file: Path, buckets: Iterable[HostBucket]) -> dict[str, str]:
        checksums: dict[str, str] = {}
        handle = os.open(file, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
        try:
            _write_all(handle, [memoryview(self._header)], 0)
            with ThreadPoolExecutor(1, thread_name_prefix="export") as writer:
                written: Future[None] | None = None
                for bucket in buckets:
                    for tensor in bucket.tensors:
                        self._check(tensor, checksums)
                        checksums[tensor.name] = tensor.checksum
                    if written is not None:
                        written.result()
                    written = writer.submit(self._write, handle, bucket)
                if written is not None:
                    written.result()
        finally:
            os.close(handle)
        missing = [name for name in self._places if name not in checksums]
        if missing:
            raise EngineError(f"weights cannot be served: {len(missing)} tensors are missing, first {missing[0]}")
        return checksums

    def _check(self, tensor: HostTensor, seen: Mapping[str, str]) -> None:
        place = self._places.get(tensor.name)
        if place is None or tensor.name in seen:
            problem = "unknown tensor" if place is None else "twice the tensor"
            raise EngineError(f"weights cannot be served: {problem} {tensor.name}")
        if tensor.array.shape != place.shape or str(tensor.array.dtype) != self._dtype:
            raise EngineError(
                f"weights cannot be served: {tensor.name} must be {self._dtype} of shape {place.shape}, got "
                f"{tensor.array.dtype} of shape {tensor.array.shape}"
            )

    def _write(self, handle: int, bucket: HostBucket) -> None:
        for run in _runs(bucket, self._places):
            offset = self._places[run[0].name].offset
            _write_all(handle, [tensor.array.reshape(-1).view(np.uint8).data for tensor in run], offset)


@contextmanager
def open_exports(
    folder: Path, shapes: TensorShapes, *, dtype: WeightDType, config: Mapping[str, Any]
) -> Iterator[ExportFolder]:
    """The exports of a run, in a folder of their own, which is gone when the block ends.

    folder: nobody else's, see `export_folder`; what a killed process has left there is deleted. config: what goes into
    config.json. Raises ConfigError if another process uses the folder, it cannot be written, or has too little room for
    two exports.
    """
    with own_folder(folder):
        _clear(folder)
        needed = 2 * sum(prod(shape) for shape in shapes.values()) * _WIDTHS[dtype]
        if (free := shutil.disk_usage(folder).free) < needed:
            raise ConfigError(
                f"--publish.folder: {folder.parent} needs room for two exports of the weights, {needed / 1e9:.3g} GB, "
                f"but {free / 1e9:.3g} GB are free; name a folder on a larger file system that servers can read too"
            )
        yield ExportFolder(folder, shapes, dtype=dtype, config=config)


def _layout(shapes: TensorShapes, dtype: WeightDType) -> tuple[bytes, dict[str, Place]]:
    """The file's first bytes (length of the header as 8 little-endian bytes, JSON header), and where tensors lie."""
    sizes = {name: prod(shape) * _WIDTHS[dtype] for name, shape in shapes.items()}
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, shape in shapes.items():
        header[name] = {
            "dtype": _NAMES[dtype],
            "shape": list(shape),
            "data_offsets": [offset, offset := offset + sizes[name]],
        }
    encoded = json.dumps(header).encode()
    encoded += b" " * (-len(encoded) % 8)
    begin = 8 + len(encoded)
    places = {
        name: Place(offset=begin + header[name]["data_offsets"][0], num_bytes=sizes[name], shape=tuple(shape))
        for name, shape in shapes.items()
    }
    return len(encoded).to_bytes(8, "little") + encoded, places


def _runs(bucket: HostBucket, places: Mapping[str, Place]) -> Iterator[list[HostTensor]]:
    """The bucket's tensors in runs of neighbours in the file, as many as one system call takes."""
    run: list[HostTensor] = []
    end = -1
    for tensor in bucket.tensors:
        place = places[tensor.name]
        if run and (place.offset != end or len(run) == _MAX_BUFFERS):
            yield run
            run = []
        run.append(tensor)
        end = place.offset + place.num_bytes
    yield run


def _write_all(handle: int, buffers: list[memoryview], offset: int) -> None:
    """A system call may write less than it was asked to: at most 2 GiB on Linux."""
    while buffers:
        written = os.pwritev(handle, buffers, offset)
        offset += written
        while buffers and written >= len(buffers[0]):
            written -= len(buffers.pop(0))
        if written:
            buffers[0] = buffers[0][written:]


def _clear(folder: Path) -> None:
    for path in (*folder.glob("v*"), *folder.glob(".v*.partial")):
        shutil.rmtree(path, ignore_errors=True)
