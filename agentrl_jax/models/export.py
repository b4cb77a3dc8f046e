"""Params to host tensors under Hugging Face's names, and for engines to buckets of them.

At most one bucket is on the host at a time, whatever the model's size. No transport here.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from math import prod
from typing import Any, Literal, TypeAlias

import ml_dtypes
import numpy as np

from agentrl_jax.errors import ConfigError
from agentrl_jax.models.config import ModelConfig
from agentrl_jax.models.families import hf_entries, param_specs
from agentrl_jax.models.params import check_params, leaf_at
from agentrl_jax.models.specs import HostArray

ExportDType: TypeAlias = Literal["float32", "bfloat16"]

DTYPES: dict[str, np.dtype[Any]] = {"float32": np.dtype(np.float32), "bfloat16": np.dtype(ml_dtypes.bfloat16)}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class HostTensor:
    """A C-contiguous array in Hugging Face's layout; checksum: hex of 64 bits of BLAKE2b over its bytes."""

    name: str
    array: HostArray
    checksum: str


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class HostBucket:
    """Tensors that are sent together; at least one."""

    tensors: tuple[HostTensor, ...]

    @property
    def num_bytes(self) -> int:
        return sum(tensor.array.nbytes for tensor in self.tensors)


def checksum(array: HostArray) -> str:
    """Return 16 hex digits over the array's bytes in C order."""
    # The view as bytes gives hashlib a buffer also for bfloat16, which has no buffer format of its own.
    return blake2b(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data, digest_size=8).hexdigest()


def export_buckets(
    params: Mapping[str, Any], config: ModelConfig, *, dtype: ExportDType, bucket_bytes: int
) -> Iterator[HostBucket]:
    """Yield every tensor exactly once, in Hugging Face's order, in buckets of at most `bucket_bytes`.

    A tensor that is larger than that is a bucket of its own. Values are rounded to `dtype` to nearest even.
    Raises ConfigError before the first bucket if `params` do not fit `config`.
    """
    if bucket_bytes < 1:
        raise ConfigError(f"bucket_bytes must be >= 1, got {bucket_bytes}")
    check_params(config, params)
    return _fill_buckets(params, config, dtype, bucket_bytes)


def _fill_buckets(
    params: Mapping[str, Any], config: ModelConfig, dtype: ExportDType, bucket_bytes: int
) -> Iterator[HostBucket]:
    pending: list[HostTensor] = []
    size = 0
    for name, array in host_tensors(params, config, dtype):
        if pending and size + array.nbytes > bucket_bytes:
            yield HostBucket(tensors=tuple(pending))
            pending, size = [], 0
        pending.append(HostTensor(name=name, array=array, checksum=checksum(array)))
        size += array.nbytes
    yield HostBucket(tensors=tuple(pending))


def host_tensors(params: Mapping[str, Any], config: ModelConfig, dtype: ExportDType) -> Iterator[tuple[str, HostArray]]:
    """Yield (Hugging Face's name, C-contiguous array in `dtype`) of every tensor, in their order."""
    for name, spec, layer in hf_entries(config):
        leaf = leaf_at(params, spec.path)
        array = np.asarray(leaf if layer is None else leaf[layer])
        yield name, spec.to_hf(array.astype(DTYPES[dtype], copy=False))


def export_bytes(config: ModelConfig, *, dtype: ExportDType) -> int:
    """Size of one whole export."""
    copies = {True: config.num_layers, False: 1}
    return sum(prod(spec.hf_shape) * copies[spec.is_stacked] for spec in param_specs(config)) * DTYPES[dtype].itemsize
