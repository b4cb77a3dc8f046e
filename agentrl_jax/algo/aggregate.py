"""From one value a token to a sum and its weight."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from agentrl_jax.batch import LossOutput, Weighted


def masked_sum(values: Float[Array, "*b"], mask: Bool[Array, "*b"]) -> Weighted:
    """total = Σ values where mask, weight = number of True in mask.

    What stands off the mask has no influence, be it NaN, and gets gradient 0; but a NaN that arises while computing
    `values` from inputs off the mask still poisons the gradient, so neutralise those inputs first (`neutralise`).
    No division here: the mean over a whole batch is taken once, by its global weight. Both sums are in float32 or
    better, whatever `values` are: bfloat16 cannot count past 256.

    >>> total, weight = masked_sum(jnp.array([1.0, 2.0, jnp.nan]), jnp.array([True, True, False]))
    >>> float(total), float(weight)
    (3.0, 2.0)
    """
    dtype = jnp.promote_types(values.dtype, jnp.float32)
    return Weighted(total=jnp.sum(neutralise(values, mask), dtype=dtype), weight=jnp.sum(mask, dtype=dtype))


def neutralise(values: Float[Array, "*b"], mask: Bool[Array, "*b"]) -> Float[Array, "*b"]:
    """`values` where mask, 0 elsewhere: the first half of a "double where", to be applied before exp or log."""
    return jnp.where(mask, values, jnp.zeros_like(values))


def add_outputs(first: LossOutput, second: LossOutput) -> LossOutput:
    """What a loss says about two micro-batches together: sums and counts are added, of maxima the larger one stays."""
    added: LossOutput = jax.tree.map(jnp.add, first._replace(maxima={}), second._replace(maxima={}))
    return added._replace(maxima=jax.tree.map(jnp.maximum, first.maxima, second.maxima))


def no_output(like: LossOutput) -> LossOutput:
    """The neutral element of `add_outputs`, with the names and shapes of `like`, arrays or their abstract shapes."""
    zeros: LossOutput = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), like)
    return zeros._replace(maxima=jax.tree.map(lambda leaf: jnp.full(leaf.shape, -jnp.inf, leaf.dtype), like.maxima))
