"""What groups say about their tasks, counted by hand."""

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl_jax.algo.metrics import TaskMetrics, is_success, macro_average, macro_averages, means, merge, task_metrics
from agentrl_jax.batch import Weighted
from agentrl_jax.types import EpisodeEnd, Group
from tests.algo.record_builders import make_group, make_segment, make_trajectory, make_turn


def test_a_group_by_hand() -> None:
    group = make_group(
        [1.0, 0.4, None],
        segments=[
            [make_segment(make_turn(2, 3), make_turn(1, 2, pool="lagging"))],
            [make_segment(make_turn(2, 1))],
            [],
        ],
    )
    metrics = task_metrics([group])["search"]
    figures = metrics.as_floats()
    assert metrics.ends == {EpisodeEnd.COMPLETED: 2, EpisodeEnd.ENV_ERROR: 1}
    expected = {
        "num_groups": 1,
        "num_episodes": 3,
        "reward_mean": 0.7,
        "success_rate": 1 / 2,
        "success_rate_attempted": 1 / 3,
        "num_valid": 2,
        "num_successes": 1,
        "num_signal_groups": 1,
        "num_all_solved_groups": 0,
        "num_none_solved_groups": 0,
        "zero_signal_frac": 0.0,
        "zero_variance_frac": 0.0,
        "all_solved_frac": 0.0,
        "none_solved_frac": 0.0,
        "margin": 0.3,
        "best_of_n_reward": 1.0,
        "best_of_n_success_rate": 1.0,
        "episode_tokens": 11 / 3,
        "episode_loss_tokens": 6 / 3,
        "episode_turns": 1.0,
        "lagging_turn_frac": 1 / 3,
        "end_completed_frac": 2 / 3,
        "end_env_error_frac": 1 / 3,
        "end_max_turns_frac": 0.0,
    }
    assert {name: figures[name] for name in expected} == pytest.approx(expected)
    assert math.isnan(figures["call_error_frac"])


def test_a_mean_is_one_division_and_nan_where_nothing_was_measured() -> None:
    found = means({"a": Weighted(total=2.0, weight=10.0), "b": Weighted(total=0.0, weight=0.0)})
    assert found == pytest.approx({"a": 0.2, "b": math.nan}, nan_ok=True)


def test_success_is_what_the_env_gave_before_any_penalty() -> None:
    assert is_success(make_trajectory(-0.2, env_reward=1.0, end=EpisodeEnd.MAX_TURNS))
    assert not is_success(make_trajectory(-0.2, end=EpisodeEnd.MAX_TURNS))
    assert not is_success(make_trajectory(0.99))
    assert is_success(make_trajectory(sum([0.1] * 10)))  # 0.9999999999999999
    assert not is_success(make_trajectory(None, env_reward=1.0, end=EpisodeEnd.ENGINE_ERROR))


def test_envs_are_kept_apart_and_come_in_alphabetical_order() -> None:
    groups = [
        make_group([1.0, 0.0], group_id=0, env="web"),
        make_group([1.0, 1.0], group_id=1, env="db"),
        make_group([None, None], group_id=2, env="db"),
    ]
    by_env = task_metrics(groups)
    assert list(by_env) == ["db", "web"]
    assert (by_env["db"].zero_signal_frac, by_env["web"].zero_signal_frac) == (1.0, 0.0)
    db = by_env["db"]
    assert (db.num_scored_groups, db.best_of_n_success_rate, db.best_of_n_reward) == (1, 1.0, 1.0)


def test_groups_that_are_solved_by_all_by_none_and_without_variance_by_hand() -> None:
    """All of four, none of two, some of two, one valid member of two, none valid."""
    rewards = [[1.0] * 4, [0.0, 0.5], [1.0, 0.0], [1.0, None], [None, None]]
    metrics = task_metrics([make_group(values, group_id=i) for i, values in enumerate(rewards)])["search"]
    assert (metrics.num_groups, metrics.num_scored_groups, metrics.num_compared_groups) == (5, 4, 3)
    assert (metrics.num_all_solved_groups, metrics.num_none_solved_groups, metrics.num_success_groups) == (2, 1, 3)
    assert metrics.zero_signal_frac == pytest.approx(3 / 5)
    assert metrics.zero_variance_frac == pytest.approx(1 / 3)
    assert metrics.margin == pytest.approx((0 + 0.25 + 0.5 + 0) / 4)
    assert metrics.best_of_n_reward == pytest.approx((1 + 0.5 + 1 + 1) / 4)


def test_every_rate_has_its_macro_average_and_no_count_has_one() -> None:
    groups = [make_group([0.0, 0.0], group_id=i, env="big") for i in range(9)]
    by_env = task_metrics([*groups, make_group([1.0, 0.0], group_id=9, env="small")])
    macro = macro_averages(by_env)
    assert macro["success_rate"] == macro["reward_mean"] == pytest.approx(0.25)
    assert macro["margin"] == pytest.approx(0.25)
    assert macro["zero_variance_frac"] == pytest.approx(0.5)
    assert not any(name.startswith("num_") for name in macro)
    assert all(math.isnan(value) for value in macro_averages({}).values())
    assert macro_averages({}).keys() == macro.keys()


@given(st.lists(st.lists(st.sampled_from([None, -0.2, 0.0, 0.5, 1.0]), min_size=1, max_size=4), max_size=6))
@settings(max_examples=40, deadline=None)
def test_shares_and_counts_agree_whatever_the_groups(rewards: list[list[float | None]]) -> None:
    groups = [make_group(values, group_id=i) for i, values in enumerate(rewards)]
    metrics = merge(task_metrics(groups).values())
    backwards = merge(task_metrics(groups[::-1]).values())
    assert backwards.as_floats() == pytest.approx(metrics.as_floats(), nan_ok=True)
    scored = metrics.num_all_solved_groups + metrics.num_none_solved_groups
    assert scored <= metrics.num_scored_groups <= metrics.num_groups
    assert metrics.num_signal_groups <= metrics.num_compared_groups <= metrics.num_scored_groups
    assert metrics.num_successes <= metrics.num_valid <= metrics.num_episodes
    for name, value in metrics.rates().items():
        assert math.isnan(value) or name in ("reward_mean", "best_of_n_reward") or value >= 0


def test_calls_without_tags_and_calls_that_could_not_be_read_are_counted_apart() -> None:
    calls = [(2, 1, ()), (2, 0, ("no such tool",))]
    turns = [
        replace(make_turn(), num_calls=num, num_bare_calls=bare, call_errors=errors) for num, bare, errors in calls
    ]
    figures = task_metrics([make_group([1.0], segments=[[make_segment(*turns)]])])["search"].rates()
    assert (figures["bare_call_frac"], figures["call_error_frac"]) == (1 / 4, 1 / 5)


def test_micro_average_weighs_episodes_and_macro_average_weighs_tasks() -> None:
    groups: list[Group] = [make_group([0.0], group_id=i, env="big") for i in range(9)]
    groups.append(make_group([1.0], group_id=9, env="small"))
    by_env = task_metrics(groups)
    assert merge(by_env.values()).success_rate == pytest.approx(0.1)
    assert macro_average(metrics.success_rate for metrics in by_env.values()) == pytest.approx(0.5)


def test_nothing_measured_is_nan_and_left_out_of_macro_averages() -> None:
    empty = merge([])
    assert empty == TaskMetrics()
    assert math.isnan(empty.success_rate)
    assert macro_average([empty.success_rate, 0.5]) == 0.5
    assert math.isnan(macro_average([]))


def test_merging_in_parts_equals_merging_at_once() -> None:
    groups = [make_group(rewards, group_id=i) for i, rewards in enumerate([[1.0, 0.3], [None, 1.0], [0.0, -0.2]])]
    parts = [task_metrics([group])["search"] for group in groups]
    assert merge([merge(parts[:1]), merge(parts[1:])]) == merge(parts) == task_metrics(groups)["search"]
