"""HNG rows on the learner's side: devices that have nothing to learn from take part in every step."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from agentrl_jax.learner import Learner
from agentrl_jax.packing import PackedBatch
from tests.learner.small import flat, make_batch, make_learner


def without_tokens(packed: PackedBatch, rows: slice) -> PackedBatch:
    """`packed` with nothing to train in `rows` of each micro-batch."""
    micro_batches = []
    for batch in packed.micro_batches:
        mask = np.array(batch.loss_mask)
        mask[rows] = False
        micro_batches.append(batch._replace(loss_mask=mask))
    count = sum(int(batch.loss_mask.sum()) for batch in micro_batches)
    assert 0 < count < packed.num_loss_tokens
    changes: dict[str, Any] = {"loss_weight": float(count), "num_loss_tokens": count}
    return replace(packed, micro_batches=tuple(micro_batches), **changes)


def train(learner: Learner) -> tuple[list[float], Any]:
    full = make_batch(0, rows=4)
    batches = [full, without_tokens(full, slice(2, 4)), without_tokens(full, slice(0, 2)), make_batch(1, rows=4)]
    losses = [learner.step(packed).loss for packed in batches[:1]]
    num_compiles = learner.num_compiles
    losses += [learner.step(packed).loss for packed in batches[1:]]
    # One program for all: whatever is masked, and however many micro-batches, each device meets the same collectives.
    assert learner.num_compiles == num_compiles
    return losses, flat(learner.params)


@pytest.mark.slow
def test_hng_15_a_device_whose_rows_are_all_masked_takes_part() -> None:
    (losses, params), (expected, reference) = (train(make_learner(mesh)) for mesh in ("2", "1"))
    np.testing.assert_allclose(losses, expected, atol=1e-5)
    np.testing.assert_allclose(params, reference, atol=1e-5)
