"""AGG rows on the learner's side: the schedule, and devices that share rows. Splits: tests/test_learner.py."""

import numpy as np
import pytest

from agentrl_jax.learner import LearnerConfig
from agentrl_jax.learner.config import learning_rate_at
from tests.learner.small import make_batch, make_learner


def test_agg_07_warm_up_is_not_taken_off_the_decay_twice():
    config = LearnerConfig(learning_rate=1e-3, warmup_steps=22, decay_steps=220)
    rates = np.array([learning_rate_at(config, step) for step in range(221)])
    assert rates[22] == np.float32(1e-3)
    assert (rates[:220] > 0).all()
    assert rates[220] == 0
    assert (np.diff(rates[:23]) > 0).all()
    assert (np.diff(rates[22:]) < 0).all()
    closed_form = 1e-3 * (1 + np.cos(np.pi * (np.arange(22, 221) - 22) / 198)) / 2
    np.testing.assert_allclose(rates[22:], closed_form, atol=1e-9)


@pytest.mark.slow
def test_agg_05_devices_that_share_rows_are_not_counted_twice():
    """Four devices, two by two with the same rows, give the figures of four with rows of their own."""
    packed = make_batch(rows=4)
    first, second = (make_learner(mesh).step(packed) for mesh in ("data=2,tensor=2", "data=4"))
    assert first.as_dict() == pytest.approx(second.as_dict(), rel=1e-5)
