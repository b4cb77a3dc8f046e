"""What one token costs: the formulas, each a function of arrays and to be minimised.

`losses.py` says over which tokens they are taken and adds what all losses share. Everything that goes in must be
finite, so positions off the mask have to be neutralised first (`aggregate.neutralise`).
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from agentrl_jax.algo.corrections import importance_ratio, log_ratio
from agentrl_jax.algo.segments import segment_means


def clipped_surrogate(
    logprobs: Float[Array, "*b"],
    behavior_logprobs: Float[Array, "*b"],
    advantages: Float[Array, "*b"],
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    dual_clip: float | None = 3.0,
) -> Float[Array, "*b"]:
    """max(−Aρ, −A·clip(ρ, 1 − clip_low, 1 + clip_high)), for A < 0 at most dual_clip·|A|; ρ = π/π_behavior.

    PPO's surrogate (arXiv 1707.06347, eq. 7) with the dual clip of arXiv 1912.09729, as in AgentRL's code.
    Sign: to be minimised; lowering it makes tokens of positive advantage likelier. Gradients flow into `logprobs`
    only; `behavior_logprobs` and `advantages` are constants. No gradient where the bound in force is constant, and
    none beyond |log ρ| = 20 (see `corrections.log_ratio`). Every input must be finite: mask first.

    >>> ratio, advantage = jnp.array([1.0, 1.5, 5.0]), jnp.array([1.0, 1.0, -1.0])
    >>> [round(x, 4) for x in clipped_surrogate(jnp.log(ratio), jnp.zeros(3), advantage).tolist()]
    [-1.0, -1.2, 3.0]
    """
    ratio = importance_ratio(logprobs, jax.lax.stop_gradient(behavior_logprobs))
    return _surrogate(ratio, advantages, clip_low=clip_low, clip_high=clip_high, dual_clip=dual_clip)


def gspo(
    logprobs: Float[Array, "B T"],
    behavior_logprobs: Float[Array, "B T"],
    advantages: Float[Array, "B T"],
    segment_ids: Int[Array, "B T"],
    mask: Bool[Array, "B T"],
    *,
    clip_low: float = 3e-4,
    clip_high: float = 4e-4,
    dual_clip: float | None = None,
) -> Float[Array, "B T"]:
    """`clipped_surrogate` with one ratio for all tokens of a segment: s_t = sg[s] · π_t / sg[π_t].

    s is the geometric mean of π/π_behavior over the segment's tokens in `mask`, and sg stops the gradient: a token
    has the value of its segment's ratio and the gradient of its own log-probability, which allows advantages that
    differ within a segment (GSPO-token, arXiv 2507.18071, section 4.3; equal to GSPO, eq. 5, where they do not).
    Sign, constants and finite inputs as for `clipped_surrogate`; a token's log-ratio enters the mean limited to ±20.

    >>> logprobs = jnp.log(jnp.array([[0.5, 0.25]]))  # ratios 2 and 1/2: the segment's is 1
    >>> one = jnp.ones((1, 2), int)
    >>> gspo(logprobs, jnp.log(jnp.array([[0.25, 0.5]])), 1.0 * one, one, one > 0).tolist()
    [[-1.0, -1.0]]
    """
    constant = jax.lax.stop_gradient(logprobs)
    of_segment = segment_means(log_ratio(constant, jax.lax.stop_gradient(behavior_logprobs)), segment_ids, mask)
    ratio = jnp.exp(of_segment + logprobs - constant)
    return _surrogate(ratio, advantages, clip_low=clip_low, clip_high=clip_high, dual_clip=dual_clip)


def cispo(
    logprobs: Float[Array, "*b"],
    behavior_logprobs: Float[Array, "*b"],
    advantages: Float[Array, "*b"],
    *,
    clip_low: float = 1.0,
    clip_high: float = 4.0,
) -> Float[Array, "*b"]:
    """−sg[clip(ρ, 1 − clip_low, 1 + clip_high)] · A · log π, with ρ = π/π_behavior.

    The weight is clipped, not the objective, so that every token keeps its gradient (MiniMax-M1, arXiv 2506.13585).
    Sign: to be minimised. Gradients flow into log π only. The defaults bound ρ to [0, 5]: no lower bound, as in
    the paper. Every input must be finite: mask first.

    >>> ratio = jnp.array([1.0, 8.0])
    >>> jax.grad(lambda x: cispo(x, jnp.log(1 / ratio), jnp.ones(2)).sum())(jnp.zeros(2)).tolist()
    [-1.0, -5.0]
    """
    ratio = importance_ratio(jax.lax.stop_gradient(logprobs), jax.lax.stop_gradient(behavior_logprobs))
    weight = jnp.clip(ratio, 1.0 - clip_low, 1.0 + clip_high)
    return weight * policy_gradient(logprobs, advantages)


def policy_gradient(logprobs: Float[Array, "*b"], advantages: Float[Array, "*b"]) -> Float[Array, "*b"]:
    """−A · log π: REINFORCE (Williams 1992). To be minimised; its gradient is −A ∇log π.

    Unbiased for tokens that the policy of `logprobs` has sampled. Gradients flow into `logprobs` only.

    >>> policy_gradient(jnp.array([-1.0, -2.0]), jnp.array([0.5, -1.0])).tolist()
    [0.5, -2.0]
    """
    return -jax.lax.stop_gradient(advantages) * logprobs


def negative_log_likelihood(logprobs: Float[Array, "*b"]) -> Float[Array, "*b"]:
    """−log π(token) in nats, to be minimised: supervised fine-tuning on demonstrations.

    >>> round(float(negative_log_likelihood(jnp.log(jnp.array(0.5)))), 4)
    0.6931
    """
    return -logprobs


def _surrogate(
    ratio: Float[Array, "*b"],
    advantages: Float[Array, "*b"],
    *,
    clip_low: float,
    clip_high: float,
    dual_clip: float | None,
) -> Float[Array, "*b"]:
    advantages = jax.lax.stop_gradient(advantages)
    loss = jnp.maximum(-advantages * ratio, -advantages * jnp.clip(ratio, 1.0 - clip_low, 1.0 + clip_high))
    if dual_clip is None:
        return loss
    return jnp.where(advantages < 0, jnp.minimum(loss, -dual_clip * advantages), loss)
