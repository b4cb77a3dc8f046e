"""From one value a token to a sum and its weight, and from many of these to one.

No mean is taken here. A token's share depends on its own fields alone (a sequence counts 1/sequence_tokens at each
of its tokens), so that sums over any cut into rows, micro-batches and devices add up to the same figures. "Sequence"
means the trajectory, whatever segments it has.
"""

from typing import Literal, TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from agentrl_jax.batch import LossOutput, Weighted

Aggregation: TypeAlias = Literal["token_mean", "sequence_mean_token_sum", "sequence_mean_token_mean", "constant_length"]


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


def sequence_mean_token_sum(
    values: Float[Array, "*b"], mask: Bool[Array, "*b"], sequence_tokens: Int[Array, "*b"]
) -> Weighted:
    """total = Σ values where mask, weight = number of sequences: the mean over sequences of their tokens' sum.

    sequence_tokens: tokens of the token's sequence that count, in all rows together; any value off the mask.

    >>> total, weight = sequence_mean_token_sum(jnp.array([1.0, 2.0, 6.0]), jnp.ones(3, bool), jnp.array([2, 2, 1]))
    >>> float(total), float(weight)
    (9.0, 2.0)
    """
    return Weighted(total=masked_sum(values, mask).total, weight=_num_sequences(values, mask, sequence_tokens))


def sequence_mean_token_mean(
    values: Float[Array, "*b"], mask: Bool[Array, "*b"], sequence_tokens: Int[Array, "*b"]
) -> Weighted:
    """total = Σ values / sequence_tokens where mask, weight = number of sequences: the mean over sequences of their
    tokens' mean. Arguments as for `sequence_mean_token_sum`.

    >>> total, weight = sequence_mean_token_mean(jnp.array([1.0, 2.0, 6.0]), jnp.ones(3, bool), jnp.array([2, 2, 1]))
    >>> float(total), float(weight)
    (7.5, 2.0)
    """
    shares = _shares(values, mask, sequence_tokens)
    return Weighted(
        total=masked_sum(neutralise(values, mask) * shares, mask).total,
        weight=_num_sequences(values, mask, sequence_tokens),
    )


def constant_length_mean(
    values: Float[Array, "*b"], mask: Bool[Array, "*b"], sequence_tokens: Int[Array, "*b"], *, length: int
) -> Weighted:
    """total = Σ values / length where mask, weight = number of sequences: Dr. GRPO's (arXiv 2503.20783).

    Neither long nor short sequences weigh more per token. Arguments as for `sequence_mean_token_sum`; length: the
    same for all sequences, such as the longest episode's tokens.

    >>> total, weight = constant_length_mean(jnp.array([1.0, 3.0]), jnp.ones(2, bool), jnp.array([2, 2]), length=8)
    >>> float(total), float(weight)
    (0.5, 1.0)
    """
    total, weight = sequence_mean_token_sum(values, mask, sequence_tokens)
    return Weighted(total=total / length, weight=weight)


def aggregate(
    values: Float[Array, "*b"],
    mask: Bool[Array, "*b"],
    sequence_tokens: Int[Array, "*b"],
    *,
    how: Aggregation,
    constant_length: int,
) -> Weighted:
    """The aggregation called `how`; `token_mean` is `masked_sum`. `constant_length` matters to that one only.

    >>> total, weight = aggregate(jnp.ones(3), jnp.ones(3, bool), jnp.array([3, 3, 3]), how="token_mean",
    ...     constant_length=1)
    >>> float(total), float(weight)
    (3.0, 3.0)
    """
    if how == "token_mean":
        return masked_sum(values, mask)
    if how == "sequence_mean_token_sum":
        return sequence_mean_token_sum(values, mask, sequence_tokens)
    if how == "sequence_mean_token_mean":
        return sequence_mean_token_mean(values, mask, sequence_tokens)
    return constant_length_mean(values, mask, sequence_tokens, length=constant_length)


def neutralise(values: Float[Array, "*b"], mask: Bool[Array, "*b"]) -> Float[Array, "*b"]:
    """`values` where mask, 0 elsewhere: the first half of a "double where", to be applied before exp or log.

    >>> neutralise(jnp.array([1.0, jnp.inf]), jnp.array([True, False])).tolist()
    [1.0, 0.0]
    """
    return jnp.where(mask, values, jnp.zeros_like(values))


def add_outputs(first: LossOutput, second: LossOutput) -> LossOutput:
    """What a loss says about two micro-batches together: sums and counts are added, of maxima the larger one stays.

    >>> one = LossOutput(loss=Weighted(jnp.array(3.0), jnp.array(2.0)), metrics={}, maxima={"worst": jnp.array(0.5)})
    >>> two = LossOutput(loss=Weighted(jnp.array(1.0), jnp.array(6.0)), metrics={}, maxima={"worst": jnp.array(0.25)})
    >>> both = add_outputs(one, two)
    >>> float(both.loss.total), float(both.loss.weight), float(both.maxima["worst"])
    (4.0, 8.0, 0.5)
    """
    added: LossOutput = jax.tree.map(jnp.add, first._replace(maxima={}), second._replace(maxima={}))
    return added._replace(maxima=jax.tree.map(jnp.maximum, first.maxima, second.maxima))


def no_output(like: LossOutput) -> LossOutput:
    """The neutral element of `add_outputs`, with the names and shapes of `like`, arrays or their abstract shapes.

    >>> one = LossOutput(loss=Weighted(jnp.array(3.0), jnp.array(2.0)), metrics={}, maxima={"worst": jnp.array(0.5)})
    >>> nothing = no_output(one)
    >>> float(nothing.loss.total), float(nothing.loss.weight), float(nothing.maxima["worst"])
    (0.0, 0.0, -inf)
    """
    zeros: LossOutput = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), like)
    return zeros._replace(maxima=jax.tree.map(lambda leaf: jnp.full(leaf.shape, -jnp.inf, leaf.dtype), like.maxima))


def _shares(
    values: Float[Array, "*b"], mask: Bool[Array, "*b"], sequence_tokens: Int[Array, "*b"]
) -> Float[Array, "*b"]:
    """1 / sequence_tokens where mask: over all tokens of a sequence they add up to 1."""
    dtype = jnp.promote_types(values.dtype, jnp.float32)
    return mask / jnp.where(mask, sequence_tokens, 1).astype(dtype)


def _num_sequences(
    values: Float[Array, "*b"], mask: Bool[Array, "*b"], sequence_tokens: Int[Array, "*b"]
) -> Float[Array, ""]:
    return jnp.sum(_shares(values, mask, sequence_tokens))
