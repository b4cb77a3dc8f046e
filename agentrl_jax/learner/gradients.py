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
from agentrl_jax.batch import LossOutput, TokenBatch, Weighted
from agentrl_jax.learner.compiles import Memory
from agentrl_jax.learner.config import ComputeDType, LearnerConfig
from agentrl_jax.learner.trained import Trained, param_shardings
from agentrl_jax.models.attention import AttentionChoice, plan_attention
from agentrl_jax.models.decoder import head_matrix, hidden_states
from agentrl_jax.models.hits import token_hits
from agentrl_jax.models.logprobs import token_logprobs
from agentrl_jax.models.params import Params
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
    attention: AttentionChoice


class GradientPrograms:
    """`accumulate`, `logprobs` and what goes with them, compiled. Call them under `jax.set_mesh(mesh)`.

    trained, frozen: as in `Trained.whole`; frozen is {} unless adapters are trained. Raises ConfigError for an
    attention backend that cannot run on the mesh.
    """

    def __init__(self, trained: Trained, config: ForwardConfig, loss: LossFn, mesh: Mesh) -> None:
        self._trained, self._config, self._loss = trained, config, loss
        is_cpu = mesh.devices.flat[0].platform == "cpu"
        dtype = ("float32" if is_cpu else "bfloat16") if config.compute_dtype == "auto" else config.compute_dtype
        self.dtype = jnp.dtype(dtype)
        self.attention = plan_attention(
            config.attention, mesh.devices.flat[0], head_dim=trained.model.head_dim, dtype=self.dtype
        )

        replicated = named_sharding(mesh, (), ())
        # The loss's own metrics are not known yet: one sharding stands for all of them.
        self._sums_shardings: Any = Sums(trained.shardings(mesh), replicated)  # type: ignore[arg-type]
        self._make_zeros: Any = None
        by_rows = named_sharding(mesh, ("rows", None), (mesh.shape["data"] * mesh.shape["fsdp"], 1))
        self._accumulate = jax.jit(self._add, out_shardings=(self._sums_shardings, by_rows), donate_argnums=2)
        self._logprobs = jax.jit(self._forward_only, out_shardings=replicated)
        self._validate = jax.jit(self._count_hits, out_shardings=replicated)
        self._reference = jax.jit(self._forward_frozen, out_shardings=by_rows)
        self._merge = jax.jit(trained.merged, out_shardings=param_shardings(trained.model, mesh))

    def zeros(self, trained: Params, frozen: Params, batch: TokenBatch) -> Sums:
        """Return the sums of no micro-batch; `batch` shows what the loss reports."""
        if self._make_zeros is None:
            _, (output, _) = jax.eval_shape(self._total, trained, frozen, batch)
            shapes = self._trained.shapes()

            def make() -> Sums:
                grads: Params = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
                return Sums(grads=grads, output=no_output(output))

            self._make_zeros = jax.jit(make, out_shardings=self._sums_shardings)
        zeros: Sums = self._make_zeros()
        return zeros

    def accumulate(
        self, trained: Params, frozen: Params, sums: Sums, batch: TokenBatch
    ) -> tuple[Sums, Float[Array, "B T"]]:
        """Return `sums` with those of `batch` added, and the log-probabilities that they come from, split over devices
        as the rows are; the buffers of `sums` are taken."""
        total: tuple[Sums, Array] = self._accumulate(trained, frozen, sums, batch)
        return total

    def logprobs(self, trained: Params, frozen: Params, batch: TokenBatch) -> Float[Array, "B T"]:
        """Return the log-probability of each token, on every device."""
        logprobs: Array = self._logprobs(trained, frozen, batch)
        return logprobs

    def validate(self, trained: Params, frozen: Params, batch: TokenBatch) -> tuple[Weighted, Weighted]:
        """Return (−log π, tokens that are the likeliest), each summed over loss_mask."""
        sums: tuple[Weighted, Weighted] = self._validate(trained, frozen, batch)
        return sums

    def with_reference(self, reference: Params, batch: TokenBatch) -> TokenBatch:
        """Return `batch` with reference_logprobs of the params `reference`, split over devices as its rows are."""
        return batch._replace(reference_logprobs=self._reference(reference, batch))

    def merge(self, trained: Params, frozen: Params) -> Params:
        """Return whole float32 params, the adapters merged into them."""
        params: Params = self._merge(trained, frozen)
        return params

    def compile(
        self, trained: Params, frozen: Params, batch: TokenBatch, reference: Params | None
    ) -> tuple[Sums, Memory]:
        """Compile what a step on micro-batches like `batch` calls; return the sums of none of them, and its needs."""
        memory = Memory()
        if reference is not None:
            memory = memory.at_least(self._reference.lower(reference, batch).compile())
            # Of the same shape, dtype and sharding; nothing is computed from it.
            batch = batch._replace(reference_logprobs=batch.behavior_logprobs)
        sums = self.zeros(trained, frozen, batch)
        memory = memory.at_least(self._accumulate.lower(trained, frozen, sums, batch).compile())
        if self._trained.lora is not None:
            memory = memory.at_least(self._merge.lower(trained, frozen).compile())
        return sums, memory

    def _hidden(self, params: Params, batch: TokenBatch) -> Float[Array, "B T D"]:
        return hidden_states(
            self._trained.model,
            params,
            batch.ids,
            batch.positions,
            batch.segment_ids,
            dtype=self.dtype,
            remat=self._config.remat,
            attend=self.attention.attend,
        )

    def _score(
        self, hidden: Float[Array, "B T D"], params: Params, batch: TokenBatch
    ) -> tuple[Float[Array, "B T"], Float[Array, "B T"]]:
        return token_logprobs(
            hidden,
            head_matrix(params),
            batch.ids,
            batch.positions,
            batch.segment_ids,
            temperature=self._config.temperature,
            chunk_tokens=self._config.logprob_chunk,
            banned_ids=self._config.banned_ids,
        )

    def _forward(self, params: Params, batch: TokenBatch) -> tuple[Float[Array, "B T"], Float[Array, "B T"]]:
        return self._score(self._hidden(params, batch), params, batch)

    def _forward_only(self, trained: Params, frozen: Params, batch: TokenBatch) -> Float[Array, "B T"]:
        return self._forward(self._trained.whole(trained, frozen), batch)[0]

    def _count_hits(self, trained: Params, frozen: Params, batch: TokenBatch) -> tuple[Weighted, Weighted]:
        params = self._trained.whole(trained, frozen)
        hidden = self._hidden(params, batch)
        logprobs, _ = self._score(hidden, params, batch)
        hits = token_hits(
            hidden,
            head_matrix(params),
            batch.ids,
            batch.positions,
            batch.segment_ids,
            chunk_tokens=self._config.logprob_chunk,
            banned_ids=self._config.banned_ids,
        )
        return masked_sum(-logprobs, batch.loss_mask), masked_sum(hits.astype(jnp.float32), batch.loss_mask)

    def _forward_frozen(self, params: Params, batch: TokenBatch) -> Float[Array, "B T"]:
        return self._forward(params, batch)[0]

    def _total(
        self, trained: Params, frozen: Params, batch: TokenBatch
    ) -> tuple[Float[Array, ""], tuple[LossOutput, Float[Array, "B T"]]]:
        logprobs, entropy = self._forward(self._trained.whole(trained, frozen), batch)
        output = self._loss(logprobs, batch)
        metrics = output.metrics | {"entropy": masked_sum(entropy, batch.loss_mask)}
        return output.loss.total, (output._replace(metrics=metrics), logprobs)

    def _add(self, trained: Params, frozen: Params, sums: Sums, batch: TokenBatch) -> tuple[Sums, Float[Array, "B T"]]:
        (_, (output, logprobs)), grads = jax.value_and_grad(self._total, has_aux=True)(trained, frozen, batch)
        total: Params = jax.tree.map(jnp.add, sums.grads, grads)
        return Sums(grads=total, output=add_outputs(sums.output, output)), logprobs


@lru_cache(maxsize=8)
def _compile(trained: Trained, config: ForwardConfig, loss: LossFn, mesh: Mesh) -> GradientPrograms:
    return GradientPrograms(trained, config, loss, mesh)


def gradient_programs(trained: Trained, config: LearnerConfig, loss: LossFn, mesh: Mesh) -> GradientPrograms:
    """Return the programs of these arguments; the same ones for the same, so that nothing compiles twice."""
    forward = ForwardConfig(
        config.temperature,
        config.banned_ids,
        config.logprob_chunk,
        config.compute_dtype,
        config.remat,
        config.attention,
    )
    return _compile(trained, forward, loss, mesh)
