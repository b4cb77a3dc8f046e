"""Published faults of metrics, on the host's side: what groups say about their tasks."""

from random import Random

import numpy as np
import pytest

from agentrl_jax.algo.advantages import AdvantageConfig
from agentrl_jax.algo.metrics import macro_averages, merge, task_metrics
from agentrl_jax.errors import RecordError
from agentrl_jax.packing import PackingConfig, build_batch, unpack
from agentrl_jax.types import Completion, VersionSpan
from tests.algo.record_builders import make_group, make_segment, make_turn


def test_met_01_token_means_are_one_division_over_all_parts() -> None:
    parts = [
        make_group([1.0], group_id=i, segments=[[make_segment(*(make_turn(1, n) for n in lengths))]])
        for i, lengths in enumerate(([10], [30, 30, 30]))
    ]
    both = merge(task_metrics([part])["search"] for part in parts)
    assert both.as_floats()["episode_loss_tokens"] == 50
    assert both.as_floats()["episode_turns"] == 2


def test_met_07_errors_do_not_inflate_the_success_rate() -> None:
    metrics = task_metrics([make_group([1.0, 1.0, 0.0, None])])["search"]
    assert metrics.success_rate == pytest.approx(2 / 3)
    assert metrics.success_rate_attempted == pytest.approx(2 / 4)
    assert (metrics.num_valid, metrics.num_episodes) == (3, 4)


def test_met_08_values_of_one_name_are_collected_not_replaced() -> None:
    groups = [make_group([reward], group_id=i) for i, reward in enumerate([0.0, 0.5, 1.0])]
    assert merge(task_metrics([group])["search"] for group in groups).reward_mean == pytest.approx(0.5)


def test_met_09_rewards_stay_with_their_own_tokens_in_any_order() -> None:
    """Every group's success samples ids of its own; whatever the order, these and no others are reinforced."""
    groups = [
        make_group(
            [1.0, 0.0, 0.0],
            group_id=i,
            segments=[[make_segment(make_turn(1, 2, first_id=100 * (i + 1) + 10 * m))] for m in range(3)],
        )
        for i in range(4)
    ]
    config = AdvantageConfig(estimator="rloo", task_normalisation="off")
    for seed in range(3):
        shuffled = Random(seed).sample(groups, len(groups))
        packing = PackingConfig(row_tokens=(7, 20), rows_per_micro_batch=2)
        _, columns = unpack(build_batch(shuffled, advantages=config, packing=packing, learner_version=0))
        good = columns["ids"][columns["loss_mask"] & (columns["advantages"] > 0)]
        assert sorted(good.tolist()) == [100 * (i + 1) + n for i in range(4) for n in (0, 1)]


def test_met_10_lengths_are_those_of_the_ids_that_are_trained() -> None:
    group = make_group([1.0, 0.0], segments=[[make_segment(make_turn(4, 6, masked=[0, 5]))], [make_segment()]])
    metrics = task_metrics([group])["search"]
    batch = build_batch(
        [group],
        advantages=AdvantageConfig(),
        packing=PackingConfig(row_tokens=(16,), rows_per_micro_batch=1),
        learner_version=0,
    )
    lengths, columns = unpack(batch)
    assert metrics.num_tokens == lengths.sum() == batch.num_tokens
    assert metrics.num_loss_tokens == columns["loss_mask"].sum() == batch.num_loss_tokens == 4 + 3


def test_met_15_a_reward_is_counted_once_however_many_turns_and_segments() -> None:
    segments = [[make_segment(make_turn(), make_turn()), make_segment()], [make_segment()]]
    metrics = task_metrics([make_group([1.0, 0.0], segments=segments)])["search"]
    assert (metrics.reward_total, metrics.num_successes, metrics.num_valid) == (1.0, 1, 2)


def test_met_16_no_count_is_negative() -> None:
    fields = {"ids": [1], "logprobs": [0.0], "finish_reason": "stop", "engine": "e", "pool": "current"}
    with pytest.raises(RecordError, match="cached_tokens must be >= 0, got -3"):
        Completion(**fields, version_spans=(VersionSpan(version=0, start=0, end=1),), cached_tokens=-3)
    floats = task_metrics([make_group([None, -0.2])])["search"].as_floats()
    assert all(value >= 0 for name, value in floats.items() if name.startswith("num_"))
    assert np.isfinite(floats["margin"])


def test_met_18_tasks_of_1_and_99_episodes_are_averaged_both_ways_with_their_numbers() -> None:
    groups = [make_group([1.0], env="small"), make_group([0.0] * 99, group_id=1, env="large")]
    by_env = task_metrics(groups)
    assert merge(by_env.values()).success_rate == pytest.approx(0.01)
    assert macro_averages(by_env)["success_rate"] == pytest.approx(0.5)
    assert [by_env[env].as_floats()["num_episodes"] for env in ("small", "large")] == [1, 99]
