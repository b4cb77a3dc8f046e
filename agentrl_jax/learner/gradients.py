"""The first of the learner's two programs: gradients of the loss total, added up over micro-batches.

Nothing is divided here, so that it does not matter how a batch is cut into micro-batches, rows and devices.
"""

from functools import lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jaxtyping import Array, Float

from agentrl_jax.algo.aggregate import add_outputs, masked_sum, no_output
from agentrl_jax.algo.losses import LossFn
from agentrl_jax.batch import LossOutput, TokenBatch
from agentrl_jax.learner.config import ComputeDType, LearnerConfig
from agentrl_jax.models.config import ModelConfig
from agentrl_jax.models.decoder import head_matrix, hidden_states
from agentrl_jax.models.logprobs import token_logprobs
from agentrl_jax.models.params import Params, build_tree
from agentrl_jax.sharding import named_sharding


class Sums(NamedTuple):
    """What micro-batches add up to: gradients of the loss total, and the loss's sums and weights."""

    grads: Params
    output: LossOutput


class ForwardConfig(NamedTuple):
    """Those settings of the learner that decide about log-probabilities and gradients."""

    temperature: float
    banned_ids: tuple[int, ...]
    logprob_chunk: int
    compute_dtype: ComputeDType
    remat: bool


class GradientPrograms:
    """`accumulate` and `logprobs`, compiled. Call them under `jax.set_mesh(mesh)`."""

    def __init__(self, model: ModelConfig, config: ForwardConfig, loss: LossFn, mesh: Mesh) -> None:
        self._model, self._config, self._loss = model, config, loss
        is_cpu = mesh.devices.flat[0].platform == "cpu"
        dtype = ("float32" if is_cpu else "bfloat16") if config.compute_dtype == "auto" else config.compute_dtype
        self._dtype = jnp.dtype(dtype)
        self.num_compiles = 0

        replicated = named_sharding(mesh, (), ())
        shardings = build_tree(model, lambda spec: named_sharding(mesh, spec.axes, spec.shape))
        # The loss's own metrics are not known yet: one sharding stands for all of them.
        self._sums_shardings: Any = Sums(shardings, replicated)  # type: ignore[arg-type]
        self._param_shapes = build_tree(model, lambda spec: shape_of(spec.shape, jnp.float32))
        self._make_zeros: Any = None
        self._accumulate = jax.jit(self._add, out_shardings=self._sums_shardings, donate_argnums=1)
        self._logprobs = jax.jit(self._forward_only, out_shardings=replicated)

    def zeros(self, batch: TokenBatch) -> Sums:
        """Return the sums of no micro-batch; `batch` shows what the loss reports."""
        if self._make_zeros is None:
            _, output = jax.eval_shape(self._total, self._param_shapes, batch)

            def make() -> Sums:
                self.num_compiles += 1
                grads: Params = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), self._param_shapes)
                return Sums(grads=grads, output=no_output(output))

            self._make_zeros = jax.jit(make, out_shardings=self._sums_shardings)
        zeros: Sums = self._make_zeros()
        return zeros

    def accumulate(self, params: Params, sums: Sums, batch: TokenBatch) -> Sums:
        """Return `sums` with those of `batch` added; the buffers of `sums` are taken."""
        total: Sums = self._accumulate(params, sums, batch)
        return total

    def logprobs(self, params: Params, batch: TokenBatch) -> Float[Array, "B T"]:
        """Return the log-probability of each token, on every device."""
        logprobs: Array = self._logprobs(params, batch)
        return logprobs

    def _forward(self, params: Params, batch: TokenBatch) -> tuple[Float[Array, "B T"], Float[Array, "B T"]]:
        where = (batch.ids, batch.positions, batch.segment_ids)
        hidden = hidden_states(self._model, params, *where, dtype=self._dtype, remat=self._config.remat)
        return token_logprobs(
            hidden,
            head_matrix(params),
            *where,
            temperature=self._config.temperature,
            chunk_tokens=self._config.logprob_chunk,
            banned_ids=self._config.banned_ids,
        )

    def _forward_only(self, params: Params, batch: TokenBatch) -> Float[Array, "B T"]:
        self.num_compiles += 1  # runs while JAX traces: once for each compiled program
        return self._forward(params, batch)[0]

    def _total(self, params: Params, batch: TokenBatch) -> tuple[Float[Array, ""], LossOutput]:
        logprobs, entropy = self._forward(params, batch)
        output = self._loss(logprobs, batch)
        metrics = output.metrics | {"entropy": masked_sum(entropy, batch.loss_mask)}
        return output.loss.total, output._replace(metrics=metrics)

    def _add(self, params: Params, sums: Sums, batch: TokenBatch) -> Sums:
        self.num_compiles += 1
        (_, output), grads = jax.value_and_grad(self._total, has_aux=True)(params, batch)
        total: Params = jax.tree.map(jnp.add, sums.grads, grads)
        return Sums(grads=total, output=add_outputs(sums.output, output))


def shape_of(shape: tuple[int, ...], dtype: Any, sharding: Any = None) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)  # type: ignore[no-untyped-call]


@lru_cache(maxsize=8)
def _compile(model: ModelConfig, config: ForwardConfig, loss: LossFn, mesh: Mesh) -> GradientPrograms:
    return GradientPrograms(model, config, loss, mesh)


def gradient_programs(model: ModelConfig, config: LearnerConfig, loss: LossFn, mesh: Mesh) -> GradientPrograms:
    """Return the programs of these arguments; the same ones for the same, so that nothing compiles twice."""
    forward = ForwardConfig(
        config.temperature, config.banned_ids, config.logprob_chunk, config.compute_dtype, config.remat
    )
    return _compile(model, forward, loss, mesh)
