"""What an export to engines consists of: tensors on the host under Hugging Face's names, in buckets. No jax."""

from dataclasses import dataclass
from typing import Any
from zlib import crc32

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class HostTensor:
    """A C-contiguous array in Hugging Face's layout; checksum: see `checksum`."""

    name: str
    array: npt.NDArray[Any]
    checksum: str


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class HostBucket:
    """Tensors that are sent together; at least one."""

    tensors: tuple[HostTensor, ...]

    @property
    def num_bytes(self) -> int:
        return sum(tensor.array.nbytes for tensor in self.tensors)


def checksum(array: npt.NDArray[Any]) -> str:
    """Return 8 hex digits over the array's bytes in C order: CRC-32, which costs less than copying them."""
    # bfloat16 has no buffer format of its own, and crc32 asks for one: bytes have.
    return f"{crc32(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data):08x}"
