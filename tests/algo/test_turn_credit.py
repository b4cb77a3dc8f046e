"""Credit by turn: hand-computed numbers, a looped reference, and a gradient that must be unbiased."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl_jax.algo.baselines import group_advantages
from agentrl_jax.algo.outcomes import Outcomes
from agentrl_jax.algo.turn_credit import booked_rewards, returns_to_go, turn_advantages, turn_numbers
from agentrl_jax.errors import RecordError
from tests.algo.score_batches import outcomes
from tests.algo.toy_process import EXACT, PATHS, SIZE, estimates


def test_the_last_turn_gets_what_is_left_of_the_reward() -> None:
    assert booked_rewards([-0.2, 1.0, 0.5], [0.25, 0.0, 0.5, 0.0, 7.0], [2, 2, 1]).tolist() == [
        0.25, -0.45, 0.5, 0.5, 0.5,
    ]  # fmt: skip
    assert booked_rewards([1.0, 3.0], [0.0], [0, 1]).tolist() == [3.0]
    with pytest.raises(RecordError, match="rewards for 3 turns, got 2"):
        booked_rewards([1.0], [0.0, 0.0], [3])


def test_returns_to_go_by_hand() -> None:
    assert returns_to_go([1.0, 2.0, 4.0, 8.0], [3, 1], discount=1.0).tolist() == [[7, 6, 4], [8, 0, 0]]
    assert returns_to_go([1.0, 2.0, 4.0, 8.0], [3, 1], discount=0.5).tolist() == [[3, 4, 4], [8, 0, 0]]
    assert returns_to_go([1.0, 2.0, 4.0, 8.0], [3, 1], discount=0.0).tolist() == [[1, 2, 4], [8, 0, 0]]
    assert returns_to_go([], [0, 0], discount=1.0).shape == (2, 0)


def test_three_members_of_one_group_by_hand() -> None:
    """Turns 2, 1 and 3; the one that ended first votes at every later turn with its last return."""
    advantages, has_signal = turn_advantages(
        [1.5, 0.0, 3.0], [True] * 3, [4] * 3, [0.5, 1.0, 0.0, 1.0, 1.0, 1.0], [2, 1, 3], leave_one_out=True
    )
    returns = [1.5, 1.0, 0.0, 3.0, 2.0, 1.0]
    others = [(0 + 3) / 2, (0 + 2) / 2, (1.5 + 3) / 2, (1.5 + 0) / 2, (1.0 + 0) / 2, (1.0 + 0) / 2]
    np.testing.assert_allclose(advantages, np.subtract(returns, others), rtol=1e-12)
    assert has_signal.all()
    with_oneself, _ = turn_advantages(
        [1.5, 0.0, 3.0], [True] * 3, [4] * 3, [0.5, 1.0, 0.0, 1.0, 1.0, 1.0], [2, 1, 3], leave_one_out=False
    )
    np.testing.assert_allclose(with_oneself, advantages * 2 / 3, rtol=1e-12)


def test_equal_rewards_by_different_ways_have_a_signal_and_equal_ways_have_none() -> None:
    early_and_late = [1.0, 0.0, 0.0, 1.0]
    advantages, has_signal = turn_advantages([1, 1], [True] * 2, [0, 0], early_and_late, [2, 2], leave_one_out=True)
    assert advantages.tolist() == [0.0, -1.0, 0.0, 1.0]
    assert has_signal.all()
    sums = [0.1, 0.2, 0.0, 0.3, 0.0, 0.0]  # the first adds up to 0.29999999999999993 from its end, the same reward
    assert len({*returns_to_go(booked_rewards([0.3, 0.3], sums, [3, 3]), [3, 3], discount=1.0)[:, 0].tolist()}) == 2
    advantages, _ = turn_advantages([0.3, 0.3], [True] * 2, [0, 0], sums, [3, 3], leave_one_out=True)
    assert advantages[[0, 3]].tolist() == [0.0, 0.0]
    lone, has_signal = turn_advantages([1, 0], [True, False], [0, 0], early_and_late, [2, 2], leave_one_out=True)
    assert lone.tolist() == [0.0] * 4
    assert not has_signal.any()


def test_a_trajectory_without_turns_has_no_vote() -> None:
    advantages, has_signal = turn_advantages(
        [1.0, 0.0, 9.0], [True] * 3, [0] * 3, [0.0, 0.0], [1, 1, 0], leave_one_out=True
    )
    assert (advantages.tolist(), has_signal.tolist()) == ([1.0, -1.0], [True, True, False])


def looped(batch: Outcomes, discount: float) -> list[float]:
    ends = np.cumsum(batch.num_turns)
    paths = []
    for reward, end, num in zip(batch.rewards, ends, batch.num_turns, strict=True):
        steps = batch.turn_rewards[end - num : end].tolist()
        paths.append([*steps[:-1], reward - sum(steps[:-1])] if num else [])
    values = [
        [sum(discount ** (m - k) * path[m] for m in range(k, len(path))) for k in range(len(path))] for path in paths
    ]
    result = []
    for i, path in enumerate(values):
        others = [
            j for j in range(len(values)) if j != i and batch.votes[j] and batch.group_ids[j] == batch.group_ids[i]
        ]
        for k, value in enumerate(path):
            votes = [values[j][min(k, len(values[j]) - 1)] for j in others]
            result.append(value - sum(votes) / len(votes) if votes and batch.votes[i] else 0.0)
    return result


@given(outcomes(), st.sampled_from([0.0, 0.5, 1.0]))
@settings(max_examples=60, deadline=None)
def test_turn_advantages_equal_the_looped_reference(batch: Outcomes, discount: float) -> None:
    args = batch.rewards, batch.votes, batch.group_ids, batch.turn_rewards, batch.num_turns
    advantages, has_signal = turn_advantages(*args, leave_one_out=True, discount=discount)
    np.testing.assert_allclose(advantages, looped(batch, discount), rtol=1e-9, atol=1e-11)
    owner, _ = turn_numbers(batch.num_turns)
    assert not advantages[~has_signal[owner]].any()


@given(outcomes(intermediate=False))
@settings(max_examples=40, deadline=None)
def test_with_a_final_reward_only_every_turn_has_its_trajectorys_advantage(batch: Outcomes) -> None:
    args = batch.rewards, batch.votes, batch.group_ids
    by_turn, signal = turn_advantages(*args, batch.turn_rewards, batch.num_turns, leave_one_out=True)
    by_trajectory, expected = group_advantages(*args, estimator="rloo")
    np.testing.assert_allclose(by_turn, np.repeat(by_trajectory, batch.num_turns), rtol=1e-12, atol=1e-15)
    assert signal.tolist() == expected.tolist()


def expected(method: str) -> np.ndarray:
    """Exactly: all groups that there are, weighed by their probability."""
    groups = np.array(list(product(range(len(PATHS)), repeat=SIZE)))
    probabilities = np.array([PATHS[0][0], PATHS[1][0], PATHS[2][0]])[groups].prod(axis=1)
    return probabilities @ estimates(groups, method)


def test_the_gradient_is_unbiased_exactly_and_two_naive_ways_are_not() -> None:
    np.testing.assert_allclose(expected("ours"), EXACT, rtol=1e-12)
    for naive in ("centred", "whitened"):
        ratio = expected(naive) / EXACT
        assert abs(ratio[0] / ratio[1] - 1) > 0.1  # not even its direction is right


def test_the_baseline_of_a_member_does_not_depend_on_what_it_did() -> None:
    rewards, num_turns, given = [0.0, 1.0, 0.5], [1, 2, 3], [0.0, 0.25, 0.75, 0.0, 0.5, 0.0]
    others = turn_advantages(rewards, [True] * 3, [0] * 3, given, num_turns, leave_one_out=True)[0]
    changed = turn_advantages(
        [9.0, *rewards[1:]], [True] * 3, [0] * 3, [9.0, *given[1:]], num_turns, leave_one_out=True
    )[0]
    assert changed[0] - others[0] == pytest.approx(9.0)  # its return moved, its baseline did not
