"""Group baselines: hand-computed numbers, a looped reference, then what must never change."""

import statistics
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl_jax.algo.baselines import Estimator, group_advantages
from agentrl_jax.algo.outcomes import Outcomes
from agentrl_jax.errors import ConfigError, RecordError
from tests.algo.score_batches import outcomes

ESTIMATORS: tuple[Estimator, ...] = ("grpo", "dr_grpo", "rloo", "reinforce_pp_baseline")


def looped(batch: Outcomes, estimator: Estimator) -> tuple[list[float], list[bool]]:
    """The formulas member by member, with the statistics module instead of numpy."""
    advantages, signals = [], []
    members = list(zip(batch.rewards.tolist(), batch.votes.tolist(), batch.group_ids.tolist(), strict=True))
    for i, (reward, is_voting, group_id) in enumerate(members):
        others = [r for j, (r, v, g) in enumerate(members) if v and g == group_id and j != i]
        peers = [*others, reward]
        has_signal = is_voting and len(set(peers)) > 1
        if not has_signal:
            advantage = 0.0
        elif estimator == "grpo":
            advantage = (reward - statistics.fmean(peers)) / (statistics.stdev(peers) + 1e-6)
        elif estimator == "rloo":
            advantage = reward - statistics.fmean(others)
        else:
            advantage = reward - statistics.fmean(peers)
        advantages.append(advantage)
        signals.append(has_signal)
    return advantages, signals


@pytest.mark.parametrize(
    ("estimator", "expected"),
    [
        ("grpo", [1.5, -0.5, -0.5, -0.5]),  # the unbiased deviation is exactly 0.5
        ("dr_grpo", [0.75, -0.25, -0.25, -0.25]),
        ("rloo", [1.0, -1 / 3, -1 / 3, -1 / 3]),
        ("reinforce_pp_baseline", [0.75, -0.25, -0.25, -0.25]),
    ],
)
def test_a_group_of_four_by_hand(estimator: Estimator, expected: list[float]) -> None:
    advantages, has_signal = group_advantages([1, 0, 0, 0], [True] * 4, [0] * 4, estimator=estimator)
    np.testing.assert_allclose(advantages, expected, rtol=1e-5)
    assert has_signal.all()


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_no_vote_from_invalid_members_and_no_signal_from_equal_ones(estimator: Estimator) -> None:
    rewards = [1.0, np.nan, 0.5, 0.5, 1.0, np.nan]
    votes = [True, False, True, True, True, False]
    advantages, has_signal = group_advantages(rewards, votes, [0, 0, 1, 1, 2, 2], estimator=estimator)
    assert advantages.tolist() == [0.0] * 6
    assert not has_signal.any()


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_equal_rewards_give_exactly_zero_although_their_mean_is_rounded(estimator: Estimator) -> None:
    assert sum([0.1] * 3) / 3 != 0.1
    advantages, has_signal = group_advantages([0.1] * 3, [True] * 3, [0] * 3, estimator=estimator)
    assert advantages.tolist() == [0.0] * 3
    assert not has_signal.any()


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_one_reward_added_up_in_two_orders_is_no_signal(estimator: Estimator) -> None:
    assert 0.1 + 0.2 != 0.3
    advantages, has_signal = group_advantages([0.1 + 0.2, 0.3], [True] * 2, [0] * 2, estimator=estimator)
    assert (advantages.tolist(), has_signal.tolist()) == ([0.0] * 2, [False] * 2)
    assert group_advantages([1.0, 1.0 + 1e-9], [True] * 2, [0] * 2, estimator=estimator)[1].all()


def test_a_reward_that_votes_is_finite_and_an_estimator_known() -> None:
    with pytest.raises(RecordError, match="finite"):
        group_advantages([1.0, np.inf], [True, True], [0, 0], estimator="dr_grpo")
    with pytest.raises(ConfigError, match="one of grpo, dr_grpo, rloo, reinforce_pp_baseline, got 'gae'"):
        group_advantages([1.0, 0.0], [True, True], [0, 0], estimator="gae")  # type: ignore[arg-type]


@pytest.mark.parametrize("estimator", ESTIMATORS)
@given(batch=outcomes())
@settings(max_examples=40, deadline=None)
def test_group_advantages_equal_the_looped_reference(batch: Outcomes, estimator: Estimator) -> None:
    advantages, has_signal = group_advantages(batch.rewards, batch.votes, batch.group_ids, estimator=estimator)
    expected, signals = looped(batch, estimator)
    np.testing.assert_allclose(advantages, expected, rtol=1e-9, atol=1e-12)
    assert has_signal.tolist() == signals


@given(outcomes(), st.floats(-5, 5), st.floats(0.1, 10), st.sampled_from(["dr_grpo", "rloo"]))
@settings(max_examples=40, deadline=None)
def test_group_advantages_ignore_an_offset_and_follow_a_scale(
    batch: Outcomes, offset: float, scale: float, estimator: Estimator
) -> None:
    plain, signal = group_advantages(batch.rewards, batch.votes, batch.group_ids, estimator=estimator)
    # Exact rounding may merge rewards that differ; these differ by 0.1 at least.
    moved, moved_signal = group_advantages(
        batch.rewards * scale + offset, batch.votes, batch.group_ids, estimator=estimator
    )
    np.testing.assert_allclose(moved, plain * scale, atol=1e-12)
    assert moved_signal.tolist() == signal.tolist()


@given(outcomes())
@settings(max_examples=30, deadline=None)
def test_groups_do_not_see_each_other(batch: Outcomes) -> None:
    together, _ = group_advantages(batch.rewards, batch.votes, batch.group_ids, estimator="grpo")
    for group in np.unique(batch.group_ids):
        members = batch.group_ids == group
        alone, _ = group_advantages(batch.rewards[members], batch.votes[members], [0] * members.sum(), estimator="grpo")
        np.testing.assert_allclose(together[members], alone, rtol=1e-12, atol=1e-15)


def test_only_leave_one_out_is_unbiased() -> None:
    """One turn, two actions of rewards 1 and 0: all outcomes of a group of three, weighed by their probability."""
    p = 0.3
    exact = p * (1 - p)  # d/dθ of p(θ) = sigmoid(θ), the expected reward
    gradients = dict.fromkeys(ESTIMATORS, 0.0)
    for actions in product([1, 0], repeat=3):
        probability = np.prod([p if a else 1 - p for a in actions])
        scores = np.array([1 - p if a else -p for a in actions])  # ∇ log π
        for estimator in ESTIMATORS:
            advantages, _ = group_advantages(actions, [True] * 3, [0] * 3, estimator=estimator)
            gradients[estimator] += probability * float(np.mean(scores * advantages))
    assert gradients["rloo"] == pytest.approx(exact, rel=1e-12)
    assert gradients["dr_grpo"] == pytest.approx(exact * 2 / 3, rel=1e-12)
    assert gradients["grpo"] != pytest.approx(exact, rel=0.05)
