"""The second of the learner's two programs: one update of what is trained and of the optimiser, once per step."""

from functools import lru_cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh
from jaxtyping import Array, Bool, Float, Int

from agentrl_jax.batch import LossOutput
from agentrl_jax.learner.compiles import Memory
from agentrl_jax.learner.config import LearnerConfig, learning_rate_at
from agentrl_jax.learner.gradients import Sums
from agentrl_jax.learner.trained import Trained, shape_of
from agentrl_jax.models.params import Params
from agentrl_jax.sharding import named_sharding


class TrainState(NamedTuple):
    """What a step changes. step: updates applied so far. params: those that are trained, adapters if they are it."""

    step: Int[Array, ""]
    params: Params
    opt_state: Any


class Figures(NamedTuple):
    """What one step reports. step: updates applied so far, this one included. learning_rate: of this update."""

    step: Int[Array, ""]
    grad_norm: Float[Array, ""]
    learning_rate: Float[Array, ""]
    is_finite: Bool[Array, ""]
    output: LossOutput


class UpdatePrograms:
    """`start` and `apply`, compiled, with the shardings of all that lives from step to step pinned.

    state_shardings: where the state lies between steps, moments in the host's memory if they are offloaded.
    """

    def __init__(self, trained: Trained, config: LearnerConfig, mesh: Mesh) -> None:
        self._config = config
        self._optimizer = optax.adamw(
            partial(learning_rate_at, config),
            b1=config.beta1,
            b2=config.beta2,
            eps=config.eps,
            weight_decay=config.weight_decay,
            mask=trained.build(lambda spec: spec.has_decay),
        )
        replicated = named_sharding(mesh, (), ())
        params = trained.shardings(mesh)
        self._state_shapes = jax.eval_shape(self._fresh_state, trained.shapes())

        def with_moments(place: Any) -> Any:
            opt_state: Any = optax.tree.map_params(
                self._optimizer,
                lambda _, sharding: place(sharding),
                self._state_shapes.opt_state,
                params,
                transform_non_params=lambda _: replicated,
            )
            return TrainState(replicated, params, opt_state)  # type: ignore[arg-type]

        self._on_device: Any = with_moments(lambda sharding: sharding)
        self.state_shardings: Any = self._on_device
        if config.offload_optimizer:
            self.state_shardings = with_moments(lambda sharding: sharding.with_memory_kind("pinned_host"))
        self._fresh = jax.jit(self._fresh_state, out_shardings=self._on_device, donate_argnums=0)
        self._apply = jax.jit(self._update, out_shardings=(self._on_device, replicated), donate_argnums=0)

    def start(self, params: Params) -> TrainState:
        """Return the state before the first step, from a copy of `params` on the mesh as float32."""
        # A copy, because `apply` takes its state's buffers: they must not be the caller's.
        placed = jax.tree.map(
            lambda leaf, sharding: jax.device_put(leaf.astype(jnp.float32), sharding, may_alias=False),
            params,
            self._on_device.params,
        )
        return self._store(self._fresh(placed))

    def apply(self, state: TrainState, sums: Sums) -> tuple[TrainState, Figures]:
        """Return the state after AdamW on the gradient sums / loss weight, clipped; the buffers of `state` are taken.

        If loss or gradient are not finite, or the loss has no weight, the state is bit for bit what it was.
        """
        new, figures = self._apply(self._fetch(state), sums)
        return self._store(new), figures

    def compile(self, state: TrainState, sums: Sums) -> Memory:
        """Compile `apply` and return what it needs; nothing is computed."""
        return Memory().at_least(self._apply.lower(self._fetch(state), sums).compile())

    def abstract_state(self) -> TrainState:
        """Return shape, dtype and sharding of each leaf of the state."""
        state: TrainState = jax.tree.map(
            lambda leaf, sharding: shape_of(leaf.shape, leaf.dtype, sharding), self._state_shapes, self.state_shardings
        )
        return state

    def _fetch(self, state: TrainState) -> TrainState:
        """The state as `apply` wants it, offloaded moments brought back."""
        return jax.device_put(state, self._on_device) if self._config.offload_optimizer else state

    def _store(self, state: TrainState) -> TrainState:
        return jax.device_put(state, self.state_shardings) if self._config.offload_optimizer else state

    def _fresh_state(self, params: Params) -> TrainState:
        return TrainState(step=jnp.zeros((), jnp.int32), params=params, opt_state=self._optimizer.init(params))

    def _update(self, state: TrainState, sums: Sums) -> tuple[TrainState, Figures]:
        weight = sums.output.loss.weight
        loss = sums.output.loss.total / weight
        grads = jax.tree.map(lambda leaf: leaf / weight, sums.grads)
        norm = optax.tree.norm(grads)
        is_finite = jnp.isfinite(norm) & jnp.isfinite(loss)
        grads = jax.tree.map(lambda leaf: leaf * jnp.minimum(1.0, self._config.max_grad_norm / norm), grads)
        updates, opt_state = self._optimizer.update(grads, state.opt_state, state.params)
        params: Any = optax.apply_updates(state.params, updates)
        moved = TrainState(step=state.step + 1, params=params, opt_state=opt_state)
        new: TrainState = jax.tree.map(lambda after, before: jnp.where(is_finite, after, before), moved, state)
        rate = learning_rate_at(self._config, state.step)
        return new, Figures(new.step, norm, rate, is_finite, sums.output)


@lru_cache(maxsize=8)
def update_programs(trained: Trained, config: LearnerConfig, mesh: Mesh) -> UpdatePrograms:
    """Return the programs of these arguments; the same ones for the same, so that nothing compiles twice."""
    return UpdatePrograms(trained, config, mesh)
