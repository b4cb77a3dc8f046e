"""Export to engines: every tensor, exactly once, whatever the size of a bucket."""

from itertools import pairwise
from zlib import crc32

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl_jax.errors import ConfigError
from agentrl_jax.models.buckets import checksum
from agentrl_jax.models.config import ModelConfig
from agentrl_jax.models.export import export_buckets, export_bytes
from agentrl_jax.models.families import hf_entries
from agentrl_jax.models.params import init_params

CONFIG = ModelConfig(
    vocab_size=13, width=8, num_layers=3, num_heads=4, num_kv_heads=2, head_dim=2, mlp_width=10, tie_embeddings=False
)
PARAMS = init_params(CONFIG, 1)


@given(st.integers(1, 4 * export_bytes(CONFIG, dtype="float32")), st.sampled_from(["float32", "bfloat16"]))
def test_every_tensor_leaves_exactly_once_in_order(bucket_bytes, dtype):
    buckets = list(export_buckets(PARAMS, CONFIG, dtype=dtype, bucket_bytes=bucket_bytes))
    tensors = [tensor for bucket in buckets for tensor in bucket.tensors]
    assert [tensor.name for tensor in tensors] == [name for name, _, _ in hf_entries(CONFIG)]
    assert sum(bucket.num_bytes for bucket in buckets) == export_bytes(CONFIG, dtype=dtype)
    for bucket in buckets:
        assert bucket.num_bytes <= bucket_bytes or len(bucket.tensors) == 1
    for left, right in pairwise(buckets):
        assert left.num_bytes + right.tensors[0].array.nbytes > bucket_bytes


def test_values_are_those_of_the_layer_transposed():
    (bucket,) = export_buckets(PARAMS, CONFIG, dtype="float32", bucket_bytes=1 << 20)
    arrays = {tensor.name: tensor.array for tensor in bucket.tensors}
    kernel = PARAMS["layers"]["mlp"]["gate"]["kernel"]
    np.testing.assert_array_equal(arrays["model.layers.2.mlp.gate_proj.weight"], kernel[2].T)
    np.testing.assert_array_equal(arrays["model.embed_tokens.weight"], PARAMS["embed"]["embedding"])
    assert all(array.flags.c_contiguous for array in arrays.values())


def test_device_params_export_alike():
    host = export_buckets(PARAMS, CONFIG, dtype="bfloat16", bucket_bytes=500)
    device = export_buckets(jax.tree.map(jnp.asarray, PARAMS), CONFIG, dtype="bfloat16", bucket_bytes=500)
    for first, second in zip(host, device, strict=True):
        assert [(t.name, t.checksum) for t in first.tensors] == [(t.name, t.checksum) for t in second.tensors]


def test_half_precision_rounds_to_nearest_even():
    params = jax.tree.map(np.copy, PARAMS)
    params["final_norm"]["scale"][:2] = (1.00390625, 1.01171875)  # halfway between neighbours in bfloat16
    (bucket,) = export_buckets(params, CONFIG, dtype="bfloat16", bucket_bytes=1 << 20)
    norm = next(tensor.array for tensor in bucket.tensors if tensor.name == "model.norm.weight")
    assert norm.dtype == ml_dtypes.bfloat16
    assert norm[:2].astype(np.float32).tolist() == [1.0, 1.015625]


def test_checksum_is_of_the_bytes():
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert checksum(array) == f"{crc32(array.tobytes()):08x}"
    assert checksum(array.T) == f"{crc32(array.T.tobytes()):08x}"
    changed = array.copy()
    changed[1, 2] = np.nextafter(changed[1, 2], 9)
    assert checksum(changed) != checksum(array)


def test_misfits_are_refused_before_the_first_bucket():
    with pytest.raises(ConfigError, match=r"lm_head\.kernel"):
        export_buckets({**PARAMS, "lm_head": {}}, CONFIG, dtype="float32", bucket_bytes=100)
    with pytest.raises(ConfigError, match="bucket_bytes"):
        export_buckets(PARAMS, CONFIG, dtype="float32", bucket_bytes=0)
