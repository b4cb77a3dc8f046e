"""Reductions over the segments of a row."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from agentrl_jax.algo.aggregate import neutralise


def segment_means(
    values: Float[Array, "B T"], segment_ids: Int[Array, "B T"], mask: Bool[Array, "B T"]
) -> Float[Array, "B T"]:
    """At each token of the mask the mean of `values` over the tokens of its segment in the mask, 0 elsewhere.

    A segment is a number in [0, T] within a row; the same number in two rows names two segments. What stands off the
    mask has no influence, be it NaN. Differentiable in `values`.

    >>> values, mask = jnp.array([[1.0, 3.0, 9.0, 5.0]]), jnp.array([[True, True, False, True]])
    >>> segment_means(values, jnp.array([[1, 1, 1, 2]]), mask).tolist()
    [[2.0, 2.0, 0.0, 5.0]]
    """
    num_segments = values.shape[-1] + 1

    def of_row(kept: Float[Array, "T"], counted: Float[Array, "T"], numbers: Int[Array, "T"]) -> Float[Array, "T"]:
        totals = jax.ops.segment_sum(kept, numbers, num_segments)
        counts = jax.ops.segment_sum(counted, numbers, num_segments)
        return (totals / jnp.maximum(counts, 1.0))[numbers]

    means = jax.vmap(of_row)(neutralise(values, mask), jnp.asarray(mask, values.dtype), jnp.asarray(segment_ids))
    return neutralise(means, mask)
