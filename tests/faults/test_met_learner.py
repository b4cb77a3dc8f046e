"""MET rows on the learner's side: figures do not know over how many devices or micro-batches a step was spread."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agentrl_jax.algo.aggregate import masked_sum
from agentrl_jax.batch import LossOutput, TokenBatch, Weighted
from tests.learner.small import make_batch, make_learner


@pytest.mark.slow
def test_met_02_figures_are_the_same_on_one_two_and_four_devices() -> None:
    packed = make_batch(rows=4)
    one, two, four = (make_learner(mesh).step(packed).as_dict() for mesh in ("1", "data=2", "data=4"))
    assert one == pytest.approx(two, rel=1e-5)
    assert one == pytest.approx(four, rel=1e-5)


def counting_loss(logprobs: jax.Array, batch: TokenBatch) -> LossOutput:
    """Reports how many tokens it has seen in a micro-batch."""
    seen = jnp.sum(batch.loss_mask, dtype=jnp.float32)
    return LossOutput(loss=masked_sum(-logprobs, batch.loss_mask), metrics={"seen": Weighted(seen, jnp.ones(()))})


@pytest.mark.slow
@pytest.mark.parametrize("mesh", ["tensor=2", "data=2,tensor=2"])
def test_met_12_each_token_is_counted_once_however_many_devices_hold_it(mesh: str) -> None:
    packed = make_batch(rows=4)
    tokens = sum(int(np.sum(micro.loss_mask)) for micro in packed.micro_batches)
    assert packed.num_loss_tokens == tokens > 0
    metrics = make_learner(mesh, loss=counting_loss).step(packed).metrics
    assert metrics["seen"] * len(packed.micro_batches) == tokens
    assert make_learner(mesh).validate(packed).num_tokens == tokens
