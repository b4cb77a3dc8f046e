"""AGG rows on the learner's side: the schedule. Splits and meshes: tests/test_learner.py."""

import numpy as np

from agentrl_jax.learner import LearnerConfig
from agentrl_jax.learner.config import learning_rate_at


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
