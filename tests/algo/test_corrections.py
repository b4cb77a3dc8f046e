"""Importance weights and masks: by hand, constant, and robust to what stands off the mask."""

from typing import get_args

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agentrl_jax.algo.corrections import Correction, CorrectionName, correct, sequence_mask
from agentrl_jax.algo.segments import segment_means

RATIOS = [[0.25, 1.5, 8.0, 1.0]]
BEHAVIOR = jnp.full((1, 4), -3.0)
LOGPROBS = jnp.log(jnp.array(RATIOS)) - 3.0
SEGMENTS = jnp.array([[1, 1, 2, 3]])
ALL = jnp.ones((1, 4), bool)


def corrected(name: CorrectionName, logprobs: jax.Array = LOGPROBS, behavior: jax.Array = BEHAVIOR) -> Correction:
    return correct(name, logprobs, behavior, SEGMENTS, ALL, cap=2.0, low=0.5, high=5.0)


@pytest.mark.parametrize(
    ("name", "is_proximal", "weights"),
    [
        ("behavior_clip", False, [1.0, 1.0, 1.0, 1.0]),
        ("none", True, [1.0, 1.0, 1.0, 1.0]),
        ("tis", True, [0.25, 1.5, 2.0, 1.0]),
        ("icepop", True, [0.0, 1.5, 0.0, 1.0]),
        ("decoupled", True, [0.25, 1.5, 8.0, 1.0]),
        ("sequence_mask", False, [1.0, 1.0, 0.0, 1.0]),  # the first segment's mean is 0.61
    ],
)
def test_anchors_and_weights_by_hand(name: CorrectionName, is_proximal: bool, weights: list[float]) -> None:
    anchor, weight = corrected(name)
    np.testing.assert_allclose(weight, [weights], rtol=1e-5)
    assert anchor.tolist() == (LOGPROBS if is_proximal else BEHAVIOR).tolist()


@pytest.mark.parametrize("name", get_args(CorrectionName))
def test_corrections_are_constants_and_leave_on_policy_tokens_alone(name: CorrectionName) -> None:
    gradient = jax.grad(lambda x, y: sum(part.sum() for part in corrected(name, x, y)), argnums=(0, 1))
    assert all(part.tolist() == [[0.0] * 4] for part in gradient(LOGPROBS, BEHAVIOR))
    np.testing.assert_allclose(corrected(name, BEHAVIOR).weight, 1.0)


def test_a_segment_is_judged_by_its_tokens_in_the_mask() -> None:
    mask = jnp.array([[True, False, True, True]])
    kept = sequence_mask(LOGPROBS, BEHAVIOR.at[0, 1].set(jnp.nan), SEGMENTS, mask, low=0.5, high=8.5)
    assert kept.tolist() == [[False, False, True, True]]


def test_segment_means_are_per_row() -> None:
    values = jnp.array([[1.0, 3.0, 5.0, 9.0], [2.0, 4.0, 6.0, jnp.nan]])
    ids = jnp.array([[1, 1, 2, 0], [1, 1, 1, 0]])
    assert segment_means(values, ids, ids > 0).tolist() == [[2.0, 2.0, 5.0, 0.0], [4.0, 4.0, 4.0, 0.0]]
    slopes = jax.grad(lambda x: segment_means(x, ids, ids > 0)[0].sum())(values)
    np.testing.assert_allclose(slopes, [[1.0, 1.0, 1.0, 0.0], [0.0] * 4])


def test_the_last_segment_a_row_can_hold_is_counted() -> None:
    """Rows of one-token segments: as many segments as tokens."""
    ids = jnp.arange(1, 6)[None]
    assert segment_means(jnp.arange(5.0)[None], ids, ids > 0).tolist() == [[0.0, 1.0, 2.0, 3.0, 4.0]]
