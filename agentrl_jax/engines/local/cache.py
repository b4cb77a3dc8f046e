"""The key-value cache: one pair of arrays per layer, written in place, one column per token.

Keys lie as [S, K, Dh, T] and values as [S, K, T, Dh] (S slots, T cache tokens), so that both products of the attention
run along contiguous memory. Entries past a slot's length are garbage, but always finite: a masked value still
meets a weight of 0.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from agentrl_jax.models.config import ModelConfig


class LayerCache(NamedTuple):
    """Keys and values of one layer. The fresh ones of a call have the same form: rows for S, its columns for T."""

    keys: Float[Array, "S K Dh T"]
    values: Float[Array, "S K T Dh"]


Caches = tuple[LayerCache, ...]
_COPIED = 64  # columns that are copied at a time


def init_caches(model: ModelConfig, num_slots: int, num_columns: int, dtype: Any) -> Caches:
    """Return caches of zeros."""
    keys = (num_slots, model.num_kv_heads, model.head_dim, num_columns)
    values = (num_slots, model.num_kv_heads, num_columns, model.head_dim)
    return tuple(LayerCache(jnp.zeros(keys, dtype), jnp.zeros(values, dtype)) for _ in range(model.num_layers))


def clear_slots(caches: Caches, keep: Bool[Array, " S"]) -> Caches:
    """Zero the slots that are not kept: those that hold values that are not finite."""
    cleared: Caches = jax.tree.map(lambda x: jnp.where(keep[:, None, None, None], x, jnp.zeros((), x.dtype)), caches)
    return cleared


def copy_prefixes(caches: Caches, sources: Int[Array, " S"], counts: Int[Array, " S"]) -> Caches:
    """Store the first `counts[s]` <= T columns of slot `sources[s]` in slot s too; a count of 0 changes nothing.

    No slot may be a source of columns that the same call changes. In windows of columns, only as far as the count.
    """
    num_slots, _, _, length = caches[0].keys.shape
    width = min(_COPIED, length)

    def copy_window(slot: Array, index: Array, caches: Caches) -> Caches:
        first = jnp.minimum(index * width, length - width)  # the last window may overlap the one before
        is_copied = first + jnp.arange(width) < counts[slot]

        def update(cache: Array, axis: int) -> Array:
            sizes = [1, *cache.shape[1:]]
            sizes[axis] = width
            corners = [[row, *[jnp.zeros_like(slot)] * 3] for row in (sources[slot], slot)]
            for corner in corners:
                corner[axis] = first
            new, old = (jax.lax.dynamic_slice(cache, corner, sizes) for corner in corners)
            mask = is_copied if axis == 3 else is_copied[:, None]
            return jax.lax.dynamic_update_slice(cache, jnp.where(mask, new, old), corners[1])

        return tuple(LayerCache(update(cache.keys, 3), update(cache.values, 2)) for cache in caches)

    def copy_slot(slot: Array, caches: Caches) -> Caches:
        num_windows = (counts[slot] + width - 1) // width
        copied: Caches = jax.lax.fori_loop(0, num_windows, lambda index, kept: copy_window(slot, index, kept), caches)
        return copied

    all_copied: Caches = jax.lax.fori_loop(0, num_slots, copy_slot, caches)
    return all_copied


def write_columns(
    caches: Caches, fresh: Caches, slots: Int[Array, " R"], starts: Int[Array, " R"], counts: Int[Array, " R"]
) -> Caches:
    """Store the first `counts[r]` columns of row r of `fresh` in slot `slots[r]`, from column `starts[r]` on.

    Slots >= S and columns >= T are dropped. `fresh` must not be wider than the cache.

    A loop over rows of window updates, which run in place; a scatter would transpose the whole cache on a CPU. A
    window that would overrun begins further left, with its columns realigned, and keeps what it is not to change.
    """
    num_slots, _, _, length = caches[0].keys.shape
    width = fresh[0].keys.shape[-1]
    columns = jnp.arange(width)

    def write_row(row: Array, caches: Caches) -> Caches:
        slot = jnp.minimum(slots[row], num_slots - 1)
        first = jnp.minimum(starts[row], length - width)
        shift = jnp.minimum(starts[row] - first, width)
        count = jnp.where(slots[row] < num_slots, counts[row], 0)
        is_new = (columns >= shift) & (columns < shift + count)

        def update(cache: Array, block: Array, axis: int) -> Array:
            new = jax.lax.dynamic_slice_in_dim(block, row, 1)
            rolled = jax.lax.dynamic_slice_in_dim(jnp.concatenate([new, new], axis), width - shift, width, axis)
            corner = [slot, jnp.zeros_like(slot), jnp.zeros_like(slot), jnp.zeros_like(slot)]
            corner[axis] = first
            old = jax.lax.dynamic_slice(cache, corner, new.shape)
            mask = is_new if axis == 3 else is_new[:, None]
            return jax.lax.dynamic_update_slice(cache, jnp.where(mask, rolled, old), corner)

        return tuple(
            LayerCache(update(cache.keys, block.keys, 3), update(cache.values, block.values, 2))
            for cache, block in zip(caches, fresh, strict=True)
        )

    written: Caches = jax.lax.fori_loop(0, slots.shape[0], write_row, caches)
    return written
