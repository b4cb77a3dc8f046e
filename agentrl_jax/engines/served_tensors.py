"""Tensors out of the body of `/update_weights_from_tensor`, without torch, and without running what a pickle names.

A payload is the base64 of a pickle of [(name, tensor), …], or of a flattened bucket: all tensors' bytes in one, and
what lies where. Of what a pickle may name, only the few constructors that tensors consist of exist here, as functions
of our own; anything else is refused. The elements must be in the payload itself, not in memory that it points to.
"""

import io
import pickle
import pickletools
import struct
from base64 import b64decode
from collections import OrderedDict
from collections.abc import Sequence
from math import prod
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from agentrl_jax.errors import EngineError

Tensors = dict[str, npt.NDArray[Any]]

_DTYPES = {
    "float32": np.dtype(np.float32),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "float16": np.dtype(np.float16),
    "uint8": np.dtype(np.uint8),
}
_STORAGES = {"FloatStorage": "float32", "BFloat16Storage": "bfloat16", "HalfStorage": "float16", "ByteStorage": "uint8"}
_LEGACY_MAGIC = 0x1950A86A20F9469CFC6C
_NUM_LEGACY_PICKLES = 4  # magic number, protocol, system, reference; then the list of keys
_DAMAGED = (
    *(ArithmeticError, AttributeError, EOFError, ImportError, LookupError, MemoryError, RecursionError, TypeError),
    *(ValueError, pickle.UnpicklingError, struct.error),
)
"""What reading a pickle may raise."""

_BUCKET_KEYS = {"flattened_tensor", "metadata"}


def read_tensors(payload: str) -> Tensors:
    """Raises EngineError for what is no such payload, or names a tensor twice."""
    try:
        found = _load(io.BytesIO(b64decode(payload, validate=True)))
        pairs = _flattened(found) if isinstance(found, dict) else [(name, tensor) for name, tensor in found]
        tensors = dict(pairs)
    except _DAMAGED as error:
        raise EngineError(f"the payload holds no tensors: {error!r}") from error
    if len(tensors) != len(pairs):
        raise EngineError("the payload names a tensor twice")
    for name, tensor in pairs:
        if not (isinstance(name, str) and isinstance(tensor, np.ndarray)):
            raise EngineError(f"the payload holds no tensors: {name!r} is a {type(tensor).__name__}")
    return tensors


class _Metadata:
    """Of one tensor in a flattened bucket: offsets and numel in bytes."""

    def __init__(
        self, name: str, shape: Sequence[int], dtype: "np.dtype[Any]", start_idx: int, end_idx: int, numel: int
    ) -> None:
        self.name, self.shape, self.dtype = name, shape, dtype
        self.start_idx, self.end_idx, self.numel = start_idx, end_idx, numel


def _flattened(bucket: dict[Any, Any]) -> list[tuple[str, npt.NDArray[Any]]]:
    if bucket.keys() != _BUCKET_KEYS:
        raise ValueError(f"expected {sorted(_BUCKET_KEYS)}, got {list(bucket)}")
    raw = bucket["flattened_tensor"].reshape(-1).view(np.uint8)
    pairs = []
    for part in bucket["metadata"]:
        if not 0 <= part.start_idx <= part.end_idx <= len(raw):
            raise ValueError(f"{part.name} lies at [{part.start_idx}, {part.end_idx}) of {len(raw)} bytes")
        pairs.append((part.name, raw[part.start_idx : part.end_idx].view(part.dtype).reshape(tuple(part.shape))))
    return pairs


def _rebuild(
    storage: npt.NDArray[Any], offset: int, shape: Sequence[int], strides: Sequence[int], *_: Any
) -> npt.NDArray[Any]:
    """A tensor on a storage; only contiguous ones, as those are all that is sent."""
    expected, stride = [], 1
    for length in reversed(shape):
        expected.append(stride)
        stride *= max(length, 1)
    if any(length > 1 and given != own for length, given, own in zip(shape, strides, reversed(expected), strict=True)):
        raise ValueError(f"expected a contiguous tensor, got strides {tuple(strides)} of shape {tuple(shape)}")
    end = offset + prod(shape)
    if not 0 <= offset <= end <= len(storage):
        raise ValueError(f"a tensor of shape {tuple(shape)} at {offset} of a storage of {len(storage)}")
    return storage[offset:end].reshape(tuple(shape))


def _load_storage(saved: bytes) -> npt.NDArray[Any]:
    """A storage as torch pickles it: small pickles, then its length as 8 little-endian bytes, then its elements."""
    stream = io.BytesIO(saved)
    magic, _, _, kind = (_load(stream) for _ in range(_NUM_LEGACY_PICKLES))
    if magic != _LEGACY_MAGIC:
        raise ValueError("a storage in another format")
    _load(stream)  # the key of the only storage
    (length,) = struct.unpack("<q", stream.read(8))
    return np.frombuffer(saved, kind, length, stream.tell())


_CONSTRUCTORS: dict[tuple[str, str], Any] = {
    ("collections", "OrderedDict"): OrderedDict,
    ("torch", "Size"): tuple,
    ("torch._utils", "_rebuild_tensor_v2"): _rebuild,
    ("torch.storage", "_load_from_bytes"): _load_storage,
    ("sglang.srt.weight_sync.tensor_bucket", "FlattenedTensorMetadata"): _Metadata,
    **{("torch", name): dtype for name, dtype in _DTYPES.items()},
    **{("torch", name): _DTYPES[dtype] for name, dtype in _STORAGES.items()},
}


_OPCODES = """
PROTO FRAME STOP MARK MEMOIZE BINPUT LONG_BINPUT BINGET LONG_BINGET BINPERSID GLOBAL STACK_GLOBAL REDUCE NEWOBJ BUILD
NONE NEWTRUE NEWFALSE BININT BININT1 BININT2 LONG1 BINFLOAT BINUNICODE SHORT_BINUNICODE BINBYTES SHORT_BINBYTES
BINBYTES8 EMPTY_TUPLE TUPLE TUPLE1 TUPLE2 TUPLE3 EMPTY_LIST APPEND APPENDS EMPTY_DICT SETITEM SETITEMS
"""
_ALLOWED = frozenset(_OPCODES.split())


def _load(stream: io.BytesIO) -> Any:
    """The next pickle of `stream`; read once before, as a wrong length or index alone could take all memory."""
    begin = stream.tell()
    for opcode, argument, position in pickletools.genops(stream):
        if opcode.name not in _ALLOWED:
            raise pickle.UnpicklingError(f"{opcode.name} has no place in a payload of tensors")
        if opcode.name in ("BINPUT", "LONG_BINPUT") and int(argument or 0) > (position or 0):
            raise pickle.UnpicklingError(f"a memo of {argument} values after {position} bytes")
    stream.seek(begin)
    return _Tensors(stream).load()


class _Tensors(pickle.Unpickler):
    """Can call nothing but what stands above."""

    def find_class(self, module: str, name: str) -> Any:
        try:
            return _CONSTRUCTORS[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"{module}.{name} has no place in a payload of tensors") from None

    def persistent_load(self, reference: Any) -> Any:
        """("storage", type, key, location, length, view): stands for the storage that follows."""
        if not (isinstance(reference, tuple) and len(reference) >= 2 and isinstance(reference[1], np.dtype)):
            raise pickle.UnpicklingError(f"expected the reference of a storage, got {reference!r}")
        return reference[1]
