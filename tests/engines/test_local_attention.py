"""Attention over several sources and windows equals attention over their concatenation."""

import jax
import numpy as np
import numpy.typing as npt
import pytest

from agentrl_jax.engines.local.attention import attend, attend_slots, attend_whole_cache, merge
from agentrl_jax.engines.local.cache import LayerCache

Array = npt.NDArray[np.float64]
LENGTH = 300  # two whole windows of 128 columns, and a last one that overlaps


def draw(seed: int, *shape: int) -> npt.NDArray[np.float32]:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def plain(q: npt.NDArray[np.float32], keys: npt.NDArray[np.float32], values: npt.NDArray[np.float32]) -> Array:
    """q [K, M, Dh], keys [K, Dh, N], values [K, N, Dh], everything visible."""
    scores = q.astype(np.float64) @ keys
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return np.asarray(weights / weights.sum(-1, keepdims=True) @ values)


@pytest.mark.parametrize("held", [[0, 1, 300], [127, 128, 129], [256, 257, 299], [0, 0, 0]])
def test_windows_of_chosen_slots_and_fresh_columns_form_one_softmax(held: list[int]) -> None:
    slots = np.array([3, 0, 2], np.int32)
    num_held = np.array(held, np.int32)
    q, fresh = draw(0, 3, 2, 5, 4), LayerCache(draw(1, 3, 2, 4, 6), draw(2, 3, 2, 6, 4))
    cache = LayerCache(draw(3, 4, 2, 4, LENGTH), draw(4, 4, 2, LENGTH, 4))
    sees = np.ones((1, 1, 6), np.bool_)
    both = merge(jax.jit(attend_slots)(q, cache, slots, num_held), attend(q, fresh, sees))
    whole = LayerCache(cache.keys[slots], cache.values[slots])
    same = merge(attend(q, fresh, sees), attend_whole_cache(q, whole, num_held))
    for row, (slot, count) in enumerate(zip(slots, held, strict=True)):
        keys = np.concatenate([cache.keys[slot][:, :, :count], fresh.keys[row]], -1)
        values = np.concatenate([cache.values[slot][:, :count], fresh.values[row]], 1)
        expected = plain(q[row], keys, values)
        np.testing.assert_allclose((both.mixed / both.total)[row], expected, atol=1e-5)
        np.testing.assert_allclose((same.mixed / same.total)[row], expected, atol=1e-5)


def test_very_large_scores_do_not_overflow() -> None:
    q = draw(0, 1, 1, 1, 2) * 1e4
    source = LayerCache(draw(1, 1, 1, 2, 3), draw(2, 1, 1, 3, 2))
    result = attend(q, source, np.ones((1, 1, 3), np.bool_))
    best = (q @ source.keys)[0, 0, 0].argmax()
    np.testing.assert_allclose((result.mixed / result.total)[0, 0, 0], source.values[0, 0, best], rtol=1e-5)
