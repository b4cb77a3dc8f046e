"""Scores of an evaluation, by hand."""

from math import isnan

import pytest

from agentrl_jax.algo.intervals import proportion_interval
from agentrl_jax.playing.scores import gains, score
from agentrl_jax.playing.text import score_table
from agentrl_jax.types import EpisodeEnd
from tests.playing.world import record


def test_scores_by_hand() -> None:
    outcomes: dict[int, list[bool | None]] = {0: [True, False, False, None], 1: [False] * 4, 2: [True] * 4}
    episodes = [
        record(solved, index=index, sample=sample)
        for index, all_ in outcomes.items()
        for sample, solved in enumerate(all_)
    ]
    (found,) = score(episodes)
    assert (found.num_tasks, found.num_episodes, found.num_valid, found.num_broken) == (3, 12, 11, 1)
    assert (found.num_successes, found.avg_at_k) == (5, 5 / 11)
    # Of 3, 4 and 4 samples with 1, 0 and 4 successes; four samples have two of the tasks only.
    assert found.pass_at_k == pytest.approx({1: (1 / 3 + 1) / 3, 2: (2 / 3 + 1) / 3, 4: 0.5})
    assert (found.best_of_n, found.any_solved) == pytest.approx((2 / 3, 2 / 3))
    assert found.ends == {EpisodeEnd.COMPLETED: 11, EpisodeEnd.ENGINE_ERROR: 1}
    assert found.interval == pytest.approx(proportion_interval(5 / 11 * 3, 3))


def test_tasks_that_only_broke_say_nothing() -> None:
    (found,) = score([record(None), record(None, index=1)])
    assert (found.num_tasks, found.num_valid, found.interval) == (0, 0, (0.0, 1.0))
    assert isnan(found.avg_at_k)
    assert found.pass_at_k == {}
    assert score_table([found])[1].split()[2:5] == ["0", "2", "-"]


def test_each_mixture_and_env_is_scored_alone() -> None:
    episodes = [
        record(solved=s, mixture=m, env=e) for s, m, e in [(True, "x", "a"), (False, "y", "a"), (True, "x", "b")]
    ]
    assert [(found.mixture, found.env, found.avg_at_k) for found in score(episodes)] == [
        ("x", "a", 1.0),
        ("y", "a", 0.0),
        ("x", "b", 1.0),
    ]
    with pytest.raises(ValueError, match="one record of each episode"):
        score(episodes * 2)


def test_metrics_are_means_over_those_that_have_them() -> None:
    episodes = [record(solved=True, metrics={"score": 0.5}), record(solved=True, index=1, metrics={"score": 1.0})]
    (found,) = score([*episodes, record(solved=False, index=2), record(None, index=3, metrics={"score": 9.0})])
    assert found.metrics == {"score": 0.75}


def test_gains_compare_the_same_tasks() -> None:
    base = [record(solved=solved, mixture="x", index=index) for index, solved in enumerate([True, False, False, False])]
    other = [record(solved=solved, mixture="y", index=index) for index, solved in enumerate([True, True, False, None])]
    (found,) = gains([*base, *other], "x")
    assert (found["mixture"], found["over"], found["num_tasks"], found["gain"]) == ("y", "x", 3, pytest.approx(1 / 3))
    assert found["gain_low"] < 0 < found["gain_high"]
    assert gains(base, "x") == []


def test_the_table_shows_curves_only_where_there_are_any() -> None:
    head, row = score_table(score([record(solved=True)]))
    assert "pass@" not in head
    assert row.split()[:6] == ["a", "m", "1", "1", "100.0", "%"]
    head, row = score_table(score([record(solved=bool(sample), sample=sample) for sample in range(2)]))
    assert head.split()[4:11] == ["success", "95", "%", "pass@2", "best", "reward", "reward"]
    assert row.split()[4:6] == ["50.0", "%"]
    assert "100.0 %" in row
