"""MET rows on the learner's side: figures do not know over how many devices or micro-batches a step was spread."""

import numpy as np
import pytest

from tests.learner.small import make_batch, make_learner


@pytest.mark.slow
def test_met_02_and_met_12_figures_are_the_same_on_one_two_and_four_devices() -> None:
    packed = make_batch(rows=4)
    one, two, four = (make_learner(mesh).step(packed).as_dict() for mesh in ("1", "data=2", "data=4"))
    assert one == pytest.approx(two, rel=1e-5)
    assert one == pytest.approx(four, rel=1e-5)
    tokens = sum(int(np.sum(micro.loss_mask)) for micro in packed.micro_batches)
    assert packed.num_loss_tokens == tokens > 0
