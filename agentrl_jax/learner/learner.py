"""The learner: owns params and optimiser, and turns a packed batch into one optimiser step."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from agentrl_jax.algo.losses import LossFn
from agentrl_jax.batch import Scores, TokenBatch, Totals, map_tokens
from agentrl_jax.distributed import gathered
from agentrl_jax.errors import NoProgressError, RecordError
from agentrl_jax.learner.compiles import CompileCounter, Memory
from agentrl_jax.learner.config import LearnerConfig, learning_rate_at
from agentrl_jax.learner.gradients import Sums, gradient_programs
from agentrl_jax.learner.lora import LoraConfig, init_adapters
from agentrl_jax.learner.metrics import StepMetrics, Validation, to_metrics
from agentrl_jax.learner.trained import Trained, param_shardings, shape_of
from agentrl_jax.learner.updates import Figures, TrainState, update_programs
from agentrl_jax.models.attention import AttentionPlan
from agentrl_jax.models.config import ModelConfig
from agentrl_jax.models.export import host_params
from agentrl_jax.models.params import Params, build_tree, check_params
from agentrl_jax.packing import PackedBatch, PackingConfig, pack_segments
from agentrl_jax.sharding import MeshShape, check_rows, named_sharding, num_row_shares
from agentrl_jax.types import Floats


class Learner:
    """Params and optimiser on a mesh. One thread at a time.

    Learners of equal model, config and mesh, and the same loss function, share their compiled programs; those that
    differ in the optimiser alone still share the costly one.
    """

    def __init__(
        self,
        model: ModelConfig,
        config: LearnerConfig,
        loss: LossFn,
        mesh: Mesh,
        params: Params,
        *,
        reference: Params | None = None,
        lora: LoraConfig | None = None,
    ) -> None:
        """Copy `params` (host or device, any float dtype) to the mesh, and start a fresh optimiser.

        reference: the frozen policy that fills `reference_logprobs` of every batch, held in the compute dtype; None
          holds none, and leaves the field None.
        lora: train adapters beside `params`, which stay as they are and in their own dtype; None, or a rank of 0,
          trains `params` themselves in float32. A reference that is `params` itself then takes no memory of its own.
        Raises ConfigError if params, reference or adapters do not fit the model.
        """
        check_params(model, params)
        if reference is not None:
            check_params(model, reference)
        self.model = model
        self.config = config
        self.mesh = mesh
        self.lora = lora if lora is not None and lora.is_on else None
        self._mesh_shape = MeshShape(**mesh.shape)
        # Which adapters were drawn makes no difference to a program.
        trained = Trained(model, None if self.lora is None else replace(self.lora, seed=0))
        self._gradients = gradient_programs(trained, config, loss, mesh)
        self._updates = update_programs(trained, config, mesh)
        self._frozen: Params = {} if self.lora is None else self._freeze(params, None)
        self._reference: Params | None = None
        if reference is not None:
            is_base = self.lora is not None and reference is params
            self._reference = self._frozen if is_base else self._freeze(reference, self._gradients.dtype)
        self._state = self._updates.start(params if self.lora is None else init_adapters(model, self.lora))
        self._whole: Params | None = None
        self._scores: list[Scores] = []
        self._num_skipped = 0
        self._compiles = CompileCounter()
        self._is_compiled = False

    @property
    def state(self) -> TrainState:
        """On the mesh; valid until the next step, which takes its buffers. Its params are what is trained."""
        return self._state

    @property
    def params(self) -> Params:
        """Whole params on the mesh, float32, adapters merged; valid until the next step, which takes their buffers."""
        if self.lora is None:
            return self._state.params
        if self._whole is None:
            with jax.set_mesh(self.mesh), self._compiles.counting():
                self._whole = self._gradients.merge(self._state.params, self._frozen)
        return self._whole

    @property
    def has_scores(self) -> bool:
        """Whether the last step was computed, so that it left scores."""
        return bool(self._scores)

    @property
    def scores(self) -> tuple[Scores, ...]:
        """Of each micro-batch of the last step, on the host: what its loss was computed from; () if it was skipped.

        Where several processes share the mesh, all of them ask, and get all rows.
        """
        return tuple(gathered(self._scores))

    @property
    def attention(self) -> AttentionPlan:
        """Which attention backend runs, and why."""
        return self._gradients.attention

    @property
    def num_compiles(self) -> int:
        """Programs that this learner has compiled so far; one that another had compiled before counts there."""
        return self._compiles.total

    def host_params(self) -> Params:
        """Return a float32 copy of `params` on the host, of its own.

        Where several processes share the mesh, all of them call this, and each gets a copy.
        """
        return host_params(self.params, self.model)

    def abstract_state(self) -> TrainState:
        """Return shapes, dtypes and shardings of the state, to restore a checkpoint into."""
        return self._updates.abstract_state()

    def abstract_params(self) -> Params:
        """Return shapes, dtypes and shardings of `params`."""
        return build_tree(
            self.model,
            lambda spec: shape_of(spec.shape, jnp.float32, named_sharding(self.mesh, spec.axes, spec.shape)),
        )

    def restore(self, state: TrainState) -> None:
        """Go on from `state`, which is copied to the mesh."""
        self._state = _copied(state, self._updates.state_shardings)
        self._whole = None
        self._num_skipped = 0

    def compile_ahead(self, packing: PackingConfig) -> Memory:
        """Compile everything that steps on batches packed so will call, and return the most that one program needs.

        From now on, what a step still compiles is counted in its `num_late_compiles`. Raises ConfigError if the rows
        cannot be split over the mesh.
        """
        rows = packing.rows_per_micro_batch // num_row_shares(self.mesh)
        needs = []
        with jax.set_mesh(self.mesh), self._compiles.counting():
            for row_tokens in packing.row_tokens:
                one_token = pack_segments([1], {}, PackingConfig(row_tokens=(row_tokens,), rows_per_micro_batch=rows))
                batch = self._put(one_token[0])
                sums, memory = self._gradients.compile(self._state.params, self._frozen, batch, self._reference)
                needs.append(memory)
            needs.append(self._updates.compile(self._state, sums))
        self._is_compiled = True
        return Memory(*(max(figures) for figures in zip(*needs, strict=True)))

    def step(self, packed: PackedBatch) -> StepMetrics:
        """Take one optimiser step on the batch, or skip it and say why in `outcome`.

        Where several processes share the mesh, all of them call this, each with the rows of its own devices
        (`sharding.local_rows`); loss weight and totals are those of the whole batch everywhere.

        Raises NoProgressError after `max_skipped_steps` steps in a row that were not finite, ConfigError if the
        rows cannot be split over the mesh, RecordError for token ids outside of the vocabulary.
        """
        if not packed.micro_batches or not packed.loss_weight > 0:
            self._scores = []
            return self._skipped()
        before = self.num_compiles
        with jax.set_mesh(self.mesh), self._compiles.counting():
            figures = self._update(packed)
        num_late = self.num_compiles - before if self._is_compiled else 0
        metrics = to_metrics(figures, num_skipped=self._num_skipped, num_late_compiles=num_late)
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
        with jax.set_mesh(self.mesh), self._compiles.counting():
            placed = self._put(micro_batch)
            result: Floats = np.asarray(self._gradients.logprobs(self._state.params, self._frozen, placed))
        return result

    def validate(self, packed: PackedBatch) -> Validation:
        """Return how well the current params predict the tokens of the batch's loss masks; nothing changes.

        Raises ConfigError and RecordError as `step` does.
        """
        loss, hits, num_tokens = 0.0, 0.0, 0.0
        with jax.set_mesh(self.mesh), self._compiles.counting():
            for micro_batch in packed.micro_batches:
                batch = self._put(micro_batch)
                of_loss, of_hits = jax.device_get(self._gradients.validate(self._state.params, self._frozen, batch))
                loss, hits, num_tokens = loss + of_loss.total, hits + of_hits.total, num_tokens + of_loss.weight
        return Validation(loss=float(loss), hits=float(hits), num_tokens=int(num_tokens))

    def check_ids(self, batch: TokenBatch) -> None:
        """Raise RecordError for token ids outside of the vocabulary."""
        if batch.ids.min() < 0 or batch.ids.max() >= self.model.vocab_size:
            raise RecordError(
                f"token ids must be in [0, {self.model.vocab_size}), got {batch.ids.min()} to {batch.ids.max()}"
            )

    def _update(self, packed: PackedBatch) -> Figures:
        sums: Sums | None = None
        self._scores = []
        for micro_batch in packed.micro_batches:
            batch = self._put(micro_batch)
            if self._reference is not None:
                batch = self._gradients.with_reference(self._reference, batch)
            if sums is None:
                sums = self._gradients.zeros(self._state.params, self._frozen, batch)
            sums, logprobs = self._gradients.accumulate(self._state.params, self._frozen, sums, batch)
            self._scores.append(Scores(logprobs, batch.reference_logprobs))
        assert sums is not None
        self._whole = None
        self._state, figures = self._updates.apply(self._state, sums)
        on_host: Figures = jax.device_get(figures)
        return on_host

    def _put(self, batch: TokenBatch) -> TokenBatch:
        rows = batch.ids.shape[0] * num_row_shares(self.mesh)
        check_rows(rows, self._mesh_shape)
        self.check_ids(batch)
        by_rows = named_sharding(self.mesh, ("rows", None), (rows, batch.ids.shape[1]))
        everywhere = named_sharding(self.mesh, (), ())
        shardings = map_tokens(lambda _: by_rows, batch)._replace(totals=Totals(*([everywhere] * len(batch.totals))))
        placed: TokenBatch = jax.tree.map(_from_this_process, batch, shardings)
        return placed

    def _freeze(self, params: Params, dtype: Any) -> Params:
        """A copy on the mesh in `dtype`, or in the dtype that they have."""
        frozen: Params = _copied(params, param_shardings(self.model, self.mesh), dtype)
        return frozen

    def _skipped(self) -> StepMetrics:
        step = int(self._state.step)
        nan = float("nan")
        rate = float(learning_rate_at(self.config, step))
        return StepMetrics(
            outcome="zero_weight", step=step, loss=nan, grad_norm=nan, learning_rate=rate, num_skipped=self._num_skipped
        )


def _from_this_process(local: Any, sharding: Any) -> jax.Array:
    """The array whose rows the processes hold between them, each those of its own devices."""
    array: jax.Array = jax.make_array_from_process_local_data(sharding, np.asarray(local))  # type: ignore[no-untyped-call]
    return array


def _copied(tree: Any, shardings: Any, dtype: Any = None) -> Any:
    """A copy of its own: a step takes the buffers of its state, and they must not be the caller's."""

    def copy(leaf: Any, sharding: Any) -> Any:
        # On the host too: a CPU device may use an aligned array as it is, even with may_alias=False.
        on_host = leaf.copy() if isinstance(leaf, np.ndarray) else leaf
        return jax.device_put(on_host if dtype is None else on_host.astype(dtype), sharding, may_alias=False)

    return jax.tree.map(copy, tree, shardings)
