"""What `train_step` measures with: models, batches and stopwatches."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from agentrl_jax.algo.losses import LossConfig, make_loss
from agentrl_jax.batch import map_tokens
from agentrl_jax.learner import Learner, LearnerConfig, Memory
from agentrl_jax.models.config import ModelConfig
from agentrl_jax.models.logprobs import token_logprobs
from agentrl_jax.models.params import init_params, num_params
from agentrl_jax.packing import PackedBatch, PackingConfig, pack_demonstrations
from agentrl_jax.sharding import make_mesh, parse_mesh
from agentrl_jax.types import Bools, Ids

SMALL = ModelConfig(vocab_size=512, width=128, num_layers=4, num_heads=4, num_kv_heads=4, head_dim=32, mlp_width=512)
"""4 layers, width 128, MLP 512, vocabulary 512: the case that has bounds."""

Demonstrations = list[tuple[Ids, Bools]]


@dataclass(slots=True)
class Spent:
    """Seconds of all of the process's threads, and by the clock."""

    cpu_s: float = 0.0
    wall_s: float = 0.0


@contextmanager
def stopwatch() -> Iterator[Spent]:
    """Measure the block; on a busy machine its CPU-seconds say more than the clock."""
    spent = Spent()
    cpu, wall = time.process_time(), time.perf_counter()
    try:
        yield spent
    finally:
        spent.cpu_s, spent.wall_s = time.process_time() - cpu, time.perf_counter() - wall


def make_learner(model: ModelConfig, *, mesh: str = "1") -> Learner:
    """A fresh learner of a supervised step, with programs of its own: nothing is shared with an earlier one."""
    loss = make_loss(LossConfig(name="sft"))
    own = lambda logprobs, batch: loss(logprobs, batch)  # noqa: E731 - a function object that no other learner has
    return Learner(model, LearnerConfig(), own, make_mesh(parse_mesh(mesh)), init_params(model, 0))


def demonstrations(lengths: list[int], vocab_size: int) -> Demonstrations:
    """Random ids of these lengths, all but the first of each to be learnt."""
    rng = np.random.default_rng(0)
    return [(rng.integers(0, vocab_size, size).astype(np.int32), np.arange(size) > 0) for size in lengths]


def full_batch(model: ModelConfig, *, num: int, length: int, rows: int) -> PackedBatch:
    """`num` sequences of `length` tokens, one to a row."""
    packing = PackingConfig(row_tokens=(length,), rows_per_micro_batch=rows)
    return pack_demonstrations(demonstrations([length] * num, model.vocab_size), packing)


def ragged_lengths(num: int, longest: int) -> list[int]:
    """Lengths of multi-turn episodes with a mean of 35 % of the longest: most are short, a few are cut at the limit."""
    rng = np.random.default_rng(1)
    drawn = rng.lognormal(0.0, 0.7, num)
    low, high = 0.0, float(longest)
    for _ in range(50):  # the scale at which the mean of the clipped lengths is right
        middle = (low + high) / 2
        is_below = np.clip(drawn * middle, 8, longest).mean() < 0.35 * longest
        low, high = (middle, high) if is_below else (low, middle)
    return [int(size) for size in np.clip(drawn * low, 8, longest).round()]


def padded_batch(model: ModelConfig, lengths: list[int], *, longest: int, rows: int) -> PackedBatch:
    """One sequence to a row, as without packing: every row is as long as the longest."""
    all_of_them = demonstrations(lengths, model.vocab_size)
    alone = PackingConfig(row_tokens=(longest,), rows_per_micro_batch=1)
    single = [pack_demonstrations([one], alone).micro_batches[0] for one in all_of_them]
    packed = pack_demonstrations(all_of_them, alone)
    totals = packed.micro_batches[0].totals
    micro_batches = tuple(
        map_tokens(lambda *parts: np.concatenate(parts), *single[first : first + rows])._replace(totals=totals)
        for first in range(0, len(single), rows)
    )
    efficiency = packed.num_tokens / (len(lengths) * longest)
    return replace(packed, micro_batches=micro_batches, efficiency=efficiency)


def step_flops(model: ModelConfig, *, num_tokens: int, length: int) -> float:
    """Useful operations of a step: 6 per parameter and token, and causal attention's two products, three times over.

    Nothing that is computed again counts.
    """
    attention = 2 * 2 * model.num_heads * model.head_dim * length / 2 * model.num_layers
    return num_tokens * (6.0 * num_params(model) + 3.0 * attention)


def matmul_gflops_per_cpu_s() -> float:
    """This machine's own rate on one large float32 product."""
    first, second = jnp.ones((2048, 1024)), jnp.ones((1024, 2048))
    product = jax.jit(jnp.matmul)
    jax.block_until_ready(product(first, second))  # type: ignore[no-untyped-call]
    with stopwatch() as spent:
        for _ in range(8):
            jax.block_until_ready(product(first, second))  # type: ignore[no-untyped-call]
    return 8 * 2 * 2048 * 1024 * 2048 / spent.cpu_s / 1e9


def head_temp_bytes(*, chunk_tokens: int, vocab_size: int = 32_000, num_tokens: int = 4096, width: int = 256) -> int:
    """Temporary memory of log-probabilities and their gradient; a chunk of all tokens holds all logits at once."""
    row = _shape((1, num_tokens), jnp.int32)

    def total(
        hidden: jax.Array, head: jax.Array, ids: jax.Array, positions: jax.Array, segments: jax.Array
    ) -> jax.Array:
        logprobs, _ = token_logprobs(hidden, head, ids, positions, segments, temperature=1.0, chunk_tokens=chunk_tokens)
        return logprobs.sum()

    hidden, head = _shape((1, num_tokens, width), jnp.float32), _shape((width, vocab_size), jnp.float32)
    compiled = jax.jit(jax.grad(total, argnums=(0, 1))).lower(hidden, head, row, row, row).compile()
    return Memory().at_least(compiled).temporary


def _shape(shape: tuple[int, ...], dtype: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)  # type: ignore[no-untyped-call]


def run_step(learner: Learner, batch: PackedBatch) -> Callable[[], None]:
    """A step as a function of nothing."""

    def step() -> None:
        if not learner.step(batch).is_applied:
            raise RuntimeError("a measured step was not applied")

    return step
