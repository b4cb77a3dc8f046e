"""Group baselines and task normalisation: hand-computed numbers, a looped reference, then what must never change."""

import math
import statistics
import sys
from subprocess import run

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl_jax.algo.advantages import (
    AdvantageConfig,
    TaskNormalisation,
    compute_advantages,
    group_advantages,
    task_normalise,
)
from agentrl_jax.errors import ConfigError, RecordError

REWARDS = st.sampled_from([-0.2, 0.0, 0.3, 0.5, 1.0])


@st.composite
def scored_batches(draw: st.DrawFn) -> dict[str, np.ndarray]:
    """Up to five groups in up to two tasks, members in random order, some invalid."""
    sizes = draw(st.lists(st.integers(1, 5), min_size=1, max_size=5))
    num = sum(sizes)
    group_ids = np.repeat(np.arange(len(sizes)) * 7 - 3, sizes)
    tasks = draw(st.lists(st.integers(0, 1), min_size=len(sizes), max_size=len(sizes)))
    order = np.array(draw(st.permutations(range(num))))
    valid = np.array(draw(st.lists(st.booleans(), min_size=num, max_size=num)))
    tokens = np.array(draw(st.lists(st.integers(0, 40), min_size=num, max_size=num)))
    return {
        "rewards": np.array(draw(st.lists(REWARDS, min_size=num, max_size=num)))[order],
        "valid": valid[order],
        "group_ids": group_ids[order],
        "num_loss_tokens": np.where(valid, tokens, 0)[order],
        "task_ids": np.repeat(tasks, sizes)[order],
    }


def looped_group_advantages(
    rewards: np.ndarray, valid: np.ndarray, group_ids: np.ndarray, scale_by_std: bool
) -> tuple[list[float], list[bool]]:
    advantages, signals = [], []
    for reward, is_valid, group_id in zip(rewards, valid, group_ids, strict=True):
        peers = [r for r, v, g in zip(rewards, valid, group_ids, strict=True) if v and g == group_id]
        has_signal = bool(is_valid) and len(set(peers)) > 1
        scale = statistics.stdev(peers) + 1e-6 if has_signal and scale_by_std else 1.0
        advantages.append((reward - statistics.fmean(peers)) / scale if has_signal else 0.0)
        signals.append(has_signal)
    return advantages, signals


def test_a_group_of_four_by_hand() -> None:
    advantages, has_signal = group_advantages([1, 0, 0, 0], [True] * 4, [0] * 4, scale_by_std=False)
    assert advantages.tolist() == [0.75, -0.25, -0.25, -0.25]
    assert has_signal.all()
    scaled, _ = group_advantages([1, 0, 0, 0], [True] * 4, [0] * 4, scale_by_std=True)
    np.testing.assert_allclose(scaled, [1.5, -0.5, -0.5, -0.5], rtol=1e-5)  # unbiased std is exactly 0.5


def test_no_vote_from_invalid_members_and_no_signal_from_equal_ones() -> None:
    rewards = [1.0, np.nan, 0.5, 0.5, 1.0, np.nan]
    valid = [True, False, True, True, True, False]
    advantages, has_signal = group_advantages(rewards, valid, [0, 0, 1, 1, 2, 2], scale_by_std=True)
    assert advantages.tolist() == [0.0] * 6
    assert not has_signal.any()


def test_equal_rewards_give_exactly_zero_although_their_mean_is_rounded() -> None:
    assert sum([0.1] * 3) / 3 != 0.1
    advantages, has_signal = group_advantages([0.1] * 3, [True] * 3, [0] * 3, scale_by_std=True)
    assert advantages.tolist() == [0.0] * 3
    assert not has_signal.any()


def test_a_valid_reward_that_is_not_finite_is_refused() -> None:
    with pytest.raises(RecordError, match="finite"):
        group_advantages([1.0, np.inf], [True, True], [0, 0], scale_by_std=False)


@given(scored_batches(), st.booleans())
@settings(max_examples=80, deadline=None)
def test_group_advantages_equal_the_looped_reference(batch: dict[str, np.ndarray], scale_by_std: bool) -> None:
    votes = batch["rewards"], batch["valid"], batch["group_ids"]
    advantages, has_signal = group_advantages(*votes, scale_by_std=scale_by_std)
    expected, signals = looped_group_advantages(*votes, scale_by_std)
    np.testing.assert_allclose(advantages, expected, rtol=1e-9, atol=1e-12)
    assert has_signal.tolist() == signals


@given(scored_batches(), st.floats(-5, 5), st.floats(0.1, 10))
@settings(max_examples=40, deadline=None)
def test_group_advantages_ignore_an_offset_and_follow_a_scale(
    batch: dict[str, np.ndarray], offset: float, scale: float
) -> None:
    votes = batch["valid"], batch["group_ids"]
    plain, signal = group_advantages(batch["rewards"], *votes, scale_by_std=False)
    # Exact rounding may merge rewards that differ; these differ by 0.1 at least.
    moved, moved_signal = group_advantages(batch["rewards"] * scale + offset, *votes, scale_by_std=False)
    np.testing.assert_allclose(moved, plain * scale, atol=1e-12)
    assert moved_signal.tolist() == signal.tolist()


def test_task_statistics_are_of_tokens_by_hand() -> None:
    # Tokens: 1, 1 and −1: mean 1/3, unbiased variance (2 · (2/3)² + (4/3)²) / 2 = 4/3.
    normalised, done = task_normalise([1, -1], [2, 1], [0, 0], [True, True], [0, 1], mode="signal", eps=1e-12)
    np.testing.assert_allclose(normalised, [(2 / 3) / math.sqrt(4 / 3), (-4 / 3) / math.sqrt(4 / 3)])
    assert done.all()


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


@given(scored_batches(), st.sampled_from(["signal", "paper"]))
@settings(max_examples=80, deadline=None)
def test_normalised_tasks_have_zero_mean_and_unit_variance_over_their_tokens(
    batch: dict[str, np.ndarray], mode: TaskNormalisation
) -> None:
    scores = compute_advantages(**batch, config=AdvantageConfig(task_normalisation=mode))
    for task in np.unique(batch["task_ids"]):
        members = (batch["task_ids"] == task) & scores.takes_part
        tokens = np.repeat(scores.advantages[members], batch["num_loss_tokens"][members])
        if scores.is_normalised[batch["task_ids"] == task].all():
            assert abs(tokens.mean()) < 1e-9
            assert tokens.std(ddof=1) == pytest.approx(1.0, abs=1e-4) or not tokens.any()
    if mode == "signal":
        assert (scores.advantages[~scores.has_signal] == 0.0).all()
        assert scores.takes_part.tolist() == scores.has_signal.tolist()
    assert np.isfinite(scores.advantages).all()


@given(scored_batches(), st.sampled_from(["off", "signal", "paper"]), st.randoms(use_true_random=False))
@settings(max_examples=40, deadline=None)
def test_the_order_of_trajectories_does_not_matter(
    batch: dict[str, np.ndarray], mode: TaskNormalisation, random
) -> None:
    config = AdvantageConfig(task_normalisation=mode)
    order = np.array(random.sample(range(len(batch["valid"])), len(batch["valid"])))
    straight = compute_advantages(**batch, config=config)
    shuffled = compute_advantages(**{name: value[order] for name, value in batch.items()}, config=config)
    np.testing.assert_allclose(shuffled.advantages, straight.advantages[order], rtol=1e-9, atol=1e-12)
    assert shuffled.is_normalised.tolist() == straight.is_normalised[order].tolist()


@pytest.mark.parametrize("mode", ["off", "signal", "paper"])
def test_no_trajectories_give_no_advantages(mode: TaskNormalisation) -> None:
    config = AdvantageConfig(task_normalisation=mode)
    scores = compute_advantages([], [], [], [], [], config)
    assert len(scores.advantages) == len(scores.takes_part) == len(scores.is_normalised) == 0


@pytest.mark.parametrize("options", [{"task_normalisation": "on"}, {"eps": 0.0}, {"eps": float("nan")}])
def test_wrong_options_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match="got"):
        AdvantageConfig(**options)


def test_the_host_side_needs_no_jax() -> None:
    modules = "agentrl_jax.packing", "agentrl_jax.algo.metrics", "agentrl_jax.algo.intervals"
    code = f"import sys, {', '.join(modules)}; sys.exit('jax' in sys.modules or 'trio' in sys.modules)"
    assert run([sys.executable, "-c", code], check=False).returncode == 0
