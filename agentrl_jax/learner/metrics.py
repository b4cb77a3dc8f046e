"""What a learner says about one step."""

from dataclasses import dataclass, field
from math import isfinite, nan
from typing import Literal, TypeAlias

from agentrl_jax.algo.histograms import histogram_figures
from agentrl_jax.algo.metrics import means
from agentrl_jax.learner.updates import Figures

Outcome: TypeAlias = Literal["applied", "non_finite", "zero_weight"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepMetrics:
    """The figures of one step, as plain numbers.

    outcome: `applied`; `non_finite` (loss or gradient was not finite) or `zero_weight` (no token to learn from):
      in both, params, optimiser and `step` are bit for bit what they were.
    step: updates applied so far, this one included. loss: the minimised mean. grad_norm: global, before clipping.
      Both are NaN for `zero_weight`. num_skipped: steps in a row, this one included, that were not finite.
    num_late_compiles: programs compiled in this step although `compile_ahead` had been called; 0 is as it should be.
    metrics: means of the loss's own metrics, its maxima and quantiles of its histograms, and `entropy` (nats, mean
      over the loss mask).
    """

    outcome: Outcome
    step: int
    loss: float
    grad_norm: float
    learning_rate: float
    num_skipped: int
    num_late_compiles: int = 0
    metrics: dict[str, float] = field(default_factory=dict)

    @property
    def is_applied(self) -> bool:
        return self.outcome == "applied"

    def as_dict(self) -> dict[str, float]:
        """All figures that are finite, under flat names, for the log."""
        figures = {
            "loss": self.loss,
            "grad_norm": self.grad_norm,
            "learning_rate": self.learning_rate,
            "num_skipped": float(self.num_skipped),
            "num_late_compiles": float(self.num_late_compiles),
            "is_applied": float(self.is_applied),
            **self.metrics,
        }
        return {name: value for name, value in figures.items() if isfinite(value)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Validation:
    """Sums over tokens. loss: of −log π, nats. hits: tokens that the model finds likeliest. Several add up with +."""

    loss: float = 0.0
    hits: float = 0.0
    num_tokens: int = 0

    def __add__(self, other: "Validation") -> "Validation":
        return Validation(
            loss=self.loss + other.loss, hits=self.hits + other.hits, num_tokens=self.num_tokens + other.num_tokens
        )

    @property
    def mean_loss(self) -> float:
        """Nats per token; NaN without tokens."""
        return self.loss / self.num_tokens if self.num_tokens else nan

    @property
    def accuracy(self) -> float:
        """Share of tokens that greedy sampling would have got right, given those before; NaN without tokens."""
        return self.hits / self.num_tokens if self.num_tokens else nan


def to_metrics(figures: Figures, *, num_skipped: int, num_late_compiles: int) -> StepMetrics:
    """Plain numbers from figures on the host. num_skipped: of the steps before this one."""
    is_finite = bool(figures.is_finite)
    loss, output = figures.output.loss, figures.output
    outcome: Outcome = "applied" if is_finite else "non_finite" if loss.weight > 0 else "zero_weight"
    maxima = {name: float(value) for name, value in output.maxima.items()}
    return StepMetrics(
        outcome=outcome,
        step=int(figures.step),
        loss=float(loss.total) / float(loss.weight) if loss.weight > 0 else float("nan"),
        grad_norm=float(figures.grad_norm),
        learning_rate=float(figures.learning_rate),
        num_skipped=0 if is_finite else num_skipped + (outcome == "non_finite"),
        num_late_compiles=num_late_compiles,
        metrics=means(output.metrics) | maxima | histogram_figures(output.histograms),
    )
