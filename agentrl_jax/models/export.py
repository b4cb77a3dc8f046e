"""Params to host tensors under Hugging Face's names, and for engines to buckets of them.

The devices un-stack and cast; a bucket is gathered while the one before it is being sent, so that at most two are on
the host, whatever the model's size. No transport here.

Where several processes share the mesh, all of them iterate, to the end and in step, and each gets every tensor: it is
gathered over the devices when its turn has come.
"""

from collections.abc import Iterator, Mapping
from functools import cache
from math import prod
from typing import Any, Literal, TypeAlias

import jax
import ml_dtypes
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from agentrl_jax.errors import ConfigError
from agentrl_jax.models.buckets import HostBucket, HostTensor, checksum
from agentrl_jax.models.config import ModelConfig
from agentrl_jax.models.families import hf_entries, param_specs
from agentrl_jax.models.params import Params, build_tree, check_params, leaf_at
from agentrl_jax.models.specs import HostArray, ParamSpec

ExportDType: TypeAlias = Literal["float32", "bfloat16"]

DTYPES: dict[str, np.dtype[Any]] = {"float32": np.dtype(np.float32), "bfloat16": np.dtype(ml_dtypes.bfloat16)}


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
    groups = _group(config, dtype, bucket_bytes)
    ahead = _begin(params, groups[0], dtype)
    for number, group in enumerate(groups):
        begun = ahead
        if number + 1 < len(groups):  # the devices gather it while the caller sends this one
            ahead = _begin(params, groups[number + 1], dtype)
        arrays = [spec.to_hf(np.asarray(array)) for (_, spec, _), array in zip(group, begun, strict=True)]
        yield HostBucket(
            tensors=tuple(
                HostTensor(name=name, array=array, checksum=checksum(array))
                for (name, _, _), array in zip(group, arrays, strict=True)
            )
        )


_Entry: TypeAlias = tuple[str, ParamSpec, int | None]


def _group(config: ModelConfig, dtype: ExportDType, bucket_bytes: int) -> list[list[_Entry]]:
    groups: list[list[_Entry]] = [[]]
    size = 0
    for name, spec, layer in hf_entries(config):
        num_bytes = prod(spec.hf_shape) * DTYPES[dtype].itemsize
        if groups[-1] and size + num_bytes > bucket_bytes:
            groups.append([])
            size = 0
        groups[-1].append((name, spec, layer))
        size += num_bytes
    return groups


def _begin(params: Mapping[str, Any], group: list[_Entry], dtype: ExportDType) -> list[Any]:
    """Start to un-stack, cast and copy to the host; `np.asarray` of what is returned waits for it."""
    return [_begin_one(leaf_at(params, spec.path), layer, dtype) for _, spec, layer in group]


def _begin_one(leaf: Any, layer: int | None, dtype: ExportDType) -> Any:
    if isinstance(leaf, np.ndarray):
        return (leaf if layer is None else leaf[layer]).astype(DTYPES[dtype], copy=False)
    # What other processes hold is gathered to every device: one tensor, never the stack of layers that it is cut from.
    gathered = None if leaf.is_fully_addressable else leaf.sharding.update(spec=PartitionSpec())  # type: ignore[no-untyped-call]
    part = _cast(dtype, gathered)(leaf) if layer is None else _cast_layer(dtype, gathered)(leaf, layer)
    part.copy_to_host_async()
    return part


@cache
def _cast(dtype: ExportDType, to: NamedSharding | None) -> Any:
    return jax.jit(lambda leaf: leaf.astype(DTYPES[dtype]), out_shardings=to)


@cache
def _cast_layer(dtype: ExportDType, to: NamedSharding | None) -> Any:
    return jax.jit(lambda leaf, layer: leaf[layer].astype(DTYPES[dtype]), out_shardings=to)


def host_tensors(params: Mapping[str, Any], config: ModelConfig, dtype: ExportDType) -> Iterator[tuple[str, HostArray]]:
    """Yield (Hugging Face's name, C-contiguous array in `dtype`) of every tensor, in their order."""
    for name, spec, layer in hf_entries(config):
        yield name, spec.to_hf(np.asarray(_begin_one(leaf_at(params, spec.path), layer, dtype)))


def host_params(params: Mapping[str, Any], config: ModelConfig) -> Params:
    """Return a float32 copy of `params` on the host, in our layout, gathered layer by layer."""

    def copy(spec: ParamSpec) -> HostArray:
        leaf, out = leaf_at(params, spec.path), np.empty(spec.shape, np.float32)
        if spec.is_stacked:
            for layer in range(config.num_layers):
                out[layer] = np.asarray(_begin_one(leaf, layer, "float32"))
        else:
            out[...] = np.asarray(_begin_one(leaf, None, "float32"))
        return out

    return build_tree(config, copy)


def export_bytes(config: ModelConfig, *, dtype: ExportDType) -> int:
    """Size of one whole export."""
    copies = {True: config.num_layers, False: 1}
    return sum(prod(spec.hf_shape) * copies[spec.is_stacked] for spec in param_specs(config)) * DTYPES[dtype].itemsize
