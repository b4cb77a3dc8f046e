"""Attention over disjoint sources of keys: what the cache holds, and what the call itself adds.

Queries are folded to [R, K, M, Dh]: the G query heads of one KV head and the C columns of a row are its M = G·C
queries. Softmax and sums are float32. Each source yields an unnormalised result, and `merge` joins two of them
exactly, so no source is ever copied next to another.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from agentrl_jax.engines.local.cache import LayerCache

_MASKED = -1e30  # finite: a source without a visible key must not turn into inf - inf
_WINDOW = 128  # columns of the cache that a prefill reads at a time


class Attended(NamedTuple):
    """mixed / total is the attention; both are scaled by exp(-top), `top` being the largest score."""

    top: Float[Array, "R K M 1"]
    total: Float[Array, "R K M 1"]
    mixed: Float[Array, "R K M Dh"]


def attend(q: Float[Array, "R K M Dh"], source: LayerCache, mask: Bool[Array, "#R #M N"]) -> Attended:
    """Attention over the visible columns of `source`; q is already scaled by head_dim^-1/2.

    Where nothing is visible the result is arbitrary but finite, and vanishes when merged with a source that shows
    something.
    """
    scores = jnp.matmul(q, source.keys, preferred_element_type=jnp.float32)
    scores = jnp.where(mask[:, None], scores, _MASKED)
    top = scores.max(-1, keepdims=True)
    weights = jnp.exp(scores - top)
    mixed = jnp.matmul(weights.astype(source.values.dtype), source.values, preferred_element_type=jnp.float32)
    return Attended(top, weights.sum(-1, keepdims=True), mixed)


def merge(a: Attended, b: Attended) -> Attended:
    """Attention over the union of two disjoint sources (online softmax, Milakov & Gimelshein 2018)."""
    top = jnp.maximum(a.top, b.top)
    scale_a, scale_b = jnp.exp(a.top - top), jnp.exp(b.top - top)
    return Attended(top, a.total * scale_a + b.total * scale_b, a.mixed * scale_a + b.mixed * scale_b)


def attend_whole_cache(q: Float[Array, "S K M Dh"], cache: LayerCache, num_held: Int[Array, " S"]) -> Attended:
    """Every row attends to the first `num_held` columns of its own slot; row r is slot r."""
    is_held = jnp.arange(cache.keys.shape[-1]) < num_held[:, None]
    return attend(q, cache, is_held[:, None])


def attend_slots(
    q: Float[Array, "R K M Dh"], cache: LayerCache, slots: Int[Array, " R"], num_held: Int[Array, " R"]
) -> Attended:
    """Every row attends to the first `num_held` columns of slot `slots[r]` < S.

    Windows of columns are copied out one after the other, only as far as the longest row reaches: a first prompt,
    which finds nothing, costs nothing.
    """
    length = cache.keys.shape[-1]
    width = min(_WINDOW, length)

    def add_window(index: Array, attended: Attended) -> Attended:
        first = jnp.minimum(index * width, length - width)  # the last window may overlap the one before
        columns = first + jnp.arange(width)
        mask = (columns >= index * width) & (columns < num_held[:, None])
        window = LayerCache(
            _windows(cache.keys, slots, first, width, 3), _windows(cache.values, slots, first, width, 2)
        )
        return merge(attended, attend(q, window, mask[:, None]))

    shape = (*q.shape[:3], 1)
    nothing = Attended(jnp.full(shape, _MASKED), jnp.zeros(shape), jnp.zeros(q.shape))
    attended: Attended = jax.lax.fori_loop(0, (num_held.max() + width - 1) // width, add_window, nothing)
    return attended


def _windows(part: Array, slots: Int[Array, " R"], first: Array, width: int, axis: int) -> Array:
    zero = jnp.zeros_like(first)
    sizes = [1, *part.shape[1:]]
    sizes[axis] = width

    def window(slot: Array) -> Array:
        corner = [slot, zero, zero, zero]
        corner[axis] = first
        return jax.lax.dynamic_slice(part, corner, sizes)[0]

    return jax.vmap(window)(slots)
