"""Histograms of positive quantities such as ratios, cheap enough for every token of every step.

Every histogram has the same bins, of log x: fine around x = 1, where on-policy ratios are, and coarse far away. Counts
of micro-batches and devices add up exactly; quantiles are read off them on the host.
"""

from collections.abc import Mapping

import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jaxtyping import Array, Bool, Float

from agentrl_jax.algo.aggregate import neutralise
from agentrl_jax.algo.corrections import MAX_LOG_RATIO

_HALF = np.geomspace(1e-4, MAX_LOG_RATIO, 65)

LOG_EDGES: npt.NDArray[np.float64] = np.concatenate([-_HALF[::-1], _HALF])
"""Edges of the bins of log x, ascending [K + 1]: 64 on each side of 1, a fifth wider each, and one for |log x| < 1e-4.
What lies outside counts in the outermost bin."""
LOG_EDGES.flags.writeable = False

NUM_BINS = len(LOG_EDGES) - 1

QUANTILES: Mapping[str, float] = {"p01": 0.01, "p50": 0.5, "p99": 0.99}
"""Those that are logged, by the suffix of their names."""


def log_histogram(log_values: Float[Array, "*b"], mask: Bool[Array, "*b"]) -> Float[Array, "K"]:
    """Count the tokens of the mask in each bin of log x: float32 counts [NUM_BINS], without a gradient.

    What stands off the mask has no influence, be it NaN.

    >>> counts = log_histogram(jnp.array([0.0, 0.1, 99.0, 5.0]), jnp.array([True, True, True, False]))
    >>> float(counts.sum()), float(counts[NUM_BINS // 2]), float(counts[-1])
    (3.0, 1.0, 1.0)
    """
    kept = neutralise(log_values, mask)
    bins = jnp.clip(jnp.searchsorted(jnp.asarray(LOG_EDGES, kept.dtype), kept, side="right") - 1, 0, NUM_BINS - 1)
    return jnp.zeros(NUM_BINS, jnp.float32).at[bins].add(jnp.asarray(mask, jnp.float32))


def histogram_quantiles(counts: npt.ArrayLike, quantiles: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """Quantiles of x from counts [NUM_BINS], each exact to the width of its bin; NaN if nothing was counted.

    Within a bin log x is taken to be spread evenly.

    >>> counts = np.zeros(NUM_BINS)
    >>> counts[NUM_BINS // 2] = 10
    >>> histogram_quantiles(counts, [0.01, 0.5, 0.99]).round(3).tolist()
    [1.0, 1.0, 1.0]
    """
    wanted = np.asarray(quantiles, np.float64)
    cumulative = np.concatenate([[0.0], np.cumsum(np.asarray(counts, np.float64))])
    if not cumulative[-1] > 0:
        return np.full(wanted.shape, np.nan)
    share = wanted * cumulative[-1]
    bins = np.clip(np.searchsorted(cumulative, share, side="left") - 1, 0, NUM_BINS - 1)
    inside = (share - cumulative[bins]) / np.maximum(cumulative[bins + 1] - cumulative[bins], 1e-300)
    width = LOG_EDGES[bins + 1] - LOG_EDGES[bins]
    values: npt.NDArray[np.float64] = np.exp(LOG_EDGES[bins] + np.clip(inside, 0.0, 1.0) * width)
    return values


def histogram_figures(histograms: Mapping[str, npt.ArrayLike]) -> dict[str, float]:
    """Quantiles of every histogram under flat names, such as `ratio_p99`; NaN where nothing was counted.

    >>> sorted(histogram_figures({"ratio": np.ones(NUM_BINS)}))
    ['ratio_p01', 'ratio_p50', 'ratio_p99']
    """
    return {
        f"{name}_{suffix}": float(value)
        for name, counts in histograms.items()
        for suffix, value in zip(QUANTILES, histogram_quantiles(counts, list(QUANTILES.values())), strict=True)
    }
