"""What a policy loss reports of a micro-batch: cheap, on the device, sums and weights that add up.

None of it carries a gradient, and what stands off the masks has no influence.
"""

from collections.abc import Mapping
from math import isfinite, nan
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from agentrl_jax.algo.aggregate import masked_sum, neutralise
from agentrl_jax.algo.corrections import Correction, importance_ratio, log_ratio
from agentrl_jax.algo.histograms import log_histogram
from agentrl_jax.algo.kl import k3
from agentrl_jax.algo.loss_config import LossSettings
from agentrl_jax.batch import TokenBatch, Weighted


class Report(NamedTuple):
    """The reporting half of a `LossOutput`."""

    metrics: dict[str, Weighted]
    maxima: dict[str, Float[Array, ""]]
    histograms: dict[str, Float[Array, "K"]]


def token_report(logprobs: Float[Array, "B T"], batch: TokenBatch) -> Report:
    """Figures over all tokens of loss_mask, groups without a signal included, that every loss has.

    `ratio_mean`: of π/π_behavior, 1 if on-policy. `behavior_kl`: k3 estimate of KL(behavior ‖ current), nats.
    `logprob_abs_diff`: nats. `token_staleness`: learner version − the token's version. Over those tokens of the
    learner's own version, where engine and learner should agree: `mismatch_kl`, the same estimate, and the maximum
    `mismatch_abs_max` of |log π − log π_behavior|, nats. Histogram `ratio`: π/π_behavior. Constants: no gradient.

    >>> from agentrl_jax.algo.external_loss import probe_batch
    >>> batch = probe_batch(has_reference=False)
    >>> report = token_report(jnp.asarray(batch.behavior_logprobs) - 0.25, batch)
    >>> ratio, difference = report.metrics["ratio_mean"], report.metrics["logprob_abs_diff"]
    >>> round(float(ratio.total / ratio.weight), 4), float(difference.total / difference.weight)
    (0.7788, 0.25)
    >>> float(report.maxima["mismatch_abs_max"])
    0.25
    """
    sampled = batch.loss_mask
    current = neutralise(jax.lax.stop_gradient(logprobs), sampled)
    behavior = neutralise(batch.behavior_logprobs, sampled)
    difference = jnp.abs(current - behavior)
    divergence = k3(behavior, current)
    same_version = sampled & (batch.version_lag == 0)
    metrics = {
        "ratio_mean": masked_sum(importance_ratio(current, behavior), sampled),
        "behavior_kl": masked_sum(divergence, sampled),
        "logprob_abs_diff": masked_sum(difference, sampled),
        "token_staleness": masked_sum(jnp.asarray(batch.version_lag, current.dtype), sampled),
        "mismatch_kl": masked_sum(divergence, same_version),
    }
    maxima = {"mismatch_abs_max": jnp.max(jnp.where(same_version, difference, -jnp.inf))}
    return Report(metrics, maxima, {"ratio": log_histogram(log_ratio(current, behavior), sampled)})


def clip_metrics(
    ratio: Float[Array, "B T"], advantages: Float[Array, "B T"], mask: Bool[Array, "B T"], settings: LossSettings
) -> dict[str, Weighted]:
    """Shares of the tokens of `mask` that a bound of the loss holds back; finite inputs only.

    Of a surrogate, tokens without gradient: `clip_low_frac` (A < 0, ratio below 1 − clip_low), `clip_high_frac`
    (A > 0, ratio above 1 + clip_high) and, if there is one, `dual_clip_frac` (A < 0, ratio above dual_clip). Of
    cispo, whose tokens keep theirs: those whose weight is a bound, whatever the sign. Nothing if no bound can bind.

    >>> from agentrl_jax.algo.loss_config import LossConfig
    >>> ratio, advantage = jnp.array([[0.5, 1.5, 4.0, 1.0]]), jnp.array([[-1.0, 1.0, -1.0, 1.0]])
    >>> found = clip_metrics(ratio, advantage, jnp.ones((1, 4), bool), LossConfig().settings)
    >>> {name: float(share.total / share.weight) for name, share in found.items()}
    {'clip_low_frac': 0.25, 'clip_high_frac': 0.25, 'dual_clip_frac': 0.25}
    """
    if not settings.has_clip:
        return {}
    below, above = ratio < 1.0 - settings.clip_low, ratio > 1.0 + settings.clip_high
    is_bad, is_good = advantages < 0, advantages > 0
    if settings.name == "cispo":
        is_bad, is_good = jnp.ones_like(below), jnp.ones_like(above)
    metrics = {
        "clip_low_frac": _share(is_bad & below, mask, ratio),
        "clip_high_frac": _share(is_good & above, mask, ratio),
    }
    if settings.dual_clip is not None:
        metrics["dual_clip_frac"] = _share(is_bad & (ratio > settings.dual_clip), mask, ratio)
    return metrics


def correction_metrics(
    correction: Correction,
    ratio: Float[Array, "B T"],
    mask: Bool[Array, "B T"],
    settings: LossSettings,
) -> dict[str, Weighted]:
    """What a correction did to the tokens of `mask`; finite inputs only. `ratio` is π/π_behavior.

    `correction_weight_mean` of those that weigh (1 if on-policy), `correction_capped_frac` of tis (weight is the
    cap), `correction_masked_frac` of icepop and sequence_mask (weight 0).

    >>> from agentrl_jax.algo.loss_config import LossConfig
    >>> ratio = jnp.array([[1.0, 8.0]])
    >>> tis = Correction(anchor=jnp.zeros((1, 2)), weight=jnp.minimum(ratio, 2.0))
    >>> found = correction_metrics(tis, ratio, jnp.ones((1, 2), bool), LossConfig(correction="tis").settings)
    >>> {name: float(value.total / value.weight) for name, value in found.items()}
    {'correction_weight_mean': 1.5, 'correction_capped_frac': 0.5}
    """
    metrics = {}
    if settings.correction in ("tis", "icepop", "decoupled"):
        metrics["correction_weight_mean"] = masked_sum(correction.weight, mask)
    if settings.correction == "tis":
        metrics["correction_capped_frac"] = _share(ratio > settings.correction_cap, mask, ratio)
    if settings.correction in ("icepop", "sequence_mask"):
        metrics["correction_masked_frac"] = _share(correction.weight == 0, mask, ratio)
    return metrics


def mismatch_alarm(metrics: Mapping[str, float], threshold: float) -> str | None:
    """What to say if engine and learner disagree about tokens of one version by more than `threshold` nats (k3 mean).

    None if they agree, or if no token of the learner's own version was there to compare.

    >>> mismatch_alarm({"mismatch_kl": 1e-9, "mismatch_abs_max": 1e-4}, 0.01)
    >>> print(mismatch_alarm({"mismatch_kl": 0.3, "mismatch_abs_max": 2.5}, 0.01)[:59])
    engines and learner disagree about tokens of one version: a
    """
    divergence = metrics.get("mismatch_kl", nan)
    if not isfinite(divergence) or divergence <= threshold:
        return None
    largest = metrics.get("mismatch_abs_max", nan)
    return (
        f"engines and learner disagree about tokens of one version: a divergence of {divergence:.3g} nats a token "
        f"(expected at most {threshold:.3g}), the largest difference {largest:.3g} nats; compare their weights, "
        "temperature and precision"
    )


def _share(condition: Bool[Array, "B T"], mask: Bool[Array, "B T"], like: Float[Array, "B T"]) -> Weighted:
    return masked_sum(condition.astype(like.dtype), mask)
