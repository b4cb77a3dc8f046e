"""Published faults of reductions: means of means, local denominators, hidden factors."""

from operator import itemgetter

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agentrl_jax.algo.advantages import AdvantageConfig
from agentrl_jax.algo.aggregate import masked_sum
from agentrl_jax.algo.baselines import group_advantages
from agentrl_jax.algo.losses import LossConfig, LossFn, make_loss
from agentrl_jax.algo.surrogates import clipped_surrogate
from agentrl_jax.batch import LossOutput, TokenBatch, map_tokens
from agentrl_jax.packing import PackedBatch, PackingConfig, build_batch, pack_demonstrations
from tests.algo.record_builders import make_group, make_segment, make_turn

PLAIN = AdvantageConfig(estimator="dr_grpo", task_normalisation="off")


def demonstrations(*lengths: int, rows_per_micro_batch: int = 1) -> PackedBatch:
    """One row for each length; a row's ids are its number + 1, and all but the first are learnt."""
    pairs = []
    for number, length in enumerate(lengths):
        pairs.append((np.full(length + 1, number + 1, np.int32), np.arange(length + 1) > 0))
    packing = PackingConfig(row_tokens=(max(lengths) + 1,), rows_per_micro_batch=rows_per_micro_batch)
    return pack_demonstrations(pairs, packing)


def gradient(batch: PackedBatch, loss_fn: LossFn, num_ids: int = 64) -> np.ndarray:
    """d mean loss / d table[id], summed over micro-batches; each token's log-probability is table[id]."""

    def objective(table: jax.Array, tokens: TokenBatch) -> jax.Array:
        return loss_fn(table[tokens.ids], tokens).loss.total / batch.loss_weight

    table = jnp.linspace(-1.0, -0.4, num_ids)
    return np.sum([jax.grad(objective)(table, tokens) for tokens in batch.micro_batches], axis=0)


def test_agg_02_the_mean_is_over_tokens_not_over_micro_batches() -> None:
    batch = demonstrations(9, 1)
    assert len(batch.micro_batches) == 2
    loss_fn = make_loss(LossConfig(name="sft"))
    outputs = [loss_fn(-1.0 * jnp.asarray(tokens.ids), tokens).loss for tokens in batch.micro_batches]
    token_mean = sum(float(output.total) for output in outputs) / batch.loss_weight
    assert token_mean == pytest.approx((9 * 1 + 1 * 2) / 10)
    assert token_mean != pytest.approx((1 + 2) / 2)


def test_agg_03_shards_share_the_global_denominator() -> None:
    loss_fn = make_loss(LossConfig(name="sft"))
    one_device = demonstrations(90, 10, rows_per_micro_batch=2)
    (tokens,) = one_device.micro_batches
    shards = [map_tokens(itemgetter(slice(i, i + 1)), tokens) for i in range(2)]
    sharded = [gradient_of_shard(loss_fn, shard, one_device.loss_weight) for shard in shards]
    np.testing.assert_allclose(np.sum(sharded, axis=0), gradient(one_device, loss_fn), rtol=1e-6)
    np.testing.assert_allclose(gradient(one_device, loss_fn)[1:3], [-0.9, -0.1], rtol=1e-5)


def gradient_of_shard(loss_fn: LossFn, shard: TokenBatch, weight: float) -> np.ndarray:
    table = jnp.linspace(-1.0, -0.4, 64)
    return np.asarray(jax.grad(lambda x: loss_fn(x[shard.ids], shard).loss.total / weight)(table))


def test_agg_04_a_loss_of_ones_own_has_the_same_normaliser() -> None:
    def own_loss(logprobs: jax.Array, batch: TokenBatch) -> LossOutput:
        costs = clipped_surrogate(logprobs, batch.behavior_logprobs, batch.advantages)
        return LossOutput(loss=masked_sum(costs, batch.loss_mask & batch.has_signal), metrics={})

    groups = [make_group([1.0, 0.0], segments=[[make_segment(make_turn(2, 9))], [make_segment(make_turn(1, 2))]])]
    packing = PackingConfig(row_tokens=(16,), rows_per_micro_batch=1)
    batch = build_batch(groups, advantages=PLAIN, packing=packing, learner_version=0)
    expected = gradient(batch, make_loss(LossConfig()))
    assert np.abs(expected).max() > 0
    assert gradient(batch, own_loss).tolist() == expected.tolist()


def test_agg_06_the_gradient_norm_does_not_depend_on_the_number_of_micro_batches() -> None:
    batches = [demonstrations(7, 5, 3, 1, rows_per_micro_batch=rows) for rows in (4, 2, 1)]
    assert [len(batch.micro_batches) for batch in batches] == [1, 2, 3]  # three rows of eight: 8, 6 + 2, 4
    norms = [np.linalg.norm(gradient(batch, make_loss(LossConfig(name="sft")))) for batch in batches]
    np.testing.assert_allclose(norms, norms[0], rtol=1e-6)


def test_agg_20_a_rejected_sibling_neither_votes_nor_shifts_the_rest() -> None:
    """Ours has no single-member rule: a lone valid member has no baseline, and so no signal."""
    advantages, has_signal = group_advantages([100.0, 1.0], [False, True], [0, 0], estimator="dr_grpo")
    assert (advantages.tolist(), has_signal.tolist()) == ([0.0, 0.0], [False, False])
    three, _ = group_advantages([100.0, 1.0, 0.0], [False, True, True], [0] * 3, estimator="dr_grpo")
    assert three.tolist() == [0.0, 0.5, -0.5]
