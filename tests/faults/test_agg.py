"""Published faults of reductions: means of means, local denominators, hidden factors."""

from operator import itemgetter
from typing import get_args

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agentrl_jax.algo.advantages import AdvantageConfig
from agentrl_jax.algo.aggregate import Aggregation, masked_sum
from agentrl_jax.algo.baselines import group_advantages
from agentrl_jax.algo.corrections import CorrectionName
from agentrl_jax.algo.kl import KlEstimator
from agentrl_jax.algo.losses import LossConfig, LossFn, make_loss
from agentrl_jax.algo.surrogates import clipped_surrogate
from agentrl_jax.batch import LossOutput, TokenBatch, Totals, map_tokens
from agentrl_jax.errors import ConfigError
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


def one_row(logprobs: list[float], reference: list[float], loss_mask: list[bool]) -> TokenBatch:
    """A segment with a signal, sampled at `logprobs` with advantage 1; reference_logprobs beside it."""
    mask = np.array([loss_mask])
    shape = mask.shape
    return TokenBatch(
        ids=np.zeros(shape, np.int32),
        positions=np.arange(shape[1], dtype=np.int32)[None],
        segment_ids=np.ones(shape, np.int32),
        loss_mask=mask,
        has_signal=mask,
        behavior_logprobs=np.where(mask, np.array([logprobs], np.float32), 0),
        advantages=mask.astype(np.float32),
        version_lag=np.zeros(shape, np.int32),
        task_ids=np.zeros(shape, np.int32),
        sequence_tokens=np.where(mask, mask.sum(), 0).astype(np.int32),
        totals=Totals(*map(np.float32, (mask.sum(), mask.sum(), 1, 1))),
        reference_logprobs=np.array([reference], np.float32),
    )


PROBABILITIES, REFERENCE = np.log([0.5, 0.7, 0.9]).tolist(), np.log([0.4, 0.5, 0.6]).tolist()


@pytest.mark.parametrize("aggregation", ["sequence_mean_token_sum", "sequence_mean_token_mean", "constant_length"])
def test_agg_10_a_sequence_counts_once_wherever_its_segments_are(aggregation: Aggregation) -> None:
    """Counts come with each token, so that none can be missing: three segments in one row or in three shards."""
    segments = [make_segment(make_turn(2, 3)) for _ in range(3)]
    groups = [make_group([1.0, 0.0], segments=[segments, [make_segment(make_turn(1, 2))]])]
    length = {"constant_length": 4} if aggregation == "constant_length" else {}
    loss = make_loss(LossConfig(aggregation=aggregation, **length))
    found = []
    for row_tokens in (24, 8):
        packing = PackingConfig(row_tokens=(row_tokens,), rows_per_micro_batch=1)
        batch = build_batch(groups, advantages=PLAIN, packing=packing, learner_version=0)
        outputs = [loss(jnp.full(t.ids.shape, -0.5), t).loss for t in batch.micro_batches]
        found.append((len(outputs), *np.sum(outputs, axis=0)))
    (few, *whole), (many, *split) = found
    assert few < many
    np.testing.assert_allclose(split, whole, rtol=1e-6)
    assert whole[1] == pytest.approx(2.0)  # trajectories


def test_agg_11_metrics_are_scalars_without_a_gradient() -> None:
    tokens = one_row(PROBABILITIES, REFERENCE, [True] * 3)
    loss = make_loss(LossConfig(kl_coefficient=0.05))

    def added_up(logprobs: jax.Array) -> jax.Array:
        leaves = jax.tree.leaves(loss(logprobs, tokens).metrics)
        assert all(leaf.ndim == 0 for leaf in leaves)
        return sum(leaves)

    assert jax.grad(added_up)(jnp.array([PROBABILITIES]) - 0.1).tolist() == [[0.0] * 3]


@pytest.mark.parametrize("estimator", get_args(KlEstimator))
@pytest.mark.parametrize("aggregation", get_args(Aggregation))
def test_agg_13_every_enumerated_option_runs_or_is_refused(estimator: KlEstimator, aggregation: Aggregation) -> None:
    options = {"aggregation": aggregation, "kl_estimator": estimator, "kl_coefficient": 0.05}
    options |= {"constant_length": 3} if aggregation == "constant_length" else {}
    if estimator == "k1":
        with pytest.raises(ConfigError, match="k1 cannot be trained on"):
            LossConfig(**options)
        return
    for correction in get_args(CorrectionName):
        loss = make_loss(LossConfig(**options, correction=correction))
        output = loss(jnp.array([PROBABILITIES]), one_row(PROBABILITIES, REFERENCE, [True] * 3))
        assert np.isfinite(output.loss.total)


def test_agg_14_the_logged_kl_is_not_scaled_by_its_coefficient() -> None:
    tokens = one_row(PROBABILITIES, REFERENCE, [True] * 3)
    loss, metrics, *_ = make_loss(LossConfig(kl_coefficient=0.05))(jnp.array([PROBABILITIES]), tokens)
    r = np.array(REFERENCE) - np.array(PROBABILITIES)
    divergence = np.mean(np.exp(r) - 1 - r)
    assert float(metrics["reference_kl"].total / metrics["reference_kl"].weight) == pytest.approx(divergence, rel=1e-5)
    assert float(loss.total / loss.weight) == pytest.approx(-1.0 + 0.05 * divergence, rel=1e-5)


@pytest.mark.parametrize(
    ("name", "option", "advantage", "ratio", "bounded"),
    [
        ("grpo", {"clip_low": 0.3}, -1.0, 0.5, 0.7),
        ("grpo", {"clip_high": 0.3}, 1.0, 2.0, -1.3),
        ("grpo", {"dual_clip": 2.0}, -1.0, 10.0, 2.0),
        ("grpo", {"dual_clip": "off"}, -1.0, 10.0, 10.0),
        ("cispo", {"clip_high": 1.0}, 1.0, 10.0, -2.0),
        ("policy_gradient", {"correction_cap": 3.0, "correction": "tis"}, 1.0, 10.0, -3.0),
    ],
)
def test_agg_15_each_bound_is_the_one_that_the_loss_uses(
    name: str, option: dict[str, object], advantage: float, ratio: float, bounded: float
) -> None:
    """Of CISPO and of a corrected policy gradient, the slope: the loss itself is that times log π."""
    tokens = one_row([-4.0], [-4.0], [True])
    tokens = tokens._replace(advantages=np.full((1, 1), advantage, np.float32))
    loss = make_loss(LossConfig(name=name, **option))  # type: ignore[arg-type]
    logprobs = jnp.full((1, 1), np.log(ratio) - 4.0)
    found = loss(logprobs, tokens).loss.total
    if name != "grpo":
        found = jax.grad(lambda x: loss(x, tokens).loss.total)(logprobs).item()
    assert float(found) == pytest.approx(bounded, rel=1e-4)


def test_agg_15_bounds_reach_the_loss_and_cispo_keeps_ratios_from_0_to_5() -> None:
    settings = LossConfig(name="cispo").settings
    assert (1 - settings.clip_low, 1 + settings.clip_high) == (0.0, 5.0)
    tokens = one_row([-4.0, -4.0, -4.0], REFERENCE, [True] * 3)
    loss = make_loss(LossConfig(name="cispo"))
    slopes = jax.grad(lambda x: loss(x, tokens).loss.total)(jnp.log(jnp.array([[0.001, 1.0, 20.0]])) - 4.0)
    np.testing.assert_allclose(slopes, [[-0.001, -1.0, -5.0]], rtol=1e-4)


def test_agg_16_tokens_of_the_environment_have_no_kl() -> None:
    mask = [False, True, True]
    loss = make_loss(LossConfig(kl_coefficient=0.05))
    near, far = ([first, *REFERENCE[1:]] for first in (REFERENCE[0], -50.0))
    outputs = [loss(jnp.array([PROBABILITIES]), one_row(PROBABILITIES, values, mask)) for values in (near, far)]
    chex.assert_trees_all_equal(*outputs)
    assert float(outputs[0].metrics["reference_kl"].weight) == 2.0
