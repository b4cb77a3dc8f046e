"""Published faults of log-probabilities: what the sampling temperature must not touch."""

from dataclasses import replace

import numpy as np
import pytest

from tests.learner.small import CONFIG, make_batch, make_learner


def test_log_03_the_temperature_divides_logits_and_nothing_else() -> None:
    batch = make_batch(3)
    cold, hot = (make_learner(config=replace(CONFIG, temperature=value)).validate(batch) for value in (0.5, 2.0))
    assert (cold.hits, cold.num_tokens) == (hot.hits, hot.num_tokens)
    assert cold.hits > 0
    assert cold.loss != pytest.approx(hot.loss, rel=1e-3)
    assert np.isfinite([cold.loss, hot.loss]).all()
