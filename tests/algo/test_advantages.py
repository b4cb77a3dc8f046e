"""From outcomes to advantages: how the parts fit together, what is refused, what must never change."""

import sys
from dataclasses import replace
from subprocess import run
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl_jax.algo.advantages import AdvantageConfig, compute_advantages
from agentrl_jax.algo.baselines import group_advantages
from agentrl_jax.algo.outcomes import Outcomes, outcomes_of
from agentrl_jax.errors import ConfigError
from agentrl_jax.types import EpisodeEnd, Task, Trajectory
from tests.algo.record_builders import make_group, make_segment, make_turn
from tests.algo.score_batches import outcomes, reordered

CONFIGS = [
    AdvantageConfig(),
    AdvantageConfig(task_normalisation="off"),
    AdvantageConfig(task_normalisation="paper"),
    AdvantageConfig(estimator="dr_grpo", weighting="sequence"),
    AdvantageConfig(estimator="rloo", task_normalisation="paper"),
    AdvantageConfig(estimator="reinforce_pp_baseline", task_normalisation="off"),
    AdvantageConfig(estimator="reinforce_pp_baseline", task_normalisation="off", weighting="sequence"),
    AdvantageConfig(estimator="rloo", credit="turn", task_normalisation="off"),
    AdvantageConfig(estimator="rloo", credit="turn", discount=0.5, weighting="sequence"),
    AdvantageConfig(estimator="dr_grpo", credit="turn", task_normalisation="paper"),
]


def four_members(**changes: Any) -> Outcomes:
    """Two groups of two in one task; of two, one, one and two turns of one token each."""
    fields: dict[str, Any] = {
        "rewards": np.array([1.0, 0.0, 0.5, 0.0]),
        "votes": np.ones(4, np.bool_),
        "group_ids": np.array([0, 0, 1, 1]),
        "task_ids": np.zeros(4, np.int64),
        "num_turns": np.array([2, 1, 1, 2]),
        "turn_rewards": np.array([0.25, 0.75, 0.0, 0.5, 0.0, 0.0]),
        "turn_loss_tokens": np.ones(6, np.int64),
    }
    return Outcomes(**(fields | changes))


def test_credit_by_trajectory_and_by_turn_by_hand() -> None:
    plain = AdvantageConfig(estimator="rloo", task_normalisation="off")
    assert compute_advantages(four_members(), plain).advantages.tolist() == [1.0, 1.0, -1.0, 0.5, -0.5, -0.5]
    by_turn = compute_advantages(four_members(), replace(plain, credit="turn"))
    assert by_turn.advantages.tolist() == [1.0, 0.75, -1.0, 0.5, -0.5, -0.5]
    discounted = compute_advantages(four_members(), replace(plain, credit="turn", discount=0.0))
    assert discounted.advantages.tolist() == [0.25, 0.75, -0.25, 0.5, -0.5, -0.5]


def test_whitening_is_over_the_tokens_of_the_whole_batch_by_hand() -> None:
    config = AdvantageConfig(estimator="reinforce_pp_baseline", task_normalisation="off", eps=1e-12)
    two_tasks = four_members(task_ids=np.array([0, 0, 1, 1]))
    centred = np.array([0.5, 0.5, -0.5, 0.25, -0.25, -0.25])
    scores = compute_advantages(two_tasks, config)
    np.testing.assert_allclose(scores.advantages, (centred - centred.mean()) / centred.std(ddof=1), rtol=1e-9)
    assert scores.is_normalised.all()


def test_a_group_without_signal_is_not_whitened() -> None:
    config = AdvantageConfig(estimator="reinforce_pp_baseline", task_normalisation="off")
    batch = four_members(rewards=np.array([1.0, 0.0, 0.5, 0.5]))
    assert compute_advantages(batch, config).advantages.tolist() == [0.5, 0.5, -0.5, 0.0, 0.0, 0.0]


@pytest.mark.parametrize("config", CONFIGS)
@given(batch=outcomes())
@settings(max_examples=20, deadline=None)
def test_only_what_takes_part_has_an_advantage_and_all_is_finite(config: AdvantageConfig, batch: Outcomes) -> None:
    scores = compute_advantages(batch, config)
    owner = np.repeat(np.arange(len(batch.rewards)), batch.num_turns)
    assert np.isfinite(scores.advantages).all()
    assert len(scores.advantages) == len(batch.turn_rewards)
    assert not scores.advantages[~scores.takes_part[owner]].any()
    if config.task_normalisation == "paper":
        assert scores.takes_part.tolist() == batch.votes.tolist()
    else:
        assert scores.takes_part.tolist() == scores.has_signal.tolist()


@pytest.mark.parametrize("config", CONFIGS)
@given(batch=outcomes(), random=st.randoms(use_true_random=False))
@settings(max_examples=15, deadline=None)
def test_the_order_of_trajectories_does_not_matter(config: AdvantageConfig, batch: Outcomes, random: Any) -> None:
    order = np.array(random.sample(range(len(batch.rewards)), len(batch.rewards)))
    shuffled_batch, turns = reordered(batch, order)
    straight, shuffled = compute_advantages(batch, config), compute_advantages(shuffled_batch, config)
    np.testing.assert_allclose(shuffled.advantages, straight.advantages[turns], rtol=1e-8, atol=1e-8)
    assert shuffled.is_normalised.tolist() == straight.is_normalised[order].tolist()
    assert shuffled.has_signal.tolist() == straight.has_signal[order].tolist()


@given(outcomes(least_turns=1))
@settings(max_examples=30, deadline=None)
def test_how_a_trajectory_is_cut_into_turns_changes_no_trajectory_credit(batch: Outcomes) -> None:
    owner = np.repeat(np.arange(len(batch.rewards)), batch.num_turns)
    tokens = np.bincount(owner, weights=batch.turn_loss_tokens).astype(np.int64)
    whole = replace(batch, num_turns=np.ones_like(batch.num_turns), turn_rewards=batch.rewards, turn_loss_tokens=tokens)
    for config in CONFIGS[:7]:
        cut, uncut = compute_advantages(batch, config), compute_advantages(whole, config)
        trained = (batch.turn_loss_tokens > 0) | (tokens[owner] == 0)
        np.testing.assert_allclose(cut.advantages[trained], uncut.advantages[owner][trained], rtol=1e-9, atol=1e-9)
        assert cut.is_normalised.tolist() == uncut.is_normalised.tolist()


@pytest.mark.parametrize("config", CONFIGS)
def test_no_trajectories_give_no_advantages(config: AdvantageConfig) -> None:
    scores = compute_advantages(outcomes_of([], [], []), config)
    assert len(scores.advantages) == len(scores.takes_part) == len(scores.is_normalised) == 0


def test_outcomes_of_records_by_hand() -> None:
    turns = make_turn(1, 3, masked=[1]), replace(make_turn(1, 2), reward=0.5)
    groups = [
        make_group([1.0, None], group_id=9, env="b", segments=[[make_segment(turns[0]), make_segment(turns[1])], []]),
        make_group([0.0], group_id=9, env="a", segments=[[make_segment()]]),
    ]
    found = outcomes_of(groups, [True, False, False], ["a", "b"])
    assert (found.rewards[[0, 2]].tolist(), found.votes.tolist()) == ([1.0, 0.0], [True, False, True])
    assert (found.group_ids.tolist(), found.task_ids.tolist()) == ([0, 0, 1], [1, 1, 0])
    assert (found.num_turns.tolist(), found.turn_rewards.tolist()) == ([2, 0, 1], [0.0, 0.5, 0.0])
    assert found.turn_loss_tokens.tolist() == [2, 2, 0]


def test_masking_concerns_episodes_that_ran_out_of_tokens_only() -> None:
    task = Task(env="a", split="train", index=0, seed=0)
    played = [
        Trajectory(task=task, group_id=0, member=0, end=end, reward=given, env_reward=None, segments=())
        for end in EpisodeEnd
        for given in [None if end.is_infrastructure else 0.0]
    ]
    taught = {
        mode: {each.end for each in played if AdvantageConfig(overlong=mode).teaches(each)}
        for mode in ("train", "mask")
    }
    assert taught["train"] == {end for end in EpisodeEnd if end.is_valid}
    assert taught["train"] - taught["mask"] == {EpisodeEnd.CONTEXT_LIMIT, EpisodeEnd.TURN_TRUNCATED}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"estimator": "gae"}, "estimator must be one of .*'gae'"),
        ({"credit": "token"}, "credit must be one of trajectory, turn, got 'token'"),
        ({"task_normalisation": "on"}, "one of off, signal, paper, got 'on'"),
        ({"weighting": "turn"}, "one of token, sequence, got 'turn'"),
        ({"overlong": "drop"}, "one of train, mask, got 'drop'"),
        ({"eps": 0.0}, "eps"),
        ({"eps": float("nan")}, "eps"),
        ({"eps": 0.1, "estimator": "rloo", "task_normalisation": "off"}, "eps has no effect with estimator=rloo"),
        ({"discount": 1.5, "credit": "turn"}, r"\[0, 1\], got 1.5"),
        ({"discount": float("nan")}, "discount"),
        ({"discount": 0.9}, "discount has no effect with credit=trajectory"),
        ({"credit": "turn"}, "defined for estimator rloo and dr_grpo, got grpo"),
        ({"credit": "turn", "estimator": "reinforce_pp_baseline", "task_normalisation": "off"}, "got reinforce_pp"),
        ({"estimator": "reinforce_pp_baseline"}, "set task_normalisation=off, got signal"),
        ({"weighting": "sequence", "task_normalisation": "off"}, "weighting=sequence has no effect"),
        ({"weighting": "sequence", "task_normalisation": "paper"}, "published formula, which weighs tokens"),
    ],
)
def test_wrong_options_and_combinations_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        AdvantageConfig(**options)


@pytest.mark.parametrize(
    ("start", "change"),
    [
        *[
            ({"task_normalisation": "off"}, {"estimator": name})
            for name in ("dr_grpo", "rloo", "reinforce_pp_baseline")
        ],
        ({"estimator": "rloo"}, {"credit": "turn"}),
        ({"estimator": "rloo", "credit": "turn"}, {"discount": 0.5}),
        *[({}, {"task_normalisation": mode}) for mode in ("off", "paper")],
        ({}, {"weighting": "sequence"}),
        *[(start, {"eps": 0.1}) for start in ({}, {"task_normalisation": "off"}, {"estimator": "rloo"})],
    ],
)
def test_every_option_reaches_the_advantages(start: dict[str, Any], change: dict[str, Any]) -> None:
    """`overlong` decides which episodes teach: tests/test_packing.py."""
    batch = Outcomes(
        rewards=np.array([1.0, 0.0, 0.5, 0.0, 0.25, 0.25]),
        votes=np.ones(6, np.bool_),
        group_ids=np.array([0, 0, 1, 1, 2, 2]),
        task_ids=np.zeros(6, np.int64),
        num_turns=np.array([2, 1, 1, 2, 1, 1]),
        turn_rewards=np.array([0.25, 0.75, 0.0, 0.5, 0.0, 0.0, 0.25, 0.25]),
        turn_loss_tokens=np.array([5, 1, 1, 2, 1, 3, 4, 4]),
    )
    before, after = (
        compute_advantages(batch, AdvantageConfig(**options)).advantages for options in (start, start | change)
    )
    assert not np.allclose(before, after, rtol=1e-3)


def test_every_estimator_that_credit_by_turn_takes_is_scaled_as_by_trajectory() -> None:
    batch = four_members(turn_rewards=np.zeros(6))
    for estimator in ("rloo", "dr_grpo"):
        config = AdvantageConfig(estimator=estimator, credit="turn", task_normalisation="off")
        expected, _ = group_advantages(batch.rewards, batch.votes, batch.group_ids, estimator=estimator)
        found = compute_advantages(batch, config).advantages
        np.testing.assert_allclose(found, np.repeat(expected, batch.num_turns), rtol=1e-12)


def test_the_host_side_needs_no_jax() -> None:
    modules = "agentrl_jax.batch_files", "agentrl_jax.algo.metrics", "agentrl_jax.algo.intervals"
    code = f"import sys, {', '.join(modules)}; sys.exit('jax' in sys.modules or 'trio' in sys.modules)"
    assert run([sys.executable, "-c", code], check=False).returncode == 0
