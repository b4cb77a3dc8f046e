"""Segments into rows and micro-batches in any way, and what a loss says about all of them together."""

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import jax
import numpy as np

from agentrl_jax.algo.losses import LossFn
from agentrl_jax.batch import LossOutput, TokenBatch, Totals, map_tokens
from tests.algo.loss_reference import TokenSegment

Place = tuple[int, int, slice]
"""Micro-batch, row, columns."""


def totals_of(segments: Sequence[TokenSegment]) -> Totals:
    def count(counted: list[TokenSegment]) -> tuple[int, int]:
        with_tokens = {segment.sequence for segment in counted if segment.mask.any()}
        return sum(int(segment.mask.sum()) for segment in counted), len(with_tokens)

    tokens, sequences = count(list(segments))
    signal_tokens, signal_sequences = count([segment for segment in segments if segment.has_signal])
    return Totals(*map(np.float64, (tokens, signal_tokens, sequences, signal_sequences)))


QUICK = {"xla_backend_optimization_level": 0}
"""Compiling is what takes the time: for programs that run a few times."""

NUM_MICRO_BATCHES, ROWS, ROW_TOKENS = 8, 2, 16
"""Of every layout, so that a loss is compiled once: what is not needed stays empty."""


def lay_out(
    segments: Sequence[TokenSegment],
    *,
    order: Sequence[int],
    row_tokens: int = ROW_TOKENS,
    rows: int = ROWS,
    garbage: float = 0.0,
    dtype: type = np.float64,
) -> tuple[np.ndarray, TokenBatch, list[Place]]:
    """Log-probabilities and fields [NUM_MICRO_BATCHES, ROWS, ROW_TOKENS], and where each segment is.

    Segments go in `order` into the first row that has room among its first `row_tokens`; of each micro-batch the
    first `rows` rows are used. Every float off the mask is `garbage`.
    """
    used: list[int] = []
    placed: dict[int, tuple[int, int]] = {}
    for i in order:
        length = len(segments[i].mask)
        row = next((r for r, end in enumerate(used) if end + length <= row_tokens), len(used))
        used += [0] * (row == len(used))
        placed[i] = (row, used[row])
        used[row] += length
    shape = (NUM_MICRO_BATCHES, ROWS, ROW_TOKENS)
    floats = {name: np.full(shape, garbage, dtype) for name in ("logprobs", "behavior", "reference", "advantages")}
    ints = {name: np.zeros(shape, np.int32) for name in ("segment_ids", "positions", "lag", "sequence_tokens")}
    bools = {name: np.zeros(shape, np.bool_) for name in ("mask", "has_signal")}
    tokens_of = {s.sequence: sum(int(t.mask.sum()) for t in segments if t.sequence == s.sequence) for s in segments}
    places: list[Place] = []
    for i, segment in enumerate(segments):
        (row, start), length = placed[i], len(segment.mask)
        at = (row // rows, row % rows, slice(start, start + length))
        for name, array in floats.items():
            array[at] = np.where(segment.mask, getattr(segment, name), garbage)
        ints["segment_ids"][at] = ints["segment_ids"][at[:2]].max() + 1
        ints["positions"][at] = np.arange(length)
        ints["lag"][at] = np.where(segment.mask, segment.lag, 0)
        ints["sequence_tokens"][at] = np.where(segment.mask, tokens_of[segment.sequence], 0)
        bools["mask"][at] = segment.mask
        bools["has_signal"][at] = segment.mask & segment.has_signal
        places.append(at)
    batch = TokenBatch(
        ids=np.zeros(shape, np.int32),
        positions=ints["positions"],
        segment_ids=ints["segment_ids"],
        loss_mask=bools["mask"],
        has_signal=bools["has_signal"],
        behavior_logprobs=floats["behavior"],
        advantages=floats["advantages"],
        version_lag=ints["lag"],
        task_ids=np.zeros(shape, np.int32),
        sequence_tokens=ints["sequence_tokens"],
        totals=Totals(*(np.full(NUM_MICRO_BATCHES, total, dtype) for total in totals_of(segments))),
        reference_logprobs=floats["reference"],
    )
    return floats["logprobs"], batch, places


def one_micro_batch(segments: Sequence[TokenSegment], **layout: Any) -> tuple[np.ndarray, TokenBatch]:
    """(log-probabilities, batch) of all rows of a layout together, in float32."""
    logprobs, batch, _ = lay_out(segments, order=range(len(segments)), dtype=np.float32, **layout)
    batch = map_tokens(lambda values: values.reshape(-1, ROW_TOKENS), batch)
    return logprobs.reshape(-1, ROW_TOKENS), batch._replace(totals=Totals(*(total[0] for total in batch.totals)))


@lru_cache
def _compiled(loss: LossFn) -> Callable[..., tuple[LossOutput, jax.Array]]:
    def objective(logprobs: jax.Array, batch: TokenBatch) -> tuple[jax.Array, LossOutput]:
        output = loss(logprobs, batch)
        return output.loss.total, output

    def evaluate_all(logprobs: jax.Array, batch: TokenBatch) -> tuple[LossOutput, jax.Array]:
        (_, outputs), gradients = jax.vmap(jax.value_and_grad(objective, has_aux=True))(logprobs, batch)
        added = jax.tree.map(lambda leaf: leaf.sum(axis=0), outputs._replace(maxima={}))
        return added._replace(maxima=jax.tree.map(lambda leaf: leaf.max(axis=0), outputs.maxima)), gradients

    return jax.jit(evaluate_all, compiler_options=QUICK)


def evaluate(
    loss: LossFn, logprobs: np.ndarray, batch: TokenBatch, places: Sequence[Place]
) -> tuple[LossOutput, list[np.ndarray]]:
    """The output of all micro-batches together, and the gradient of their total at each segment's tokens."""
    output, gradient = jax.device_get(_compiled(loss)(logprobs, batch))
    at_tokens = [gradient[place] for place in places]
    elsewhere = gradient.copy()
    for place in places:
        elsewhere[place] = 0.0
    assert not elsewhere.any()
    return output, at_tokens
