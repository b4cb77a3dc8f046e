"""Histograms of ratios: counts, and quantiles within a bin of the exact ones."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl_jax.algo.histograms import LOG_EDGES, NUM_BINS, histogram_figures, histogram_quantiles, log_histogram


def test_every_token_of_the_mask_is_counted_once() -> None:
    values = jnp.array([[-99.0, -20.0, -1e-3, 0.0, 1e-3, 20.0, 99.0, jnp.nan, jnp.inf]])
    mask = jnp.array([[True] * 7 + [False] * 2])
    counts = log_histogram(values, mask)
    assert counts.shape == (NUM_BINS,)
    assert (counts.sum(), counts[0], counts[-1], counts[NUM_BINS // 2]) == (7, 2, 2, 1)


@given(st.lists(st.floats(-6.0, 6.0), min_size=1, max_size=200), st.sampled_from([0.01, 0.25, 0.5, 0.99]))
def test_quantiles_are_exact_to_a_bin(log_values: list[float], quantile: float) -> None:
    counts, _ = np.histogram(log_values, LOG_EDGES)
    found = float(np.log(histogram_quantiles(counts, quantile)))
    exact = float(np.quantile(log_values, quantile, method="inverted_cdf"))
    bins = np.clip(np.searchsorted(LOG_EDGES, exact, side="right") - 1, 0, NUM_BINS - 1)
    assert LOG_EDGES[bins] - 1e-9 <= found <= LOG_EDGES[bins + 1] + 1e-9


def test_quantiles_by_hand() -> None:
    counts = np.zeros(NUM_BINS)
    counts[NUM_BINS // 2], counts[-1] = 98, 2
    p01, p50, p99 = histogram_quantiles(counts, [0.01, 0.5, 0.99])
    assert (p01, p50) == pytest.approx((1.0, 1.0), abs=1e-4)
    assert np.exp(LOG_EDGES[-2]) < p99 < np.exp(LOG_EDGES[-1])
    assert np.isnan(histogram_quantiles(np.zeros(NUM_BINS), [0.5])).all()


def test_figures_have_flat_names() -> None:
    figures = histogram_figures({"ratio": log_histogram(jnp.zeros(5), jnp.ones(5, bool))})
    assert figures == pytest.approx({"ratio_p01": 1.0, "ratio_p50": 1.0, "ratio_p99": 1.0}, abs=1e-4)


def test_no_gradient_flows() -> None:
    slope = jax.grad(lambda x: log_histogram(x, jnp.ones(3, bool)).sum())(jnp.zeros(3))
    assert slope.tolist() == [0.0, 0.0, 0.0]
