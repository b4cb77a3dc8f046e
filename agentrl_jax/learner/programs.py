"""The compiled half of the learner: three programs over a mesh, with every sharding pinned.

`accumulate`, run once per micro-batch, adds up gradients and sums; `apply`, run once per step, divides by the batch's
global weight, clips and updates. So loss, gradient and metrics do not depend on how a batch is cut into
micro-batches, rows and devices. Params and optimiser are float32 whatever the compute dtype: updates of 1e-6 vanish
in bfloat16.
"""

from functools import lru_cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh
from jaxtyping import Array, Bool, Float, Int

from agentrl_jax.algo.aggregate import masked_sum
from agentrl_jax.algo.losses import LossFn
from agentrl_jax.batch import LossOutput, TokenBatch, Weighted
from agentrl_jax.learner.config import LearnerConfig, learning_rate_at
from agentrl_jax.models.config import ModelConfig
from agentrl_jax.models.decoder import head_matrix, hidden_states
from agentrl_jax.models.logprobs import token_logprobs
from agentrl_jax.models.params import Params, build_tree
from agentrl_jax.sharding import named_sharding


class TrainState(NamedTuple):
    """What a step changes. step: updates applied so far."""

    step: Int[Array, ""]
    params: Params
    opt_state: Any


class Sums(NamedTuple):
    """What micro-batches add up to: gradients of the loss total, and its sums and weights."""

    grads: Params
    output: LossOutput


class Figures(NamedTuple):
    """What one step reports. step, learning_rate: of the state after it, and of its update."""

    step: Int[Array, ""]
    loss: Float[Array, ""]
    grad_norm: Float[Array, ""]
    learning_rate: Float[Array, ""]
    is_finite: Bool[Array, ""]
    metrics: dict[str, Weighted]


class Programs:
    """The compiled functions of one model, config, loss and mesh. Call them under `jax.set_mesh(mesh)`."""

    def __init__(self, model: ModelConfig, config: LearnerConfig, loss: LossFn, mesh: Mesh) -> None:
        self._model, self._config, self._loss = model, config, loss
        is_cpu = mesh.devices.flat[0].platform == "cpu"
        dtype = ("float32" if is_cpu else "bfloat16") if config.compute_dtype == "auto" else config.compute_dtype
        self._dtype = jnp.dtype(dtype)
        self._optimizer = _optimizer(model, config)
        self.num_compiles = 0

        replicated = named_sharding(mesh, (), ())
        params = build_tree(model, lambda spec: named_sharding(mesh, spec.axes, spec.shape))
        self._param_shapes = build_tree(model, lambda spec: _shape(spec.shape, jnp.float32))
        self._state_shapes = jax.eval_shape(self._fresh_state, self._param_shapes)
        opt_state: Any = optax.tree.map_params(
            self._optimizer,
            lambda _, sharding: sharding,
            self._state_shapes.opt_state,
            params,
            transform_non_params=lambda _: replicated,
        )
        self.state_shardings: Any = TrainState(replicated, params, opt_state)  # type: ignore[arg-type]
        # The loss's own metrics are not known yet: one sharding stands for all of them.
        self._sums_shardings: Any = Sums(params, replicated)  # type: ignore[arg-type]
        self.accumulate = self._jit(self._accumulate, self._sums_shardings, donate=(1,))
        self.apply = self._jit(self._apply, (self.state_shardings, replicated), donate=(0,))
        self.logprobs = self._jit(self._forward_only, replicated)
        self._fresh = self._jit(self._fresh_state, self.state_shardings, donate=(0,))
        self._make_zeros: Any = None

    def _jit(self, function: Any, out_shardings: Any, *, donate: tuple[int, ...] = ()) -> Any:
        def traced(*args: Any) -> Any:
            self.num_compiles += 1  # runs while JAX traces, that is once for each compiled program
            return function(*args)

        return jax.jit(traced, out_shardings=out_shardings, donate_argnums=donate)

    def start(self, params: Params) -> TrainState:
        """Return the state before the first step, from a copy of `params` on the mesh as float32."""
        # A copy, because programs donate their state: its buffers must not be the caller's.
        placed = jax.tree.map(
            lambda leaf, sharding: jax.device_put(leaf.astype(jnp.float32), sharding, may_alias=False),
            params,
            self.state_shardings.params,
        )
        state: TrainState = self._fresh(placed)
        return state

    def zeros(self, batch: TokenBatch) -> Sums:
        """Return the sums of no micro-batch; `batch` shows what the loss reports."""
        if self._make_zeros is None:
            _, output = jax.eval_shape(self._total, self._param_shapes, batch)
            shapes = Sums(grads=self._param_shapes, output=output)

            def make() -> Sums:
                sums: Sums = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
                return sums

            self._make_zeros = self._jit(make, self._sums_shardings)
        zeros: Sums = self._make_zeros()
        return zeros

    def abstract_state(self) -> TrainState:
        """Return shape, dtype and sharding of each leaf of the state."""
        state: TrainState = jax.tree.map(
            lambda leaf, sharding: _shape(leaf.shape, leaf.dtype, sharding),
            self._state_shapes,
            self.state_shardings,
        )
        return state

    def _fresh_state(self, params: Params) -> TrainState:
        return TrainState(step=jnp.zeros((), jnp.int32), params=params, opt_state=self._optimizer.init(params))

    def _logprobs(self, params: Params, batch: TokenBatch) -> tuple[Float[Array, "B T"], Float[Array, "B T"]]:
        where = (batch.ids, batch.positions, batch.segment_ids)
        hidden = hidden_states(self._model, params, *where, dtype=self._dtype, remat=self._config.remat)
        return token_logprobs(
            hidden,
            head_matrix(params),
            *where,
            temperature=self._config.temperature,
            chunk_tokens=self._config.logprob_chunk,
        )

    def _forward_only(self, params: Params, batch: TokenBatch) -> Float[Array, "B T"]:
        return self._logprobs(params, batch)[0]

    def _total(self, params: Params, batch: TokenBatch) -> tuple[Float[Array, ""], LossOutput]:
        logprobs, entropy = self._logprobs(params, batch)
        output = self._loss(logprobs, batch)
        metrics = output.metrics | {"entropy": masked_sum(entropy, batch.loss_mask)}
        return output.loss.total, LossOutput(loss=output.loss, metrics=metrics)

    def _accumulate(self, params: Params, sums: Sums, batch: TokenBatch) -> Sums:
        (_, output), grads = jax.value_and_grad(self._total, has_aux=True)(params, batch)
        total: Sums = jax.tree.map(jnp.add, sums, Sums(grads=grads, output=output))
        return total

    def _apply(self, state: TrainState, sums: Sums, loss_weight: Float[Array, ""]) -> tuple[TrainState, Figures]:
        loss = sums.output.loss.total / loss_weight
        grads = jax.tree.map(lambda leaf: leaf / loss_weight, sums.grads)
        norm = optax.tree.norm(grads)
        is_finite = jnp.isfinite(norm) & jnp.isfinite(loss)
        grads = jax.tree.map(lambda leaf: leaf * jnp.minimum(1.0, self._config.max_grad_norm / norm), grads)
        updates, opt_state = self._optimizer.update(grads, state.opt_state, state.params)
        params: Any = optax.apply_updates(state.params, updates)
        moved = TrainState(step=state.step + 1, params=params, opt_state=opt_state)
        new: TrainState = jax.tree.map(lambda after, before: jnp.where(is_finite, after, before), moved, state)
        rate = learning_rate_at(self._config, state.step)
        return new, Figures(new.step, loss, norm, rate, is_finite, sums.output.metrics)


def _shape(shape: tuple[int, ...], dtype: Any, sharding: Any = None) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)  # type: ignore[no-untyped-call]


def _optimizer(model: ModelConfig, config: LearnerConfig) -> optax.GradientTransformation:
    return optax.adamw(
        partial(learning_rate_at, config),
        b1=config.beta1,
        b2=config.beta2,
        eps=config.eps,
        weight_decay=config.weight_decay,
        mask=build_tree(model, lambda spec: spec.has_decay),
    )


@lru_cache(maxsize=8)
def compile_programs(model: ModelConfig, config: LearnerConfig, loss: LossFn, mesh: Mesh) -> Programs:
    """Return the programs of these arguments; the same ones for the same arguments, so that nothing compiles twice."""
    return Programs(model, config, loss, mesh)
