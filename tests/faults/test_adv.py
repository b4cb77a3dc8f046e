"""Published faults of advantages."""

from typing import get_args

import jax.numpy as jnp
import numpy as np
import pytest

from agentrl_jax.algo.advantages import AdvantageConfig
from agentrl_jax.algo.baselines import Estimator, group_advantages
from agentrl_jax.algo.losses import LossConfig, make_loss
from agentrl_jax.algo.metrics import means, task_metrics
from agentrl_jax.algo.task_norm import TaskNormalisation, task_normalise
from agentrl_jax.packing import PackedBatch, PackingConfig, build_batch, unpack
from agentrl_jax.types import Group
from tests.algo.record_builders import make_group, make_segment, make_turn
from tests.algo.toy_process import EXACT, PATHS, SIZE, estimates

PLAIN = AdvantageConfig(estimator="dr_grpo", task_normalisation="off")


def build(groups: list[Group], config: AdvantageConfig = PLAIN) -> PackedBatch:
    packing = PackingConfig(row_tokens=(64,), rows_per_micro_batch=1)
    return build_batch(groups, advantages=config, packing=packing, learner_version=0)


def test_adv_01_low_variance_groups_are_not_shrunk() -> None:
    rewards = np.array([1.00000, 1.00001, 2.00000, 2.00001])
    together, _ = group_advantages(rewards, [True] * 4, [0, 0, 1, 1], estimator="grpo")
    apart = [
        value for pair in (rewards[:2], rewards[2:]) for value in (pair - pair.mean()) / (np.std(pair, ddof=1) + 1e-6)
    ]
    np.testing.assert_allclose(together, apart, atol=1e-6)
    assert abs(together).min() > 0.6


@pytest.mark.parametrize("estimator", get_args(Estimator))
def test_adv_02_a_lone_success_is_not_divided_by_the_deviation_of_the_others(estimator: Estimator) -> None:
    for rewards in ([1, 0, 0, 0], [0.5 + 1e-9, 0.5, 0.5, 0.5]):
        advantages, _ = group_advantages(rewards, [True] * 4, [0] * 4, estimator=estimator)
        assert np.abs(advantages).max() <= 10


def test_adv_03_an_invalid_member_decides_neither_baseline_nor_signal() -> None:
    advantages, has_signal = group_advantages([0, 0.95, 0.95, 7], [True, True, True, False], [0] * 4, estimator="rloo")
    np.testing.assert_allclose(advantages, [-0.95, 0.475, 0.475, 0.0], rtol=1e-12)
    assert has_signal.tolist() == [True, True, True, False]
    equal, has_signal = group_advantages([0.95, 0.95, 7], [True, True, False], [0] * 3, estimator="rloo")
    assert (equal.tolist(), has_signal.tolist()) == ([0.0] * 3, [False] * 3)


@pytest.mark.parametrize(
    ("estimator", "expected"),
    [
        ("dr_grpo", [0.667, 0, -0.333, -0.333]),
        ("grpo", [1.155, 0, -0.577, -0.577]),
        ("rloo", [1, 0, -0.5, -0.5]),
    ],
)
def test_adv_04_masked_members_do_not_vote(estimator: Estimator, expected: list[float]) -> None:
    advantages, has_signal = group_advantages([1, 1, 0, 0], [True, False, True, True], [0] * 4, estimator=estimator)
    np.testing.assert_allclose(advantages, expected, atol=5e-4)
    assert has_signal.tolist() == [True, False, True, True]


def test_adv_07_a_reward_of_zero_is_a_reward() -> None:
    batch = build([make_group([0.0, 1.0])])
    assert batch.stats["num_invalid"] == 0
    (tokens,) = batch.micro_batches
    assert sorted(set(tokens.advantages[tokens.has_signal].tolist())) == [-0.5, 0.5]
    assert task_metrics([make_group([0.0, 1.0])])["search"].reward_mean == 0.5


def test_adv_11_no_trainable_token_gives_nan_metrics_and_weight_zero_but_no_crash() -> None:
    assert (build([make_group([None, None])]).micro_batches, build([]).loss_weight) == ((), 0.0)
    masked = make_segment(make_turn(2, 2, masked=[0, 1]))
    batch = build([make_group([1.0, 0.0], segments=[[masked], [masked]])])
    (tokens,) = batch.micro_batches
    output = make_loss(LossConfig())(jnp.full(tokens.ids.shape, -1.0), tokens)
    assert (batch.loss_weight, float(output.loss.total), float(output.loss.weight)) == (0.0, 0.0, 0.0)
    assert all(np.isnan(value) for value in means(output.metrics).values())


def test_adv_13_groups_of_different_envs_with_one_index_stay_two_groups() -> None:
    groups = [make_group([1.0] * 8, env="a", index=0), make_group([0.0] * 8, env="b", index=0)]
    batch = build(groups)
    assert batch.loss_weight == 0.0  # as one group of sixteen, half of it would look good
    assert (batch.stats["num_groups"], batch.stats["num_signal_groups"]) == (2, 0)
    assert {env: metrics.reward_mean for env, metrics in task_metrics(groups).items()} == {"a": 1.0, "b": 0.0}


def test_adv_14_turns_of_one_number_in_different_episodes_are_never_merged() -> None:
    """Same group id, same member, same turn: two groups of a batch are told apart by their place alone."""
    turns = [[make_turn(1, 1, first_id=10 * i), make_turn(1, 1, first_id=10 * i + 1)] for i in range(1, 5)]
    groups = [
        make_group(rewards, group_id=7, index=3, segments=[[make_segment(*turns[i])] for i in own])
        for rewards, own in (([1.0, 0.0], (0, 1)), ([3.0, 0.0], (2, 3)))
    ]
    config = AdvantageConfig(estimator="rloo", credit="turn", task_normalisation="off")
    _, columns = unpack(build(groups, config))
    sampled = columns["loss_mask"]
    found = dict(zip(columns["ids"][sampled].tolist(), columns["advantages"][sampled].tolist(), strict=True))
    assert found == {10: 1.0, 11: 1.0, 20: -1.0, 21: -1.0, 30: 3.0, 31: 3.0, 40: -3.0, 41: -3.0}


@pytest.mark.parametrize("as_segments", [False, True])
def test_adv_15_one_vote_per_trajectory_however_many_turns(as_segments: bool) -> None:
    turns = [make_turn() for _ in range(5)]
    long = [make_segment(turn) for turn in turns] if as_segments else [make_segment(*turns)]
    (tokens,) = build([make_group([1.0, 0.0], segments=[long, [make_segment()]])]).micro_batches
    values, counts = np.unique(tokens.advantages[tokens.loss_mask], return_counts=True)
    assert (values.tolist(), counts.tolist()) == ([-0.5, 0.5], [3, 15])


def test_adv_16_the_gradient_is_unbiased_in_monte_carlo() -> None:
    rng = np.random.default_rng(0)
    groups = rng.choice(len(PATHS), size=(40_000, SIZE), p=[path[0] for path in PATHS])
    for method, is_unbiased in (("ours", True), ("centred", False), ("whitened", False)):
        samples = estimates(groups, method)
        error = np.abs(samples.mean(axis=0) - EXACT) / (samples.std(axis=0) / np.sqrt(len(samples)))
        assert (error.max() < 4.5) == is_unbiased, (method, error)


def test_adv_17_the_one_switch_for_the_deviation_decides() -> None:
    values = {}
    for estimator in ("grpo", "dr_grpo"):
        config = AdvantageConfig(estimator=estimator, task_normalisation="off")
        (tokens,) = build([make_group([1.0, 0.0, 0.0, 0.0])], config).micro_batches
        values[estimator] = float(tokens.advantages.max())
    assert values == pytest.approx({"grpo": 1.5, "dr_grpo": 0.75}, rel=1e-5)
    with pytest.raises(TypeError, match="norm_adv_by_std"):
        AdvantageConfig(norm_adv_by_std=False)  # type: ignore[call-arg]


def test_adv_18_a_group_without_signal_does_not_dilute_the_loss() -> None:
    def mean_loss(batch: PackedBatch) -> float:
        outputs = [make_loss(LossConfig())(jnp.full(t.ids.shape, -0.4), t) for t in batch.micro_batches]
        return sum(float(output.loss.total) for output in outputs) / batch.loss_weight

    good, constant = make_group([1.0, 0.0, 0.0]), make_group([0.5] * 3, group_id=1)
    assert mean_loss(build([good, constant])) == pytest.approx(mean_loss(build([good])), rel=1e-6)
    assert mean_loss(build([good])) != 0.0
    assert task_metrics([good, constant])["search"].zero_signal_frac == 0.5


@pytest.mark.parametrize(("mode", "expected"), [("signal", 0.0), ("paper", 0.8598)])
def test_adv_19_task_normalisation_leaves_groups_without_signal_at_zero(
    mode: TaskNormalisation, expected: float
) -> None:
    normalised, _ = task_normalise([1.0, -1.0, 0.0], [10, 90, 50], [0, 0, 0], [True, True, False], [0, 0, 1], mode=mode)
    assert normalised[2] == pytest.approx(expected, abs=5e-5)


@pytest.mark.parametrize("mode", ["off", "signal", "paper"])
def test_adv_20_single_tokens_and_single_groups_stay_finite(mode: TaskNormalisation) -> None:
    lone, _ = task_normalise([0.7], [1], [0], [True], [0], mode=mode)
    assert lone.tolist() == [0.7]
    group = make_group(
        [1.0, 0.0], segments=[[make_segment(make_turn(1, 1))], [make_segment(make_turn(1, 1, masked=[0]))]]
    )
    (tokens,) = build([group], AdvantageConfig(task_normalisation=mode)).micro_batches
    assert np.isfinite(tokens.advantages).all()
    assert tokens.advantages[tokens.loss_mask].item() > 0.5
