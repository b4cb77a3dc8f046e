"""Causal attention within packed segments."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

# Queries are taken this many at a time, and only against the keys up to their last one. That bounds the score
# matrix to [QUERY_CHUNK, T] per head, and leaves out close to half of the work of a long row.
QUERY_CHUNK = 128

# Finite, so that a row of nothing but masked scores has no NaN in it or in its gradient.
_MASKED = -1e30


def attention(
    q: Float[Array, "B T H Dh"],
    k: Float[Array, "B T K Dh"],
    v: Float[Array, "B T K Dh"],
    segment_ids: Int[Array, "B T"],
    positions: Int[Array, "B T"],
) -> Float[Array, "B T H Dh"]:
    """softmax(q·kᵀ / sqrt(Dh)) v over the tokens of the same segment at the same or an earlier position.

    Grouped queries: head h reads KV head h // (H / K). Segments are contiguous and their positions ascend along a
    row (batch.py), so a later column is never attended. Padding (segment 0) is never attended and gets exactly 0.
    Scores and softmax are float32; the result has q's dtype.
    """
    length, num_heads = q.shape[1:3]
    grouped = q.reshape(*q.shape[:2], k.shape[2], num_heads // k.shape[2], q.shape[3])
    grouped = grouped * jnp.asarray(q.shape[3] ** -0.5, q.dtype)
    if length <= QUERY_CHUNK:
        out = _attend(grouped, k, v, segment_ids, segment_ids, positions, positions)
    else:
        chunk = jax.checkpoint(_attend)  # scores of one chunk at a time, in the backward pass too
        out = jnp.concatenate(
            [
                chunk(
                    grouped[:, start:end],
                    k[:, :end],
                    v[:, :end],
                    segment_ids[:, start:end],
                    segment_ids[:, :end],
                    positions[:, start:end],
                    positions[:, :end],
                )
                for start in range(0, length, QUERY_CHUNK)
                for end in [min(start + QUERY_CHUNK, length)]
            ],
            axis=1,
        )
    return jnp.where((segment_ids > 0)[..., None, None], out.reshape(q.shape), 0)


def _attend(
    q: Float[Array, "B Q K G Dh"],
    k: Float[Array, "B S K Dh"],
    v: Float[Array, "B S K Dh"],
    q_segments: Int[Array, "B Q"],
    k_segments: Int[Array, "B S"],
    q_positions: Int[Array, "B Q"],
    k_positions: Int[Array, "B S"],
) -> Float[Array, "B Q K G Dh"]:
    """Attention of scaled queries to keys; a query without any key gets their mean."""
    mask = (q_segments[:, :, None] == k_segments[:, None, :]) & (q_positions[:, :, None] >= k_positions[:, None, :])
    scores = jnp.einsum("bqkgd,bskd->bkgqs", q, k, preferred_element_type=jnp.float32)
    scores = jnp.where(mask[:, None, None], scores, _MASKED)
    weights = jax.nn.softmax(scores, axis=-1).astype(v.dtype)
    return jnp.einsum("bkgqs,bskd->bqkgd", weights, v)
