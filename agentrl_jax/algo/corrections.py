"""Importance ratios between the policy that sampled a token and the one that is trained, and what is made of them.

A batch is used for one optimiser step, so the learner at step start and the policy that is differentiated are the
same: proximal_logprobs = stop_gradient(logprobs), and no second forward pass is needed for them. A ratio against the
proximal policy is therefore 1 in value and carries the gradient alone.
"""

from typing import Literal, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from agentrl_jax.algo.segments import segment_means

CorrectionName: TypeAlias = Literal["behavior_clip", "tis", "icepop", "decoupled", "sequence_mask", "none"]

MAX_LOG_RATIO = 20.0
"""exp(20) ≈ 5e8: far past every clip, and small enough that the ratio and its gradient stay finite in float32."""


class Correction(NamedTuple):
    """What a surrogate needs to know: constants, no gradient flows into them.

    anchor: the log-probabilities that its ratio is taken against. weight: factor of each token's cost. A token of
    weight 0 costs nothing and keeps counting in the loss's weight, which the host knows before the step.
    """

    anchor: Float[Array, "B T"]
    weight: Float[Array, "B T"]


def log_ratio(
    logprobs: Float[Array, "*b"], behavior_logprobs: Float[Array, "*b"], *, limit: float = MAX_LOG_RATIO
) -> Float[Array, "*b"]:
    """log π(token) − log π_behavior(token) in nats, limited to ±limit.

    At the limit the gradient stops: an unlimited ratio would overflow, and 0 · inf in the gradient of a clipped
    branch is NaN.

    >>> log_ratio(jnp.array([-1.0, -1.0]), jnp.array([-3.0, -90.0])).tolist()
    [2.0, 20.0]
    """
    return jnp.clip(logprobs - behavior_logprobs, -limit, limit)


def importance_ratio(logprobs: Float[Array, "*b"], behavior_logprobs: Float[Array, "*b"]) -> Float[Array, "*b"]:
    """π(token) / π_behavior(token) ≥ 0, at most exp(20). Gradients flow into both arguments.

    As a constant weight of tokens it is AReaL's decoupled objective (arXiv 2505.24298).

    >>> round(float(importance_ratio(jnp.log(jnp.array(0.5)), jnp.log(jnp.array(0.25)))), 4)
    2.0
    """
    return jnp.exp(log_ratio(logprobs, behavior_logprobs))


def truncated_weight(ratio: Float[Array, "*b"], *, cap: float = 2.0) -> Float[Array, "*b"]:
    """min(ratio, cap): truncated importance sampling (Ionides 2008; for mismatched engines Yao et al. 2025).

    Biased where it truncates, of bounded variance everywhere. Gradients flow into `ratio`: `correct` gives a constant.

    >>> truncated_weight(jnp.array([0.25, 8.0])).tolist()
    [0.25, 2.0]
    """
    return jnp.minimum(ratio, cap)


def two_sided_weight(ratio: Float[Array, "*b"], *, low: float = 0.5, high: float = 5.0) -> Float[Array, "*b"]:
    """ratio inside of [low, high], 0 outside: IcePop (Ling Team 2025, "Every Step Evolves", arXiv 2510.18855).

    Gradients flow into `ratio` inside of the bounds: `correct` gives a constant.

    >>> two_sided_weight(jnp.array([0.25, 0.5, 1.5, 8.0])).tolist()
    [0.0, 0.5, 1.5, 0.0]
    """
    return jnp.where((ratio >= low) & (ratio <= high), ratio, jnp.zeros_like(ratio))


def sequence_mask(
    logprobs: Float[Array, "B T"],
    behavior_logprobs: Float[Array, "B T"],
    segment_ids: Int[Array, "B T"],
    mask: Bool[Array, "B T"],
    *,
    low: float = 0.8,
    high: float = 1.25,
) -> Bool[Array, "B T"]:
    """True at tokens of `mask` whose segment's geometric mean of π/π_behavior lies in [low, high].

    The whole segment stays or goes (Liu, Li et al. 2025, "When Speed Kills Stability", geometric rejection). The
    mean is over the segment's tokens in `mask`, each log-ratio limited to ±20.

    >>> behavior, ones = jnp.log(jnp.array([[0.5, 0.2, 0.1]])), jnp.ones((1, 3), bool)
    >>> sequence_mask(jnp.log(jnp.array([[0.25, 0.4, 0.3]])), behavior, jnp.array([[1, 1, 2]]), ones).tolist()
    [[True, True, False]]
    """
    geometric_mean = jnp.exp(segment_means(log_ratio(logprobs, behavior_logprobs), segment_ids, mask))
    return mask & (geometric_mean >= low) & (geometric_mean <= high)


def correct(
    name: CorrectionName,
    logprobs: Float[Array, "B T"],
    behavior_logprobs: Float[Array, "B T"],
    segment_ids: Int[Array, "B T"],
    mask: Bool[Array, "B T"],
    *,
    cap: float,
    low: float,
    high: float,
) -> Correction:
    """What `name` makes of tokens that `behavior` sampled and `logprobs` is trained on; finite inputs only.

    behavior_clip: anchor behavior, weight 1: the surrogate's own clip is the correction.
    none: anchor proximal, weight 1: right for tokens of the learner's own version only.
    tis, icepop, decoupled: anchor proximal, weight `truncated_weight` up to `cap`, `two_sided_weight` within
    [low, high], or the ratio itself, of π_proximal/π_behavior.
    sequence_mask: anchor behavior, weight 1 or 0 by `sequence_mask` within [low, high].

    >>> logprobs, behavior, one = jnp.log(jnp.array([[0.9]])), jnp.log(jnp.array([[0.1]])), jnp.ones((1, 1), int)
    >>> anchor, weight = correct("tis", logprobs, behavior, one, one > 0, cap=2.0, low=0.0, high=jnp.inf)
    >>> (anchor == logprobs).tolist(), weight.tolist()
    ([[True]], [[2.0]])
    """
    proximal, behavior = jax.lax.stop_gradient(logprobs), jax.lax.stop_gradient(behavior_logprobs)
    ratio = importance_ratio(proximal, behavior)
    if name == "behavior_clip":
        return Correction(behavior, jnp.ones_like(ratio))
    if name == "sequence_mask":
        kept = sequence_mask(proximal, behavior, segment_ids, mask, low=low, high=high)
        return Correction(behavior, kept.astype(ratio.dtype))
    if name == "tis":
        return Correction(proximal, truncated_weight(ratio, cap=cap))
    if name == "icepop":
        return Correction(proximal, two_sided_weight(ratio, low=low, high=high))
    if name == "decoupled":
        return Correction(proximal, ratio)
    return Correction(proximal, jnp.ones_like(ratio))
