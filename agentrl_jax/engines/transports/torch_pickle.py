"""Tensors in the form in which SGLang's `/update_weights_from_tensor` takes them, written without torch. No jax.

The body holds the base64 of a pickle of {"flattened_tensor": bytes as a uint8 tensor, "metadata": what lies where}.
Pickles name functions of packages that this process does not have, so they are put together from their opcodes. The
bytes themselves are a storage in the format that `torch.save` wrote before it took to zip files.
"""

import struct
from base64 import b64encode
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

NamedBytes = tuple[str, tuple[int, ...], npt.NDArray[Any]]
"""Name, shape, and the elements as unsigned integers of their width."""

_METADATA = ("sglang.srt.weight_sync.tensor_bucket", "FlattenedTensorMetadata")
_MAGIC, _PROTOCOL = 0x1950A86A20F9469CFC6C, 1001
_SYSTEM = {"protocol_version": _PROTOCOL, "little_endian": True, "type_sizes": {"short": 2, "int": 4, "long": 4}}


def flattened_bucket(tensors: Sequence[NamedBytes], dtype: str) -> str:
    """Base64 of one bucket. dtype: torch's name of all tensors' precision, such as bfloat16."""
    raw = b"".join(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data for _, _, array in tensors)
    metadata = []
    offset = 0
    for name, shape, array in tensors:
        end = offset + array.nbytes
        fields = (_value(name), _size(shape), _global("torch", dtype), *map(_value, (offset, end, array.nbytes)))
        metadata.append(_call(_METADATA, fields))
        offset = end
    pairs = _value("flattened_tensor") + _bytes_tensor(raw) + _value("metadata") + b"](" + b"".join(metadata) + b"e"
    return b64encode(b"\x80\x04}(" + pairs + b"u.").decode("ascii")


def _bytes_tensor(raw: bytes) -> bytes:
    storage = _call(("torch.storage", "_load_from_bytes"), (_binary(_saved_storage(raw)),))
    hooks = _call(("collections", "OrderedDict"), ())
    arguments = (storage, _value(0), _value((len(raw),)), _value((1,)), _value(False), hooks)
    return _call(("torch._utils", "_rebuild_tensor_v2"), arguments)


def _saved_storage(raw: bytes) -> bytes:
    """Five pickles, then the number of elements and the elements."""
    kind = _global("torch", "ByteStorage")
    reference = b"(" + _value("storage") + kind + b"".join(map(_value, ("0", "cpu", len(raw), None))) + b"tQ"
    parts = (_value(_MAGIC), _value(_PROTOCOL), _value(_SYSTEM), reference, b"](" + _value("0") + b"e")
    return b"".join(b"\x80\x02" + part + b"." for part in parts) + struct.pack("<q", len(raw)) + raw


def _size(shape: tuple[int, ...]) -> bytes:
    return _call(("torch", "Size"), (_value(list(shape)),))


def _call(function: tuple[str, str], arguments: Sequence[bytes]) -> bytes:
    return _global(*function) + b"(" + b"".join(arguments) + b"tR"


def _global(module: str, name: str) -> bytes:
    return f"c{module}\n{name}\n".encode()


def _binary(value: bytes) -> bytes:
    return b"\x8e" + struct.pack("<Q", len(value)) + value


def _value(value: Any) -> bytes:
    """Opcodes that put a plain value on the stack."""
    match value:
        case None:
            return b"N"
        case bool():
            return b"\x88" if value else b"\x89"
        case int():
            encoded = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
            return b"\x8a" + bytes([len(encoded)]) + encoded
        case str():
            return b"X" + struct.pack("<I", len(value.encode())) + value.encode()
        case dict():
            return b"}(" + b"".join(_items(value)) + b"u"
        case list():
            return b"](" + b"".join(map(_value, value)) + b"e"
        case tuple():
            return b"(" + b"".join(map(_value, value)) + b"t"
    raise TypeError(f"expected a plain value, got {value!r}")


def _items(values: dict[str, Any]) -> Iterator[bytes]:
    for key, value in values.items():
        yield _value(key)
        yield _value(value)
