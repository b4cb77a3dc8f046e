"""Task normalisation: hand-computed numbers, the published formula in other words, then what must never change."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl_jax.algo.outcomes import Outcomes
from agentrl_jax.algo.task_norm import TaskNormalisation, Weighting, entry_weights, task_normalise
from tests.algo.score_batches import outcomes


def test_task_statistics_are_of_tokens_by_hand() -> None:
    # Tokens: 1, 1 and −1: mean 1/3, unbiased variance (2 · (2/3)² + (4/3)²) / 2 = 4/3.
    normalised, done = task_normalise([1, -1], [2, 1], [0, 0], [True, True], [0, 1], mode="signal", eps=1e-12)
    np.testing.assert_allclose(normalised, [(2 / 3) / math.sqrt(4 / 3), (-4 / 3) / math.sqrt(4 / 3)])
    assert done.all()


def test_task_statistics_of_whole_trajectories_by_hand() -> None:
    # Two turns of one trajectory and one of another, each trajectory weighing 1: mean 0, unbiased variance 2.
    weights = entry_weights([30, 10, 8], [0, 0, 1], weighting="sequence")
    assert weights.tolist() == [0.75, 0.25, 1.0]
    normalised, done = task_normalise([1, 1, -1], weights, [0] * 3, [True] * 3, [0, 0, 1], mode="signal", eps=1e-12)
    np.testing.assert_allclose(normalised, [0.5**0.5, 0.5**0.5, -(0.5**0.5)])
    assert done.all()
    assert entry_weights([30, 0, 0], [0, 0, 1], weighting="token").tolist() == [30.0, 0.0, 0.0]
    assert entry_weights([30, 0, 0], [0, 0, 1], weighting="sequence").tolist() == [1.0, 0.0, 0.0]


def token_by_token(advantages: np.ndarray, tokens: np.ndarray, task_ids: np.ndarray, dtype: type) -> np.ndarray:
    """The published formula as it is coded: one value per token, mean and unbiased deviation by data source."""
    result = np.array(advantages, dtype)
    for task in set(task_ids.tolist()):
        own = task_ids == task
        values = np.repeat(np.asarray(advantages, dtype)[own], tokens[own])
        if len(values) > 1:  # the deviation of a single token is NaN there
            result[own] = (np.asarray(advantages, dtype)[own] - values.mean()) / (values.std(ddof=1) + dtype(1e-6))
    return result


@st.composite
def tasks_of_tokens(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    num = draw(st.integers(2, 12))
    advantages = np.array(draw(st.lists(st.integers(-30, 30), min_size=num, max_size=num)), np.float64) / 16
    tokens = np.array(draw(st.lists(st.integers(1, 60), min_size=num, max_size=num)))
    task_ids = np.array(draw(st.lists(st.integers(0, 2), min_size=num, max_size=num))) * 5
    return advantages, tokens, task_ids


@given(tasks_of_tokens())
@settings(max_examples=60, deadline=None)
def test_paper_equals_the_published_formula_on_tokens(case: tuple[np.ndarray, np.ndarray, np.ndarray]) -> None:
    advantages, tokens, task_ids = case
    groups, signal = np.arange(len(tokens)), np.zeros(len(tokens), np.bool_)
    ours, done = task_normalise(advantages, tokens, task_ids, signal, groups, mode="paper")
    spread = {t: np.ptp(advantages[task_ids == t]) for t in set(task_ids.tolist())}
    own = done & np.array([spread[t] > 0 for t in task_ids.tolist()])
    in_float64 = token_by_token(advantages, tokens, task_ids, np.float64)
    np.testing.assert_allclose(ours[own], in_float64[own], rtol=1e-12, atol=1e-12)
    in_float32 = token_by_token(advantages, tokens, task_ids, np.float32)
    np.testing.assert_allclose(ours[own].astype(np.float32), in_float32[own], rtol=1e-5, atol=1e-5)
    lonely = np.bincount(task_ids, weights=tokens)[task_ids] < 2
    assert done.tolist() == (~lonely).tolist()


def test_tasks_do_not_see_each_other() -> None:
    advantages, tokens = [1.0, -1.0, 10.0, -30.0], [3, 5, 2, 4]
    signal = [True] * 4
    both, _ = task_normalise(advantages, tokens, [0, 0, 9, 9], signal, [0, 1, 2, 3], mode="signal")
    first, _ = task_normalise(advantages[:2], tokens[:2], [0, 0], signal[:2], [0, 1], mode="signal")
    second, _ = task_normalise(advantages[2:], tokens[2:], [9, 9], signal[2:], [2, 3], mode="signal")
    np.testing.assert_allclose(both, [*first, *second], rtol=1e-12)


@pytest.mark.parametrize(
    ("tokens", "signal", "groups"),
    [
        ([5, 5, 5, 5], [True, True, False, False], [0, 0, 1, 1]),
        ([5, 5, 0, 0], [True] * 4, [0, 0, 1, 1]),
        ([5, 5, 5, 5], [True] * 4, [0, 0, 0, 0]),
    ],
    ids=["second-without-signal", "second-without-tokens", "only-one"],
)
def test_a_task_with_fewer_than_two_groups_that_take_part_is_left_alone(
    tokens: list[int], signal: list[bool], groups: list[int]
) -> None:
    before = np.where(signal, [0.5, -0.5, 0.25, -0.25], 0.0)
    after, done = task_normalise(before, tokens, [0] * 4, signal, groups, mode="signal")
    assert after.tolist() == before.tolist()
    assert not done.any()


def test_a_task_whose_tokens_all_have_one_advantage_keeps_it() -> None:
    after, done = task_normalise([0.3, 0.3], [7, 9], [0, 0], [True, True], [0, 1], mode="signal")
    assert after.tolist() == [0.3, 0.3]
    assert not done.any()


def test_off_changes_nothing_and_returns_its_own_array() -> None:
    before = np.array([1.0, -1.0])
    after, done = task_normalise(before, [3, 4], [0, 0], [True, True], [0, 1], mode="off")
    assert after.tolist() == [1.0, -1.0]
    assert after is not before
    assert not done.any()


@pytest.mark.parametrize("mode", ["off", "signal", "paper"])
@pytest.mark.parametrize(("tokens", "groups"), [([1], [0]), ([1, 1], [0, 0]), ([0, 1], [0, 1]), ([], [])])
def test_one_token_one_group_one_member_and_nothing_stay_finite(
    mode: TaskNormalisation, tokens: list[int], groups: list[int]
) -> None:
    after, _ = task_normalise([0.7] * len(tokens), tokens, [0] * len(tokens), [True] * len(tokens), groups, mode=mode)
    assert np.isfinite(after).all()


@given(outcomes(), st.sampled_from(["signal", "paper"]), st.sampled_from(["token", "sequence"]), st.floats(0.1, 9))
@settings(max_examples=60, deadline=None)
def test_normalised_tasks_have_zero_mean_and_unit_variance_and_forget_scale_and_offset(
    batch: Outcomes, mode: TaskNormalisation, weighting: Weighting, scale: float
) -> None:
    owner = np.repeat(np.arange(len(batch.rewards)), batch.num_turns)
    weights = entry_weights(batch.turn_loss_tokens, owner, weighting=weighting)
    rest = batch.task_ids[owner], batch.votes[owner], batch.group_ids[owner]
    after, done = task_normalise(batch.turn_rewards, weights, *rest, mode=mode, eps=1e-12)
    moved, _ = task_normalise(batch.turn_rewards * scale + 3, weights, *rest, mode=mode, eps=1e-12)
    for task in np.unique(batch.task_ids):
        own = (rest[0] == task) & done & (weights > 0)
        if own.any() and np.ptp(batch.turn_rewards[own]) > 0:
            mean = np.average(after[own], weights=weights[own])
            variance = np.sum(weights[own] * (after[own] - mean) ** 2) / (weights[own].sum() - 1)
            assert (mean, variance) == pytest.approx((0.0, 1.0), abs=1e-9)
            np.testing.assert_allclose(moved[own], after[own], atol=1e-9)
