"""Tensors pickled without torch: read back by an unpickler whose torch is made of plain tuples."""

import io
import pickle
from base64 import b64decode
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays_of

from agentrl_jax.engines.transports.torch_pickle import flattened_bucket


class Reader(pickle.Unpickler):
    """Knows by name what the server lets through, and nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        match module, name:
            case "torch.storage", "_load_from_bytes":
                return read_storage
            case "torch._utils", "_rebuild_tensor_v2":
                return rebuild
            case "collections", "OrderedDict":
                return dict
            case "torch", "Size":
                return tuple
            case "torch", "float32" | "bfloat16" | "ByteStorage":
                return name
            case "sglang.srt.weight_sync.tensor_bucket", "FlattenedTensorMetadata":
                return lambda *fields: fields
        raise AssertionError(f"{module}.{name} would be blocked")

    def persistent_load(self, reference: Any) -> Any:
        assert reference[:4] == ("storage", "ByteStorage", "0", "cpu")
        assert reference[5] is None
        return reference[4]


def read_storage(saved: bytes) -> bytes:
    """The format that torch.load still reads: magic number, version, system, object, keys; then size and bytes."""
    stream = io.BytesIO(saved)
    magic, version, system, size, keys = (Reader(stream).load() for _ in range(5))
    assert (hex(magic), version, keys) == ("0x1950a86a20f9469cfc6c", 1001, ["0"])
    assert system["little_endian"] is True
    assert int.from_bytes(stream.read(8), "little") == size
    data = stream.read()
    assert len(data) == size
    return data


def rebuild(storage: bytes, offset: int, size: Any, stride: Any, requires_grad: bool, hooks: Any) -> Any:
    assert (offset, size, stride, requires_grad, hooks) == (0, (len(storage),), (1,), False, {})
    return storage


@given(
    st.lists(
        arrays_of.arrays(np.uint16, arrays_of.array_shapes(max_dims=3, max_side=200, min_side=1)),
        min_size=1,
        max_size=4,
    )
)
def test_a_bucket_says_what_lies_where(arrays: list[Any]) -> None:
    named = [(f"layer.{i}.wéight", array.shape, array) for i, array in enumerate(arrays)]
    read = Reader(io.BytesIO(b64decode(flattened_bucket(named, "bfloat16")))).load()
    assert list(read) == ["flattened_tensor", "metadata"]
    assert len(read["metadata"]) == len(arrays)
    end = 0
    for (name, shape, dtype, begin, stop, size), (its_name, its_shape, array) in zip(
        read["metadata"], named, strict=True
    ):
        assert (name, shape, dtype, begin, size) == (its_name, its_shape, "bfloat16", end, array.nbytes)
        assert read["flattened_tensor"][begin:stop] == array.tobytes()
        end = stop
    assert end == len(read["flattened_tensor"])
