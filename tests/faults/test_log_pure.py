"""LOG rows on the side of the loss: log-probabilities that are missing, or not what the learner takes them for."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agentrl_jax.algo.advantages import AdvantageConfig
from agentrl_jax.algo.losses import LossConfig, make_loss
from agentrl_jax.algo.metrics import means
from agentrl_jax.algo.policy_metrics import mismatch_alarm
from agentrl_jax.batch import TokenBatch
from agentrl_jax.config import TrainConfig
from agentrl_jax.packing import PackingConfig, build_batch
from tests.algo.record_builders import make_group

PLAIN = AdvantageConfig(estimator="dr_grpo", task_normalisation="off")


def one_batch() -> TokenBatch:
    packing = PackingConfig(row_tokens=(64,), rows_per_micro_batch=1)
    (tokens,) = build_batch(
        [make_group([1.0, 0.0])], advantages=PLAIN, packing=packing, learner_version=0
    ).micro_batches
    return tokens


@pytest.mark.parametrize("value", [np.nan, -np.inf])
@pytest.mark.parametrize("name", ["grpo", "gspo", "cispo", "policy_gradient"])
def test_log_07_a_token_whose_log_probability_is_missing_is_masked_and_harmless(name: str, value: float) -> None:
    tokens = one_batch()
    loss = make_loss(LossConfig(name=name, aggregation="token_mean"))
    first = tuple(np.argwhere(tokens.loss_mask)[0])
    loss_mask, behavior = tokens.loss_mask.copy(), tokens.behavior_logprobs.copy()
    loss_mask[first], behavior[first] = False, value
    tokens = tokens._replace(loss_mask=loss_mask, behavior_logprobs=behavior)
    total, gradient = jax.value_and_grad(lambda x: loss(x, tokens).loss.total)(jnp.full(tokens.ids.shape, -0.4))
    assert np.isfinite(total)
    assert np.isfinite(gradient).all()
    assert gradient[first] == 0.0
    assert float(loss(jnp.full(tokens.ids.shape, -0.4), tokens).loss.weight) == loss_mask.sum()


@pytest.mark.parametrize(("engine_temperature", "is_alarming"), [(0.8, False), (1.0, True)])
def test_log_15_raw_log_probabilities_beside_processed_ones_raise_the_alarm(
    engine_temperature: float, is_alarming: bool
) -> None:
    """A learner at 0.8 compares with what engines recorded; processed and raw log-probabilities differ."""
    rng = np.random.default_rng(0)
    tokens = one_batch()
    logits = rng.normal(0.0, 2.0, (*tokens.ids.shape, 16))
    chosen = rng.integers(0, 16, tokens.ids.shape)[..., None]

    def logprobs(temperature: float) -> np.ndarray:
        scaled = logits / temperature
        normalised = scaled - np.log(np.exp(scaled).sum(axis=-1, keepdims=True))
        return np.take_along_axis(normalised, chosen, axis=-1)[..., 0].astype(np.float32)

    recorded = np.where(tokens.loss_mask, logprobs(engine_temperature), 0.0)
    output = make_loss(LossConfig())(jnp.asarray(logprobs(0.8)), tokens._replace(behavior_logprobs=recorded))
    figures = means(output.metrics) | {name: float(value) for name, value in output.maxima.items()}
    assert (mismatch_alarm(figures, TrainConfig().mismatch_alarm) is not None) == is_alarming
