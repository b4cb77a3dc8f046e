"""The age of tokens, counted by hand from version spans."""

import math
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl_jax.algo.staleness import add_lags, staleness_floats, token_lags
from agentrl_jax.types import EpisodeEnd, Group, VersionSpan
from tests.algo.record_builders import make_group, make_segment, make_trajectory, make_turn


def test_tokens_are_counted_by_pool_and_lag_by_hand() -> None:
    """A turn during which weights were published, a masked token, a turn of a lagging engine, a broken episode."""
    turn = make_turn(2, 5, masked=[1])
    spans = (VersionSpan(version=4, start=0, end=3), VersionSpan(version=6, start=3, end=5))
    mixed = replace(turn, completion=replace(turn.completion, version_spans=spans))
    members = (
        make_trajectory(1.0, make_segment(mixed, make_turn(1, 2, version=1, pool="lagging")), member=0),
        make_trajectory(None, make_segment(make_turn(1, 9, version=0)), member=1, end=EpisodeEnd.ENV_ERROR),
    )
    group = Group(group_id=0, task=members[0].task, start_version=0, trajectories=members)
    lags = token_lags([group], 6)
    assert lags == {"current": Counter({2: 2, 0: 2}), "lagging": Counter({5: 2})}
    found = staleness_floats(lags)
    expected = {
        "staleness_current_tokens": 4,
        "staleness_current_mean": 1.0,
        "staleness_current_max": 2,
        "staleness_current_lag_0_tokens": 2,
        "staleness_current_lag_1_tokens": 0,
        "staleness_current_lag_2_tokens": 2,
        "staleness_lagging_tokens": 2,
        "staleness_lagging_max": 5,
        "staleness_lagging_lag_5_8_tokens": 2,
    }
    assert {name: found[name] for name in expected} == expected


def test_a_pool_that_sampled_nothing_has_no_mean_but_the_same_names() -> None:
    nothing = staleness_floats(token_lags([], 3))
    assert nothing.keys() == staleness_floats(token_lags([make_group([1.0, 0.0])], 0)).keys()
    assert math.isnan(nothing["staleness_lagging_mean"])
    assert math.isnan(nothing["staleness_lagging_max"])
    assert nothing["staleness_lagging_tokens"] == 0


@given(st.dictionaries(st.integers(0, 60), st.integers(0, 99), max_size=8))
@settings(max_examples=50, deadline=None)
def test_every_token_is_in_one_bar(counts: dict[int, int]) -> None:
    found = staleness_floats({"current": Counter(counts)})
    bars = [value for name, value in found.items() if "_lag_" in name]
    assert sum(bars) == found["staleness_current_tokens"] == sum(counts.values())
    if counts.get(0):
        assert found["staleness_current_lag_0_tokens"] == counts[0]
    assert found["staleness_current_lag_33_up_tokens"] == sum(n for lag, n in counts.items() if lag > 32)


def test_parts_add_up() -> None:
    groups = [make_group([1.0, 0.0], group_id=i, segments=[[make_segment(make_turn(version=i))]] * 2) for i in range(3)]
    assert add_lags(token_lags([group], 3) for group in groups) == token_lags(groups, 3)
    assert staleness_floats(token_lags(groups, 3))["staleness_current_mean"] == pytest.approx(2.0)
