"""Writes into the cache: in the right columns, nowhere else, never clamped."""

import jax
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from agentrl_jax.engines.local.cache import LayerCache, clear_slots, write_columns

SLOTS, LENGTH, WIDTH, ROWS = 3, 7, 4, 2


def numbered(rows: int, columns: int, offset: int) -> tuple[LayerCache, ...]:
    keys = np.arange(rows * 2 * 2 * columns, dtype=np.float32).reshape(rows, 2, 2, columns) + offset
    return (LayerCache(keys, -keys.transpose(0, 1, 3, 2)), LayerCache(keys + 0.5, keys.transpose(0, 1, 3, 2) + 0.25))


@given(
    st.permutations(range(SLOTS + 1)),
    st.lists(st.integers(0, LENGTH + 2), min_size=ROWS, max_size=ROWS),
    st.lists(st.integers(0, WIDTH), min_size=ROWS, max_size=ROWS),
)
def test_writes_land_where_they_belong_or_nowhere(slots: list[int], starts: list[int], counts: list[int]) -> None:
    caches, fresh = numbered(SLOTS, LENGTH, 0), numbered(ROWS, WIDTH, 1000)
    arguments = (np.array(part[:ROWS], np.int32) for part in (slots, starts, counts))
    written = jax.jit(write_columns)(caches, fresh, *arguments)
    for layer, (cache, block) in enumerate(zip(caches, fresh, strict=True)):
        keys, values = cache.keys.copy(), cache.values.copy()
        for row in range(ROWS):
            for column in range(counts[row]):
                if slots[row] < SLOTS and starts[row] + column < LENGTH:
                    keys[slots[row], :, :, starts[row] + column] = block.keys[row, :, :, column]
                    values[slots[row], :, starts[row] + column] = block.values[row, :, column]
        np.testing.assert_array_equal(written[layer].keys, keys)
        np.testing.assert_array_equal(written[layer].values, values)


def test_clearing_removes_what_is_not_finite_from_the_chosen_slots_only() -> None:
    caches = numbered(SLOTS, LENGTH, 1)
    poisoned = tuple(LayerCache(cache.keys.copy(), cache.values.copy()) for cache in caches)
    poisoned[0].values[1] = np.nan
    cleared = clear_slots(poisoned, np.array([True, False, True]))
    for before, after in zip(caches, cleared, strict=True):
        for old, new in zip(before, after, strict=True):
            np.testing.assert_array_equal(np.asarray(new)[[0, 2]], old[[0, 2]])
            assert not np.asarray(new)[1].any()
