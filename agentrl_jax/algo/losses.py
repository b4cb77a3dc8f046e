"""Losses by name: a formula of `surrogates.py` over a batch, corrected, aggregated, with the KL to a reference.

To try an idea, write a function `(logprobs [B, T], TokenBatch) -> LossOutput` into a file of your own and name it,
`--loss.name=my_loss:loss`: return `masked_sum` of what each token costs over `loss_mask & has_signal`, and the learner
divides by the batch's global number of tokens. The metrics that all losses have are added around it, and so is the KL.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from agentrl_jax.algo.aggregate import aggregate, masked_sum, neutralise
from agentrl_jax.algo.corrections import Correction, correct, log_ratio
from agentrl_jax.algo.external_loss import LossFn, check_output, import_loss, probe_batch
from agentrl_jax.algo.histograms import QUANTILES
from agentrl_jax.algo.kl import kl_to_reference
from agentrl_jax.algo.loss_config import LossConfig, LossSettings
from agentrl_jax.algo.policy_metrics import clip_metrics, correction_metrics, token_report
from agentrl_jax.algo.segments import segment_means
from agentrl_jax.algo.surrogates import cispo, clipped_surrogate, gspo, negative_log_likelihood, policy_gradient
from agentrl_jax.batch import LossOutput, TokenBatch, Totals, Weighted
from agentrl_jax.errors import ConfigError, RecordError

__all__ = ["LossConfig", "LossFn", "make_loss"]


def make_loss(config: LossConfig) -> LossFn:
    """The loss that `config` names, over loss_mask & has_signal of a batch. Equal settings give equal losses.

    Its metrics are those of `policy_metrics.token_report`, `clip_metrics` and `correction_metrics`, and with a
    kl_coefficient `reference_kl` (unscaled, nats, over loss_mask); the sft loss has none. The sum and the weight are
    such that their quotient over a step is

        mean of the policy's cost + kl_coefficient · mean of the divergence from the reference,

    each mean with its own denominator: the divergence's is over all of loss_mask, groups without a signal included.
    A step in which no group has a signal has weight 0, and is not taken for the divergence's sake alone.

    Raises:
      ConfigError: a function of the user's cannot be found, or does not return what a loss must.

    On-policy, with an advantage of 0.5 for each of the six tokens with a signal, −Aρ is −0.5:

    >>> batch = probe_batch(has_reference=False)
    >>> loss = make_loss(LossConfig(name="grpo"))(jnp.asarray(batch.behavior_logprobs), batch).loss
    >>> float(loss.total), float(loss.weight)
    (-3.0, 6.0)
    """
    if config.name == "sft":
        return supervised
    if config.is_external:
        return _external(config)
    return PolicyLoss(config.settings)


def supervised(logprobs: Float[Array, "B T"], batch: TokenBatch) -> LossOutput:
    """−log π over loss_mask & has_signal, in nats, to be minimised: the loss of demonstrations.

    >>> batch = probe_batch(has_reference=False)
    >>> loss = supervised(jnp.full(batch.ids.shape, -0.5), batch).loss
    >>> float(loss.total), float(loss.weight)
    (3.0, 6.0)
    """
    return LossOutput(
        loss=masked_sum(negative_log_likelihood(logprobs), batch.loss_mask & batch.has_signal), metrics={}
    )


@dataclass(frozen=True, slots=True)
class PolicyLoss:
    """A loss of `surrogates.py` as its settings say."""

    settings: LossSettings

    def __call__(self, logprobs: Float[Array, "B T"], batch: TokenBatch) -> LossOutput:
        """What the tokens of one micro-batch cost, and the figures about them."""
        s, mask = self.settings, batch.loss_mask & batch.has_signal
        current, behavior = neutralise(logprobs, mask), neutralise(batch.behavior_logprobs, mask)
        advantages = neutralise(batch.advantages, mask)
        bounds = {"cap": s.correction_cap, "low": s.correction_low, "high": s.correction_high}
        correction = correct(s.correction, current, behavior, batch.segment_ids, mask, **bounds)
        costs = correction.weight * self._costs(current, correction, advantages, batch, mask)
        loss = aggregate(costs, mask, batch.sequence_tokens, how=s.aggregation, constant_length=s.constant_length)

        metrics, maxima, histograms = token_report(logprobs, batch)
        log_ratios = log_ratio(jax.lax.stop_gradient(current), behavior)
        metrics |= correction_metrics(correction, jnp.exp(log_ratios), mask, s)
        if s.name == "gspo":
            log_ratios = segment_means(log_ratios, batch.segment_ids, mask)
        metrics |= clip_metrics(jnp.exp(log_ratios), advantages, mask, s)
        output = LossOutput(loss=loss, metrics=metrics, maxima=maxima, histograms=histograms)
        return add_reference_kl(output, logprobs, batch, s)

    def _costs(
        self,
        current: Float[Array, "B T"],
        correction: Correction,
        advantages: Float[Array, "B T"],
        batch: TokenBatch,
        mask: Bool[Array, "B T"],
    ) -> Float[Array, "B T"]:
        s, anchor = self.settings, correction.anchor
        if s.name == "gspo":
            return gspo(
                current,
                anchor,
                advantages,
                batch.segment_ids,
                mask,
                clip_low=s.clip_low,
                clip_high=s.clip_high,
                dual_clip=s.dual_clip,
            )
        if s.name == "cispo":
            return cispo(current, anchor, advantages, clip_low=s.clip_low, clip_high=s.clip_high)
        if s.name == "policy_gradient":
            return policy_gradient(current, advantages)
        return clipped_surrogate(
            current, anchor, advantages, clip_low=s.clip_low, clip_high=s.clip_high, dual_clip=s.dual_clip
        )


@dataclass(frozen=True, slots=True)
class ExternalLoss:
    """A function of the user's, with the metrics and the KL of the other losses around it."""

    function: LossFn
    settings: LossSettings

    def __call__(self, logprobs: Float[Array, "B T"], batch: TokenBatch) -> LossOutput:
        """What the function says of one micro-batch, and the rest."""
        own, report = self.function(logprobs, batch), token_report(logprobs, batch)
        output = LossOutput(
            loss=own.loss,
            metrics=own.metrics | report.metrics,
            maxima=own.maxima | report.maxima,
            histograms=own.histograms | report.histograms,
        )
        return add_reference_kl(output, logprobs, batch, self.settings)


def add_reference_kl(
    output: LossOutput, logprobs: Float[Array, "B T"], batch: TokenBatch, settings: LossSettings
) -> LossOutput:
    """`output` with kl_coefficient · W_policy / W_kl · Σ kl added to its total, and the metric `reference_kl`.

    W are the step-wide weights of `batch.totals`: over a step, however it is cut, Σ total / Σ weight is then the mean
    cost + kl_coefficient · the mean kl, each aggregated as the settings say. Nothing changes without a coefficient.

    Raises:
      RecordError: the batch has no reference_logprobs.

    >>> batch = probe_batch(has_reference=True)  # log π_ref = −1; eight tokens, six of them with a signal
    >>> policy = LossOutput(loss=Weighted(jnp.array(-3.0), jnp.array(6.0)), metrics={})
    >>> settings = LossConfig(kl_coefficient=0.5, kl_estimator="k2").settings
    >>> loss = add_reference_kl(policy, jnp.full(batch.ids.shape, -3.0), batch, settings).loss
    >>> float(loss.total / loss.weight)  # −0.5 + 0.5 · (2² / 2)
    0.5
    """
    if not settings.kl_coefficient:
        return output
    if batch.reference_logprobs is None:
        raise RecordError("a loss with a kl_coefficient needs batches with reference_logprobs, got one without")
    mask = batch.loss_mask
    divergence = kl_to_reference(
        neutralise(logprobs, mask), neutralise(batch.reference_logprobs, mask), estimator=settings.kl_estimator
    )
    total, _ = aggregate(
        divergence,
        mask,
        batch.sequence_tokens,
        how=settings.aggregation,
        constant_length=settings.constant_length,
    )
    policy, of_kl = _denominators(batch.totals, settings)
    scale = jnp.where(of_kl > 0, policy / jnp.where(of_kl > 0, of_kl, 1.0), 0.0)
    loss = Weighted(output.loss.total + settings.kl_coefficient * scale * total, output.loss.weight)
    unscaled = masked_sum(jax.lax.stop_gradient(divergence), mask)
    return output._replace(loss=loss, metrics=output.metrics | {"reference_kl": unscaled})


def _denominators(totals: Totals, settings: LossSettings) -> tuple[Float[Array, ""], Float[Array, ""]]:
    if settings.aggregation == "token_mean":
        return totals.signal_tokens, totals.loss_tokens
    return totals.signal_sequences, totals.sequences


_NAMES_AROUND = frozenset(
    {
        *("reference_kl", "entropy", *(f"ratio_{suffix}" for suffix in QUANTILES)),
        *("loss", "grad_norm", "learning_rate", "num_skipped", "num_late_compiles", "is_applied"),
        *("num_groups", "num_signal_groups", "num_trajectories", "num_segments", "num_invalid", "num_silent"),
        *("num_overlong_masked", "num_tasks_not_normalised", "token_staleness_max", "advantage_abs_mean"),
        *("packing_efficiency", "pack_s"),
    }
)
"""What the learner and the packing log under flat names, beside a loss's own metrics."""


def _external(config: LossConfig) -> LossFn:
    function, has_reference = import_loss(config.name), config.needs_reference
    batch = probe_batch(has_reference=has_reference)
    around = jax.eval_shape(token_report, batch.behavior_logprobs, batch)
    taken = _NAMES_AROUND.union(around.metrics, around.maxima, around.histograms)
    check_output(function, config.name, has_reference=has_reference, taken=taken)
    if has_reference:
        weight = float(function(jnp.asarray(batch.behavior_logprobs), batch).loss.weight)
        if weight != batch.totals.signal_tokens:
            raise ConfigError(
                f"loss {config.name}: with a kl_coefficient its weight must be the number of tokens of "
                f"loss_mask & has_signal, {batch.totals.signal_tokens:.0f} in a probe, got {weight}"
            )
    return ExternalLoss(function, config.settings)
