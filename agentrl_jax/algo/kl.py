"""Estimators of the Kullback–Leibler divergence KL(policy ‖ other) from sampled tokens, in nats per token.

All take log π(token) and log π_other(token), and limit the log-ratio between them to ±limit as AgentRL does; beyond
it the gradient is 0. Unbiased if the tokens were sampled by the policy of `logprobs` and the limit is not reached
(Schulman 2020, "Approximating KL divergence"). Gradients flow into both arguments.
"""

from typing import Literal, TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from agentrl_jax.algo.corrections import log_ratio

KlEstimator: TypeAlias = Literal["k1", "k2", "k3"]

LIMIT = 10.0
"""Of log-ratios, in nats."""


def k1(logprobs: Float[Array, "*b"], other_logprobs: Float[Array, "*b"], *, limit: float = LIMIT) -> Float[Array, "*b"]:
    """−r with r = other_logprobs − logprobs: unbiased, of either sign.

    A measure only: the mean of its gradient is that of ∇log π, which is 0 whatever the divergence.

    >>> round(float(k1(jnp.log(jnp.array(0.5)), jnp.log(jnp.array(0.25)))), 4)
    0.6931
    """
    return -log_ratio(other_logprobs, logprobs, limit=limit)


def k2(logprobs: Float[Array, "*b"], other_logprobs: Float[Array, "*b"], *, limit: float = LIMIT) -> Float[Array, "*b"]:
    """r²/2 with r = other_logprobs − logprobs: biased in value, never negative.

    The mean of its gradient in `logprobs` is the gradient of KL(policy ‖ other).

    >>> round(float(k2(jnp.log(jnp.array(0.5)), jnp.log(jnp.array(0.25)))), 4)
    0.2402
    """
    return jnp.square(log_ratio(other_logprobs, logprobs, limit=limit)) / 2


def k3(logprobs: Float[Array, "*b"], other_logprobs: Float[Array, "*b"], *, limit: float = LIMIT) -> Float[Array, "*b"]:
    """exp(r) − 1 − r with r = other_logprobs − logprobs: unbiased and never negative; AgentRL's choice.

    The mean of its gradient in `logprobs` is the gradient of KL(other ‖ policy), which near `other` is the same.

    >>> round(float(k3(jnp.log(jnp.array(0.5)), jnp.log(jnp.array(0.25)))), 4)
    0.1931
    """
    r = log_ratio(other_logprobs, logprobs, limit=limit)
    return jnp.expm1(r) - r


def kl_to_reference(
    logprobs: Float[Array, "*b"], reference_logprobs: Float[Array, "*b"], *, estimator: KlEstimator = "k3"
) -> Float[Array, "*b"]:
    """`k1`, `k2` or `k3` of KL(policy ‖ reference), to be minimised. Gradients flow into `logprobs` only.

    >>> policy, reference = jnp.log(jnp.array(0.5)), jnp.log(jnp.array(0.25))
    >>> [round(float(kl_to_reference(policy, reference, estimator=name)), 4) for name in ("k1", "k2", "k3")]
    [0.6931, 0.2402, 0.1931]
    """
    return _ESTIMATORS[estimator](logprobs, jax.lax.stop_gradient(reference_logprobs))


_ESTIMATORS = {"k1": k1, "k2": k2, "k3": k3}
