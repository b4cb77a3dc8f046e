"""Losses as pure functions of arrays, one value a token, to be minimised.

To try an idea, write a function `(logprobs [B, T], TokenBatch) -> LossOutput` and hand it to the learner: return
`masked_sum` of what each token costs, and the learner divides by the batch's global number of tokens.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import partial
from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from agentrl_jax.algo.aggregate import masked_sum, neutralise
from agentrl_jax.algo.corrections import log_ratio
from agentrl_jax.algo.kl import k3
from agentrl_jax.batch import LossOutput, TokenBatch, Weighted
from agentrl_jax.cli import Derived
from agentrl_jax.errors import ConfigError

LossFn = Callable[[Float[Array, "B T"], TokenBatch], LossOutput]


@dataclass(frozen=True, slots=True, kw_only=True)
class LossConfig:
    """Which loss, and its bounds.

    name: `grpo` (`clipped_surrogate`) or `sft` (`negative_log_likelihood`, which has no further options).
    clip_low, clip_high: the ratio is clipped to [1 − clip_low, 1 + clip_high].
    dual_clip: bound of the loss for a negative advantage, in units of |A|; None for no bound.
    """

    name: Derived[Literal["grpo", "sft"]] = "grpo"
    clip_low: float = 0.2
    clip_high: float = 0.2
    dual_clip: float | None = 3.0

    def __post_init__(self) -> None:
        if self.name not in ("grpo", "sft"):
            raise ConfigError(f"loss name must be grpo or sft, got {self.name!r}")
        if not 0.0 < self.clip_low < 1.0:
            raise ConfigError(f"clip_low must be in (0, 1), got {self.clip_low}")
        if not 0.0 < self.clip_high < float("inf"):
            raise ConfigError(f"clip_high must be > 0 and finite, got {self.clip_high}")
        if self.dual_clip is not None and not 1.0 < self.dual_clip < float("inf"):
            raise ConfigError(f"dual_clip must be > 1 and finite, or None for no bound, got {self.dual_clip}")
        if self.name == "sft":
            changed = [f.name for f in fields(self) if f.name != "name" and getattr(self, f.name) != f.default]
            if changed:
                raise ConfigError(f"the sft loss does not clip: remove {', '.join(changed)}")


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
    advantages = jax.lax.stop_gradient(advantages)
    ratio = jnp.exp(log_ratio(logprobs, jax.lax.stop_gradient(behavior_logprobs)))
    loss = jnp.maximum(-advantages * ratio, -advantages * jnp.clip(ratio, 1.0 - clip_low, 1.0 + clip_high))
    if dual_clip is None:
        return loss
    return jnp.where(advantages < 0, jnp.minimum(loss, -dual_clip * advantages), loss)


def negative_log_likelihood(logprobs: Float[Array, "*b"]) -> Float[Array, "*b"]:
    """−log π(token) in nats, to be minimised: supervised fine-tuning on demonstrations.

    >>> round(float(negative_log_likelihood(jnp.log(jnp.array(0.5)))), 4)
    0.6931
    """
    return -logprobs


def make_loss(config: LossConfig) -> LossFn:
    """The loss that `config` names, over loss_mask & has_signal of a batch.

    The metrics of `grpo`, each a sum and a weight: over the tokens of the loss `clip_low_frac`, `clip_high_frac`
    and `dual_clip_frac` (share of tokens without gradient because of that bound; the last is absent without a dual
    clip); over all tokens of loss_mask, groups without a signal included, `ratio_mean` (1 if on-policy),
    `behavior_kl` (k3 estimate of KL(behavior ‖ current), nats), `logprob_abs_diff` (nats) and `token_staleness`
    (learner version − token's version).
    """
    if config.name == "sft":
        return _supervised
    return partial(_policy, config=config)


def _supervised(logprobs: Float[Array, "B T"], batch: TokenBatch) -> LossOutput:
    mask = batch.loss_mask & batch.has_signal
    return LossOutput(loss=masked_sum(negative_log_likelihood(logprobs), mask), metrics={})


def _policy(logprobs: Float[Array, "B T"], batch: TokenBatch, *, config: LossConfig) -> LossOutput:
    mask = batch.loss_mask & batch.has_signal
    per_token = clipped_surrogate(
        neutralise(logprobs, mask),
        neutralise(batch.behavior_logprobs, mask),
        neutralise(batch.advantages, mask),
        clip_low=config.clip_low,
        clip_high=config.clip_high,
        dual_clip=config.dual_clip,
    )
    metrics = _policy_metrics(jax.lax.stop_gradient(logprobs), batch, config)
    return LossOutput(loss=masked_sum(per_token, mask), metrics=metrics)


def _policy_metrics(logprobs: Float[Array, "B T"], batch: TokenBatch, config: LossConfig) -> dict[str, Weighted]:
    sampled = batch.loss_mask
    trained = sampled & batch.has_signal
    current, behavior = neutralise(logprobs, sampled), neutralise(batch.behavior_logprobs, sampled)
    ratio = jnp.exp(log_ratio(current, behavior))
    advantages = neutralise(batch.advantages, trained)

    def share(condition: Array) -> Weighted:
        return masked_sum(condition.astype(ratio.dtype), trained)

    metrics = {
        "clip_low_frac": share((advantages < 0) & (ratio < 1.0 - config.clip_low)),
        "clip_high_frac": share((advantages > 0) & (ratio > 1.0 + config.clip_high)),
        "ratio_mean": masked_sum(ratio, sampled),
        "behavior_kl": masked_sum(k3(behavior, current), sampled),
        "logprob_abs_diff": masked_sum(jnp.abs(current - behavior), sampled),
        "token_staleness": masked_sum(jnp.asarray(batch.version_lag).astype(ratio.dtype), sampled),
    }
    if config.dual_clip is not None:
        metrics["dual_clip_frac"] = share((advantages < 0) & (ratio > config.dual_clip))
    return metrics
