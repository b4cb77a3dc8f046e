"""The reference: plain XLA operations, for any platform, dtype and head size."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

# Queries go chunk by chunk: [chunk, T] scores per head exist at a time. The chunks of one span read the keys up to the
# span's end, which leaves out close to half of the work of a row. On a CPU the scores stay in cache; smaller chunks
# than these are no faster there, and take twice as long to compile.
_MIN_CHUNK, _MAX_CHUNK, _NUM_CHUNKS, _NUM_SPANS = 128, 512, 32, 8
# Longer rows compute their scores again in the backward pass; shorter ones keep them from one layer's forward pass to
# its backward pass, which takes 5 % off a step.
_KEPT_LENGTH = 1024

# Finite, so that a query of nothing but masked scores has no NaN in it or in its gradient.
_MASKED = -1e30


def attend_xla(
    q: Float[Array, "B T H Dh"],
    k: Float[Array, "B T K Dh"],
    v: Float[Array, "B T K Dh"],
    segment_ids: Int[Array, "B T"],
    positions: Int[Array, "B T"],
    /,
) -> Float[Array, "B T H Dh"]:
    """See `models.attention.Attend`. Scores and softmax are float32."""
    batch, length, num_heads, head_dim = q.shape
    num_kv_heads = k.shape[2]
    grouped = q.reshape(batch, length, num_kv_heads, num_heads // num_kv_heads, head_dim)
    # Heads first: each product is then a plain batched matmul (three times as fast on a CPU).
    grouped = (grouped * head_dim**-0.5).transpose(0, 2, 3, 1, 4)
    k, v = k.transpose(0, 2, 1, 3), v.transpose(0, 2, 1, 3)
    chunk = min(max(_MIN_CHUNK, -(-length // _NUM_CHUNKS)), _MAX_CHUNK)
    num_chunks = -(-length // chunk)
    chunk = -(-length // num_chunks)  # as even as they can be: nothing is computed for padding
    queries = (_cut(grouped, 3, chunk), _cut(segment_ids, 1, chunk), _cut(positions, 1, chunk))
    span = -(-num_chunks // _NUM_SPANS)
    outs = []
    for start in range(0, num_chunks, span):
        end = min((start + span) * chunk, length)
        attend = partial(_attend_chunk, k[:, :, :end], v[:, :, :end], segment_ids[:, :end], positions[:, :end])
        kept: Any = attend if length <= _KEPT_LENGTH else jax.checkpoint(attend)
        outs.append(jax.lax.map(kept, [part[start : start + span] for part in queries]))
    # [chunk, B, K, G, Q, Dh] -> [B, T, H, Dh]
    out: Array = jnp.concatenate(outs).transpose(1, 0, 4, 2, 3, 5).reshape(batch, -1, num_heads, head_dim)[:, :length]
    return jnp.where((segment_ids > 0)[..., None, None], out, 0)


def _cut(array: Any, axis: int, chunk: int) -> Array:
    """Cut `axis` into chunks, the last one padded with zeros; they become the leading axis."""
    padding = [(0, 0)] * array.ndim
    padding[axis] = (0, -array.shape[axis] % chunk)
    array = jnp.pad(array, padding)
    chunks: Array = jnp.moveaxis(array.reshape(*array.shape[:axis], -1, chunk, *array.shape[axis + 1 :]), axis, 0)
    return chunks


def _attend_chunk(k: Any, v: Any, segment_ids: Any, positions: Any, chunk: Any) -> Float[Array, "B K G Q Dh"]:
    queries, chunk_ids, chunk_positions = chunk
    return _attend(queries, k, v, _mask(chunk_ids, chunk_positions, segment_ids, positions))


def _mask(query_ids: Any, query_positions: Any, key_ids: Any, key_positions: Any) -> Bool[Array, "B Q S"]:
    is_past = query_positions[:, :, None] >= key_positions[:, None, :]
    mask: Array = (query_ids[:, :, None] == key_ids[:, None, :]) & is_past
    return mask


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
