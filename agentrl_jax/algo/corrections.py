"""Importance ratios between the policy that sampled a token and the one that is being trained."""

import jax.numpy as jnp
from jaxtyping import Array, Float

MAX_LOG_RATIO = 20.0
"""exp(20) ≈ 5e8: far past every clip, and small enough that the ratio and its gradient stay finite in float32."""


def log_ratio(
    logprobs: Float[Array, "*b"], behavior_logprobs: Float[Array, "*b"], *, limit: float = MAX_LOG_RATIO
) -> Float[Array, "*b"]:
    """log π(token) − log π_behavior(token) in nats, limited to ±limit.

    At the limit the gradient stops: an unlimited ratio would overflow, and 0 · inf in the gradient of a clipped
    branch is NaN.
    """
    return jnp.clip(logprobs - behavior_logprobs, -limit, limit)
