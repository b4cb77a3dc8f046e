"""AGG and ADV rows on the learner's side: how a batch is cut, the schedule, and devices that share rows."""

import gc

import jax
import numpy as np
import pytest

from agentrl_jax.algo.advantages import AdvantageConfig
from agentrl_jax.algo.aggregate import masked_sum
from agentrl_jax.batch import LossOutput
from agentrl_jax.learner import LearnerConfig
from agentrl_jax.learner.config import learning_rate_at
from agentrl_jax.packing import PackedBatch, PackingConfig, build_batch, pack_demonstrations
from tests.algo.record_builders import make_group, make_segment, make_turn
from tests.learner.small import make_batch, make_learner, on_host, same_bits


def of_lengths(*lengths: int, rows: int, row_tokens: int = 10) -> PackedBatch:
    """Segments of which all but the first token are learnt, `rows` to a micro-batch."""
    rng = np.random.default_rng(0)
    segments = [(rng.integers(0, 32, n + 1).astype(np.int32), np.arange(n + 1) > 0) for n in lengths]
    return pack_demonstrations(segments, PackingConfig(row_tokens=(row_tokens,), rows_per_micro_batch=rows))


def test_agg_02_a_step_takes_the_mean_over_tokens_not_over_micro_batches() -> None:
    batch, learner = of_lengths(9, 1, rows=1), make_learner()
    costs = [-learner.logprobs(micro)[micro.loss_mask] for micro in batch.micro_batches]
    assert sorted(len(values) for values in costs) == [1, 9]
    metrics = learner.step(batch)
    assert metrics.loss == pytest.approx(np.concatenate(costs).mean(), rel=1e-5)
    assert metrics.loss != pytest.approx(np.mean([values.mean() for values in costs]), rel=1e-2)


@pytest.mark.slow
def test_agg_03_devices_share_the_global_denominator() -> None:
    """One device has 90 tokens to learn from, the other has 10."""
    batch = of_lengths(90, 10, rows=2, row_tokens=91)
    one, two = (make_learner(mesh).step(batch) for mesh in ("1", "data=2"))
    assert two.loss == pytest.approx(one.loss, rel=1e-5)
    assert two.grad_norm == pytest.approx(one.grad_norm, rel=1e-5)


def test_agg_04_a_loss_of_ones_own_is_divided_as_ours_is() -> None:
    def own_loss(logprobs, batch):
        return LossOutput(loss=masked_sum(-logprobs, batch.loss_mask), metrics={})

    batch = of_lengths(9, 1, 5, rows=1)
    ours, own = make_learner().step(batch), make_learner(loss=own_loss).step(batch)
    assert (own.loss, own.grad_norm) == (ours.loss, ours.grad_norm)


def test_agg_06_the_gradient_norm_of_a_step_does_not_depend_on_its_micro_batches() -> None:
    batches = [of_lengths(9, 1, 7, 5, rows=rows) for rows in (4, 2, 1)]
    assert [len(batch.micro_batches) for batch in batches] == [1, 2, 3]
    learners = [make_learner() for _ in batches]
    norms = [learner.step(batch).grad_norm for learner, batch in zip(learners, batches, strict=True)]
    np.testing.assert_allclose(norms, norms[0], rtol=1e-5)
    for learner in learners[1:]:
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), learner.params, learners[0].params)


def test_agg_11_a_step_keeps_nothing_of_its_micro_batches_but_their_scores() -> None:
    learner, held = make_learner(), {}
    for rows in (8, 1):
        batch = of_lengths(*[9] * 8, rows=rows)
        for _ in range(2):
            learner.step(batch)
        gc.collect()
        held[len(batch.micro_batches)] = sum(array.nbytes for array in jax.live_arrays())
        assert sum(scores.logprobs.nbytes for scores in learner.scores) == 8 * 10 * 4
    assert held[8] == held[1]


def test_adv_11_a_batch_without_trainable_tokens_is_a_skipped_step_that_changes_nothing() -> None:
    learner = make_learner()
    learner.step(make_batch())
    before = on_host(learner.state)
    masked = make_segment(make_turn(2, 2, masked=[0, 1]))
    groups = [make_group([1.0, 0.0], segments=[[masked], [masked]])]
    plain, packing = AdvantageConfig(task_normalisation="off"), PackingConfig(row_tokens=(10,), rows_per_micro_batch=1)
    batch = build_batch(groups, advantages=plain, packing=packing, learner_version=0)
    assert (len(batch.micro_batches), batch.num_loss_tokens) == (1, 0)
    metrics = learner.step(batch)
    assert (metrics.outcome, metrics.is_applied, metrics.step) == ("zero_weight", False, 1)
    assert np.isnan(metrics.loss)
    assert same_bits(learner.state, before)  # the count of the optimiser's updates included
    assert learner.step(make_batch(1)).step == 2


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
