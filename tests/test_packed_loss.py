"""The loss of a packed batch: that of a loop over its trajectories, whatever its layout."""

import math
from functools import reduce

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agentrl_jax.algo.advantages import AdvantageConfig
from agentrl_jax.algo.aggregate import add_outputs
from agentrl_jax.algo.losses import LossConfig, make_loss
from agentrl_jax.algo.metrics import means
from agentrl_jax.batch import TokenBatch
from agentrl_jax.packing import PackedBatch, PackingConfig, build_batch
from tests.packed_groups import PLAIN, one_row, varied_groups


def toy_logprobs(table: jax.Array, tokens: TokenBatch) -> jax.Array:
    """log-probabilities that depend on a token, its position and the one before it in its segment."""
    before = jnp.concatenate([jnp.zeros_like(tokens.ids[:, :1]), tokens.ids[:, :-1]], axis=1)
    before = jnp.where(jnp.asarray(tokens.positions) > 0, before, 0)
    return -0.5 - 0.3 * jnp.square(jnp.sin(table[tokens.ids] + table[before] * jnp.cos(1.0 * tokens.positions)))


def loss_and_gradient(batch: PackedBatch, table: np.ndarray) -> tuple[float, np.ndarray, dict[str, float]]:
    """What a learner does: sums over micro-batches, one division by the global weight."""
    loss_fn = make_loss(LossConfig(clip_low=0.05, clip_high=0.05))

    @jax.jit
    def accumulate(table: jax.Array, tokens: TokenBatch) -> tuple:
        def objective(table: jax.Array) -> tuple:
            output = loss_fn(toy_logprobs(table, tokens), tokens)
            return output.loss.total / batch.loss_weight, output

        return jax.grad(objective, has_aux=True)(table)

    parts = [accumulate(jnp.asarray(table), tokens) for tokens in batch.micro_batches]
    outputs = [output for _, output in parts]
    assert sum(float(output.loss.weight) for output in outputs) == batch.loss_weight
    total = sum(float(output.loss.total) for output in outputs) / batch.loss_weight
    return total, np.sum([gradient for gradient, _ in parts], axis=0), means(reduce(add_outputs, outputs).metrics)


def test_loss_gradient_and_metrics_do_not_depend_on_the_layout() -> None:
    groups = varied_groups()
    table = np.random.default_rng(1).normal(size=64)
    layouts = [
        (groups, PackingConfig(row_tokens=(64,), rows_per_micro_batch=1)),
        (groups, PackingConfig(row_tokens=(1024,), rows_per_micro_batch=4)),
        (groups[::-1], PackingConfig(row_tokens=(50,), rows_per_micro_batch=3)),
    ]
    with jax.enable_x64(True):
        results = [
            loss_and_gradient(
                build_batch(some, advantages=AdvantageConfig(), packing=packing, learner_version=9), table
            )
            for some, packing in layouts
        ]
    loss, gradient, metrics = results[0]
    assert np.abs(gradient).max() > 1e-3
    assert 0 < metrics["clip_low_frac"] < 1
    for other in results[1:]:
        np.testing.assert_allclose(other[0], loss, rtol=1e-9)
        np.testing.assert_allclose(other[1], gradient, rtol=1e-9, atol=1e-12)
        assert other[2] == pytest.approx(metrics, rel=1e-9, nan_ok=True)


def test_loss_equals_a_loop_over_trajectories() -> None:
    groups = varied_groups(2)
    batch = build_batch(groups, advantages=PLAIN, packing=one_row(64), learner_version=9)
    table = np.random.default_rng(3).normal(size=64)
    total, weight = 0.0, 0
    for group in groups:
        rewards = [t.reward for t in group.trajectories if t.reward is not None]
        for trajectory in group.trajectories:
            if trajectory.reward is None or len(set(rewards)) < 2:
                continue
            advantage = trajectory.reward - sum(rewards) / len(rewards)
            for segment in trajectory.segments:
                for t in np.flatnonzero(segment.loss_mask):
                    angle = table[segment.ids[t]] + table[segment.ids[t - 1]] * math.cos(t)
                    ratio = math.exp(-0.5 - 0.3 * math.sin(angle) ** 2 - float(segment.behavior_logprobs[t]))
                    total += max(-advantage * ratio, -advantage * min(max(ratio, 0.95), 1.05))
                    weight += 1
    with jax.enable_x64(True):
        loss, _, _ = loss_and_gradient(batch, table)
    assert batch.loss_weight == weight
    np.testing.assert_allclose(loss, total / weight, rtol=1e-6)  # advantages travel as float32
