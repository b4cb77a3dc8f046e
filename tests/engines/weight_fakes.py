"""Small weights to publish, under Hugging Face's names, and exports of them."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from agentrl_jax.engines.exports import ExportFolder, WeightDType, open_exports
from agentrl_jax.models.buckets import HostBucket, HostTensor, checksum

NUM_KV_HEADS = 2
SHAPES: dict[str, tuple[int, ...]] = {
    "model.embed_tokens.weight": (10, 8),
    "model.layers.0.input_layernorm.weight": (8,),
    "model.layers.0.self_attn.q_proj.weight": (8, 8),
    "model.layers.0.self_attn.q_proj.bias": (8,),
    "model.layers.0.self_attn.k_proj.weight": (4, 8),
    "model.layers.0.self_attn.k_proj.bias": (4,),
    "model.layers.0.self_attn.v_proj.weight": (4, 8),
    "model.layers.0.self_attn.v_proj.bias": (4,),
    "model.layers.0.self_attn.o_proj.weight": (8, 8),
    "model.layers.0.self_attn.q_norm.weight": (4,),
    "model.layers.0.mlp.gate_proj.weight": (6, 8),
    "model.layers.0.mlp.up_proj.weight": (6, 8),
    "model.layers.0.mlp.down_proj.weight": (8, 6),
    "model.norm.weight": (8,),
}
DTYPES: dict[str, Any] = {"float32": np.float32, "bfloat16": ml_dtypes.bfloat16}


def random_arrays(seed: int, dtype: WeightDType = "float32") -> dict[str, Any]:
    generator = np.random.default_rng(seed)
    return {name: generator.normal(size=shape).astype(DTYPES[dtype]) for name, shape in SHAPES.items()}


def in_buckets(arrays: dict[str, Any], sizes: Sequence[int] = ()) -> Iterator[HostBucket]:
    """Buckets of so many tensors, and one of the rest."""
    tensors = [HostTensor(name=name, array=array, checksum=checksum(array)) for name, array in arrays.items()]
    for size in sizes:
        if tensors[:size]:
            yield HostBucket(tensors=tuple(tensors[:size]))
        tensors = tensors[size:]
    if tensors:
        yield HostBucket(tensors=tuple(tensors))


@contextmanager
def exports_in(folder: Path, dtype: WeightDType = "float32") -> Iterator[ExportFolder]:
    with open_exports(folder, SHAPES, dtype=dtype, config={"model_type": "toy"}) as exports:
        yield exports
