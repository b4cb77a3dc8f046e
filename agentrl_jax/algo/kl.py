"""Estimators of the Kullback–Leibler divergence from samples."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from agentrl_jax.algo.corrections import log_ratio


def k3(logprobs: Float[Array, "*b"], other_logprobs: Float[Array, "*b"], *, limit: float = 10.0) -> Float[Array, "*b"]:
    """exp(r) − 1 − r with r = other_logprobs − logprobs limited to ±limit: an estimate of KL(policy ‖ other) in nats.

    Unbiased if the tokens were sampled by the policy of `logprobs` and |r| stays below the limit; never negative
    (Schulman 2020, "Approximating KL divergence"; the limit is AgentRL's). Gradients flow into both arguments.

    >>> round(float(k3(jnp.log(jnp.array(0.5)), jnp.log(jnp.array(0.25)))), 4)
    0.1931
    """
    r = log_ratio(other_logprobs, logprobs, limit=limit)
    return jnp.expm1(r) - r
