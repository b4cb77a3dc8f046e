"""Stands in for cuDNN where there is no GPU: its packed layout as JAX's tests have it, NaN where they say nothing."""

import jax
import jax.numpy as jnp
import numpy as np


@jax.custom_vjp
def poison(array, is_written):
    """`array`, whose gradient is NaN wherever the kernel writes none."""
    return array


def _forward(array, is_written):
    return poison(array, is_written), is_written


def _backward(is_written, gradient):
    return jnp.where(is_written, gradient, jnp.nan), None


poison.defvjp(_forward, _backward)


def dot_product_attention(q, k, v, *, q_seqlen, kv_seqlen, q_offsets, kv_offsets, scale, mask_type):
    """Causal attention within the columns [offset, offset + seqlen) of a row, for offsets >= 0."""
    assert mask_type.name == "PADDING_CAUSAL"
    assert q.shape == k.shape == v.shape  # the offsets of k and v are taken in strides of q
    batch, length = q.shape[:2]
    assert q_seqlen.shape == kv_seqlen.shape == (batch, q_offsets.shape[1] - 1)
    columns = np.arange(length)
    mask = jnp.zeros((batch, length, length), bool)
    for number in range(q_seqlen.shape[1]):
        start, size = q_offsets[:, number, None], q_seqlen[:, number, None]
        is_in = (start >= 0) & (columns >= start) & (columns < start + size)
        mask |= is_in[:, :, None] & is_in[:, None, :] & (columns[:, None] >= columns)
    is_written = mask.any(axis=2)[..., None, None]
    q, k, v = (poison(array, is_written) for array in (q, k, v))
    scores = jnp.where(mask[:, None], jnp.einsum("bqhd,bkhd->bhqk", q, k) * scale, -1e30)
    return jnp.where(is_written, jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), v), jnp.nan)
