"""The learner: owns params and optimiser, and turns a packed batch into one optimiser step."""

from dataclasses import dataclass, field
from math import isfinite
from typing import Literal, TypeAlias

import jax
import numpy as np
from jax.sharding import Mesh

from agentrl_jax.algo.histograms import histogram_figures
from agentrl_jax.algo.losses import LossFn
from agentrl_jax.algo.metrics import means
from agentrl_jax.batch import TokenBatch, Totals, map_tokens
from agentrl_jax.errors import NoProgressError, RecordError
from agentrl_jax.learner.config import LearnerConfig, learning_rate_at
from agentrl_jax.learner.gradients import gradient_programs
from agentrl_jax.learner.updates import Figures, TrainState, update_programs
from agentrl_jax.models.config import ModelConfig
from agentrl_jax.models.params import Params, check_params
from agentrl_jax.packing import PackedBatch
from agentrl_jax.sharding import MeshShape, check_rows, named_sharding
from agentrl_jax.types import Floats

Outcome: TypeAlias = Literal["applied", "non_finite", "zero_weight"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepMetrics:
    """The figures of one step, as plain numbers.

    outcome: `applied`; `non_finite` (loss or gradient was not finite) or `zero_weight` (no token to learn from):
      in both, params, optimiser and `step` are bit for bit what they were.
    step: updates applied so far, this one included. loss: the minimised mean. grad_norm: global, before clipping.
      Both are NaN for `zero_weight`. num_skipped: steps in a row, this one included, that were not finite.
    metrics: means of the loss's own metrics, and `entropy` (nats, mean over the loss mask).
    """

    outcome: Outcome
    step: int
    loss: float
    grad_norm: float
    learning_rate: float
    num_skipped: int
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
            "is_applied": float(self.is_applied),
            **self.metrics,
        }
        return {name: value for name, value in figures.items() if isfinite(value)}


class Learner:
    """Params and optimiser on a mesh. One thread at a time.

    Learners of equal model, config and mesh, and the same loss function, share their compiled programs; those that
    differ in the optimiser alone still share the costly one.
    """

    def __init__(self, model: ModelConfig, config: LearnerConfig, loss: LossFn, mesh: Mesh, params: Params) -> None:
        """Copy `params` (host or device, any float dtype) to the mesh as float32, and start a fresh optimiser.

        Raises ConfigError if they do not fit the model.
        """
        check_params(model, params)
        self.model = model
        self.config = config
        self.mesh = mesh
        self._mesh_shape = MeshShape(**mesh.shape)
        self._gradients = gradient_programs(model, config, loss, mesh)
        self._updates = update_programs(model, config, mesh)
        self._state = self._updates.start(params)
        self._num_skipped = 0

    @property
    def state(self) -> TrainState:
        """On the mesh; valid until the next step, which takes its buffers."""
        return self._state

    @property
    def params(self) -> Params:
        """On the mesh; valid until the next step, which takes their buffers."""
        return self._state.params

    @property
    def num_compiles(self) -> int:
        """Programs compiled so far, by all learners that share them."""
        return self._gradients.num_compiles + self._updates.num_compiles

    def host_params(self) -> Params:
        """Return a float32 copy on the host, of its own."""
        params: Params = jax.tree.map(lambda leaf: np.array(leaf, copy=True), self._state.params)
        return params

    def abstract_state(self) -> TrainState:
        """Return shapes, dtypes and shardings of the state, to restore a checkpoint into."""
        return self._updates.abstract_state()

    def restore(self, state: TrainState) -> None:
        """Go on from `state`, which is copied to the mesh."""
        # Copied on the host too: a CPU device may use an aligned array as it is, even with may_alias=False.
        self._state = jax.tree.map(
            lambda leaf, sharding: jax.device_put(
                leaf.copy() if isinstance(leaf, np.ndarray) else leaf, sharding, may_alias=False
            ),
            state,
            self._updates.state_shardings,
        )
        self._num_skipped = 0

    def step(self, packed: PackedBatch) -> StepMetrics:
        """Take one optimiser step on the batch, or skip it and say why in `outcome`.

        Raises NoProgressError after `max_skipped_steps` steps in a row that were not finite, ConfigError if the
        rows cannot be split over the mesh, RecordError for token ids outside of the vocabulary.
        """
        if not packed.micro_batches or not packed.loss_weight > 0:
            return self._skipped()
        with jax.set_mesh(self.mesh):
            sums = self._gradients.zeros(packed.micro_batches[0])
            for micro_batch in packed.micro_batches:
                sums = self._gradients.accumulate(self._state.params, sums, self._put(micro_batch))
            self._state, figures = self._updates.apply(self._state, sums)
        metrics = _to_metrics(jax.device_get(figures), num_skipped=self._num_skipped)
        self._num_skipped = metrics.num_skipped
        if self._num_skipped >= self.config.max_skipped_steps:
            raise NoProgressError(
                f"{self._num_skipped} learner steps in a row had no finite loss and gradient (last loss "
                f"{metrics.loss}, gradient norm {metrics.grad_norm}): expected one in at most "
                f"{self.config.max_skipped_steps}; lower the learning rate or look at the recorded batches"
            )
        return metrics

    def logprobs(self, micro_batch: TokenBatch) -> Floats:
        """Return float32 [B, T] log-probabilities of the tokens under the current params, 0 where none is defined.

        Raises ConfigError and RecordError as `step` does.
        """
        with jax.set_mesh(self.mesh):
            result: Floats = np.asarray(self._gradients.logprobs(self._state.params, self._put(micro_batch)))
        return result

    def _put(self, batch: TokenBatch) -> TokenBatch:
        check_rows(batch.ids.shape[0], self._mesh_shape)
        if batch.ids.min() < 0 or batch.ids.max() >= self.model.vocab_size:
            raise RecordError(
                f"token ids must be in [0, {self.model.vocab_size}), got {batch.ids.min()} to {batch.ids.max()}"
            )
        by_rows = named_sharding(self.mesh, ("rows", None), batch.ids.shape)
        everywhere = named_sharding(self.mesh, (), ())
        shardings = map_tokens(lambda _: by_rows, batch)._replace(totals=Totals(*([everywhere] * len(batch.totals))))
        placed: TokenBatch = jax.device_put(batch, shardings)
        return placed

    def _skipped(self) -> StepMetrics:
        step = int(self._state.step)
        nan = float("nan")
        rate = float(learning_rate_at(self.config, self._state.step))
        return StepMetrics(
            outcome="zero_weight", step=step, loss=nan, grad_norm=nan, learning_rate=rate, num_skipped=self._num_skipped
        )


def _to_metrics(figures: Figures, *, num_skipped: int) -> StepMetrics:
    is_finite = bool(figures.is_finite)
    loss = figures.output.loss
    outcome: Outcome = "applied" if is_finite else "non_finite" if loss.weight > 0 else "zero_weight"
    return StepMetrics(
        outcome=outcome,
        step=int(figures.step),
        loss=float(loss.total) / float(loss.weight) if loss.weight > 0 else float("nan"),
        grad_norm=float(figures.grad_norm),
        learning_rate=float(figures.learning_rate),
        num_skipped=0 if is_finite else num_skipped + (outcome == "non_finite"),
        metrics=means(figures.output.metrics)
        | {name: float(value) for name, value in figures.output.maxima.items()}
        | histogram_figures(figures.output.histograms),
    )
