"""Confidence intervals against published values and their own meaning."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl_jax.algo.intervals import difference_interval, proportion_interval

COUNTS = st.integers(1, 60).flatmap(lambda trials: st.tuples(st.integers(0, trials), st.just(trials)))


@pytest.mark.parametrize(
    ("successes", "trials", "low", "high"),
    [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611), (1, 29, 0.0061, 0.1718)],
)
def test_wilson_as_published(successes: int, trials: int, low: float, high: float) -> None:
    """Newcombe 1998, Statistics in Medicine 17:857, table I, method 3."""
    assert proportion_interval(successes, trials) == pytest.approx((low, high), abs=5e-5)


@pytest.mark.parametrize(
    ("counts", "low", "high"),
    [
        ((56, 70, 48, 80), 0.0524, 0.3339),
        ((9, 10, 3, 10), 0.1705, 0.8090),
        ((5, 56, 0, 29), -0.0381, 0.1926),
        ((0, 10, 0, 10), -0.2775, 0.2775),
        ((10, 10, 0, 10), 0.6075, 1.0),
    ],
)
def test_newcombe_as_published(counts: tuple[int, int, int, int], low: float, high: float) -> None:
    """Newcombe 1998, Statistics in Medicine 17:873, table II, method 10."""
    assert difference_interval(*counts) == pytest.approx((low, high), abs=5e-5)


def test_nothing_tried_says_nothing() -> None:
    assert proportion_interval(0, 0) == (0.0, 1.0)
    assert difference_interval(0, 0, 3, 4) == (-1.0, 1.0)


@pytest.mark.parametrize(("successes", "trials"), [(-1, 3), (4, 3)])
def test_impossible_counts_are_refused(successes: int, trials: int) -> None:
    with pytest.raises(ValueError, match="successes"):
        proportion_interval(successes, trials)


@given(COUNTS, COUNTS)
@settings(max_examples=60, deadline=None)
def test_intervals_hold_the_estimate_and_mirror(first: tuple[int, int], second: tuple[int, int]) -> None:
    low, high = proportion_interval(*first)
    assert 0.0 <= low <= first[0] / first[1] <= high <= 1.0
    mirrored = proportion_interval(first[1] - first[0], first[1])
    assert (1.0 - mirrored[1], 1.0 - mirrored[0]) == pytest.approx((low, high), abs=1e-12)
    low, high = difference_interval(*first, *second)
    assert -1.0 <= low <= first[0] / first[1] - second[0] / second[1] <= high <= 1.0
    swapped = difference_interval(*second, *first)
    assert (-swapped[1], -swapped[0]) == pytest.approx((low, high), abs=1e-12)


def test_wilson_covers_about_95_percent() -> None:
    trials, p = 40, 0.3
    probabilities = [math.comb(trials, k) * p**k * (1 - p) ** (trials - k) for k in range(trials + 1)]
    covers = [low <= p <= high for low, high in (proportion_interval(k, trials) for k in range(trials + 1))]
    assert 0.93 < np.dot(probabilities, covers) < 0.97
