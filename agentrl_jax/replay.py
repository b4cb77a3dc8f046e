"""Replaying a loss on what a run has recorded: no engines, no environments, and for most figures no model.

A recorded batch has beside it the log-probabilities that its step gave every token, in float32 (batch_files.py): all
that a loss sees. So the loss and its metrics are computed again exactly, for every step, whatever the loss is now.
Gradient norms need the params of that step: they are recovered from a checkpoint at or before it, by taking the
recorded steps in between again, and are the run's own only if they give its tokens the recorded log-probabilities.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite, nan, sqrt
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from agentrl_jax.algo.aggregate import add_outputs
from agentrl_jax.algo.histograms import histogram_figures
from agentrl_jax.algo.losses import LossConfig, LossFn, make_loss
from agentrl_jax.algo.metrics import means
from agentrl_jax.batch import LossOutput, Scores, TokenBatch
from agentrl_jax.batch_files import load_batch, load_scores
from agentrl_jax.errors import ConfigError
from agentrl_jax.packing import PackedBatch
from agentrl_jax.recovery import RecordedStep, Recovery


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayedStep:
    """recorded: what the run logged. replayed: `replay_loss`, and `grad_norm` where the params were recovered; {} if
    no group of the batch has a signal, so that no loss is minimised. note: what else there is to say, or ""."""

    step: int
    recorded: Mapping[str, float]
    replayed: Mapping[str, float] = field(default_factory=dict)
    note: str = ""

    @property
    def is_finite(self) -> bool:
        """False if the loss, or its gradient to the log-probabilities, is not."""
        return all(isfinite(self.replayed.get(name, 0.0)) for name in ("loss", "logprob_grad_norm"))


class LossReplay:
    """One loss as a function of recorded batches. Compiles once for each shape of rows."""

    def __init__(self, loss: LossFn) -> None:
        def evaluate(logprobs: Float[Array, "B T"], batch: TokenBatch) -> tuple[LossOutput, Float[Array, "B T"]]:
            def total(values: Float[Array, "B T"]) -> tuple[Float[Array, ""], LossOutput]:
                output = loss(values, batch)
                return output.loss.total, output

            (_, output), gradient = jax.value_and_grad(total, has_aux=True)(logprobs)
            return output, gradient

        self._evaluate = jax.jit(evaluate)

    def __call__(self, batch: PackedBatch, scores: Sequence[Scores]) -> dict[str, float]:
        """`loss` and its metrics, as the learner's `StepMetrics` has them (all but `entropy`, which needs a model).

        Also logprob_grad_norm: of the gradient of the mean loss to all log-probabilities, sqrt(Σ_t (∂L/∂log π_t)²);
        and num_bad_gradients: tokens to which it is not finite. A loss may be finite and its gradient not.
        """
        total: LossOutput | None = None
        squares, num_bad = 0.0, 0
        for micro_batch, score in zip(batch.micro_batches, scores, strict=True):
            whole = micro_batch._replace(reference_logprobs=score.reference_logprobs)
            output, gradient = self._evaluate(jnp.asarray(score.logprobs), whole)
            total = output if total is None else add_outputs(total, output)
            values = np.asarray(gradient, np.float64)
            squares += float(np.square(values).sum())
            num_bad += int((~np.isfinite(values)).sum())
        assert total is not None
        weight = float(total.loss.weight)
        figures = means(total.metrics) | {name: float(value) for name, value in total.maxima.items()}
        return {
            "loss": float(total.loss.total) / weight if weight > 0 else nan,
            "logprob_grad_norm": sqrt(squares) / weight if weight > 0 else nan,
            "num_bad_gradients": float(num_bad),
            **figures,
            **histogram_figures(total.histograms),
        }


def replay(
    steps: Sequence[int], recorded: Mapping[int, RecordedStep], loss: LossConfig, recovery: Recovery | None
) -> Iterator[ReplayedStep]:
    """Replay `loss` on `steps` of a run, in ascending order.

    recovery: of the same loss, for gradient norms; None leaves them out. Raises ConfigError if the loss cannot be had,
    needs reference_logprobs that the run has not recorded, or a batch was recorded without log-probabilities.
    """
    evaluate = LossReplay(make_loss(loss))
    for step in (recorded[number] for number in sorted(steps)):
        if step.batch_path is None:
            yield ReplayedStep(step=step.step, recorded=step.metrics, note="its batch was not kept, or had no token")
            continue
        batch, scores = load_batch(step.batch_path), load_scores(step.batch_path)
        if not batch.loss_weight > 0:
            yield ReplayedStep(step=step.step, recorded=step.metrics, note="no group had a signal")
            continue
        _check_scores(step.batch_path, scores, loss)
        figures, notes = evaluate(batch, scores), []
        if figures["num_bad_gradients"]:
            notes.append(f"gradient not finite at {figures['num_bad_gradients']:.0f} tokens")
        if recovery is not None and recovery.can_reach(step.step):
            norm = recovery.grad_norm(batch, step.step, scores)
            if norm is None:
                notes.append("its params are not recovered: settings, loss or code have changed since")
            else:
                figures["grad_norm"] = norm
        yield ReplayedStep(step=step.step, recorded=step.metrics, replayed=figures, note="; ".join(notes))


def _check_scores(path: Path, scores: Sequence[Scores], loss: LossConfig) -> None:
    if not scores:
        raise ConfigError(f"{path} has no log-probabilities: it was recorded by an earlier version of agentrl_jax")
    if loss.needs_reference and scores[0].reference_logprobs is None:
        raise ConfigError(
            f"{path} has no reference_logprobs, which --loss.kl-coefficient {loss.kl_coefficient:g} needs: the run had "
            "none. Leave it at 0, or replay a run that was trained with one"
        )
