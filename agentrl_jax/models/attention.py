"""Causal attention within packed segments."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

# Queries are taken in chunks, and each chunk only against the keys up to its last query. That leaves out close to
# half of the work of a row, and bounds the scores that exist at a time to [chunk, T] per head.
_MIN_CHUNK, _MAX_CHUNK, _NUM_CHUNKS = 64, 512, 16
# Rows longer than this compute each chunk's scores again in the backward pass instead of keeping all of them.
_KEPT_LENGTH = 1024

# Finite, so that a query of nothing but masked scores has no NaN in it or in its gradient.
_MASKED = -1e30


def attention(
    q: Float[Array, "B T H Dh"],
    k: Float[Array, "B T K Dh"],
    v: Float[Array, "B T K Dh"],
    segment_ids: Int[Array, "B T"],
    positions: Int[Array, "B T"],
) -> Float[Array, "B T H Dh"]:
    """softmax(q·kᵀ / sqrt(Dh)) v over the tokens of the same segment at the same or an earlier position.

    Grouped queries: head h reads KV head h // (H / K) (Ainslie et al. 2023). Segments are contiguous and their
    positions ascend along a row (batch.py), so a later column is never attended. Padding (segment 0) is never
    attended by others, and gets exactly 0. Scores and softmax are float32; the result has q's dtype.
    """
    batch, length, num_heads, head_dim = q.shape
    num_kv_heads = k.shape[2]
    grouped = q.reshape(batch, length, num_kv_heads, num_heads // num_kv_heads, head_dim)
    # Heads first: each product is then a plain batched matmul (three times as fast on a CPU).
    grouped = (grouped * head_dim**-0.5).transpose(0, 2, 3, 1, 4)
    k, v = k.transpose(0, 2, 1, 3), v.transpose(0, 2, 1, 3)
    attend = jax.checkpoint(_attend) if length > _KEPT_LENGTH else _attend
    chunk = min(max(_MIN_CHUNK, -(-length // _NUM_CHUNKS)), _MAX_CHUNK)
    outs = []
    for start in range(0, length, chunk):
        end = min(start + chunk, length)
        mask = (segment_ids[:, start:end, None] == segment_ids[:, None, :end]) & (
            positions[:, start:end, None] >= positions[:, None, :end]
        )
        outs.append(attend(grouped[..., start:end, :], k[:, :, :end], v[:, :, :end], mask))
    out = jnp.concatenate(outs, axis=3).transpose(0, 3, 1, 2, 4).reshape(q.shape)
    return jnp.where((segment_ids > 0)[..., None, None], out, 0)


def _attend(
    q: Float[Array, "B K G Q Dh"],
    k: Float[Array, "B K S Dh"],
    v: Float[Array, "B K S Dh"],
    mask: Array,
) -> Float[Array, "B K G Q Dh"]:
    """Attention of scaled queries to keys under a mask [B, Q, S]; a query without any key gets the values' mean."""
    batch, num_kv_heads, group, num_queries, head_dim = q.shape
    # The query heads that share a KV head are one longer run of queries to it.
    rows = q.reshape(batch, num_kv_heads, group * num_queries, head_dim)
    scores = jnp.einsum("bkqd,bksd->bkqs", rows, k, preferred_element_type=jnp.float32)
    scores = scores.reshape(batch, num_kv_heads, group, num_queries, -1)
    scores = jnp.where(mask[:, None, None], scores, _MASKED)
    weights = jnp.exp(scores - jax.lax.stop_gradient(scores.max(axis=-1, keepdims=True)))
    # Divided after the product with v: by [Q, Dh] numbers instead of [Q, S].
    total = weights.sum(axis=-1)[..., None]
    weights = weights.reshape(batch, num_kv_heads, group * num_queries, -1).astype(v.dtype)
    out = jnp.einsum("bkqs,bksd->bkqd", weights, v, preferred_element_type=jnp.float32)
    return (out.reshape(q.shape) / total).astype(q.dtype)
