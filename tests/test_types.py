"""Host records: what they derive, and what they refuse."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl_jax.errors import RecordError
from agentrl_jax.types import (
    Completion,
    EpisodeEnd,
    Group,
    SamplingParams,
    Segment,
    Task,
    Trajectory,
    Turn,
    VersionSpan,
    as_ids,
)
from tests.algo.record_builders import make_group, make_segment, make_trajectory, make_turn


def make_completion(**changes: Any) -> Completion:
    fields: dict[str, Any] = {
        "ids": [5, 6, 7],
        "logprobs": [-1.0, -2.0, -3.0],
        "version_spans": (VersionSpan(version=4, start=0, end=2), VersionSpan(version=5, start=2, end=3)),
        "finish_reason": "stop",
        "engine": "e0",
        "pool": "current",
    }
    return Completion(**(fields | changes))


def test_a_completion_by_hand() -> None:
    completion = make_completion()
    assert completion.versions.tolist() == [4, 4, 5]
    assert completion.loss_mask.tolist() == [True] * 3
    assert (completion.ids.dtype, completion.logprobs.dtype) == (np.int32, np.float32)


def test_a_masked_token_has_no_behavior_logprob_whatever_its_client_left_there() -> None:
    completion = make_completion(loss_mask=[True, False, True])
    segment = make_segment(Turn(context_ids=as_ids([1]), completion=completion))
    assert segment.behavior_logprobs.tolist() == [0.0, -1.0, 0.0, -3.0]
    assert segment.behavior_logprobs.dtype == np.float32


def test_a_completion_owns_arrays_that_nobody_can_change() -> None:
    ids = np.array([5, 6, 7], np.int32)
    completion = make_completion(ids=ids)
    ids[0] = 99
    assert completion.ids.tolist() == [5, 6, 7]
    for array in (completion.ids, completion.logprobs, completion.loss_mask):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"ids": []}, "at least one id"),
        ({"ids": [5, 6]}, "one length"),
        ({"ids": [5, 6, 1.5]}, r"ids must be integers in \[0, 2\^31\), got float64"),
        ({"ids": [5, 6, -1]}, "ids must be integers in"),
        ({"ids": np.array([5, 6, 2**32 + 7])}, "ids must be integers in"),
        ({"loss_mask": []}, "one length, got 3, 3 and 0"),
        ({"ids": [[5, 6, 7]]}, "vector"),
        ({"logprobs": [-1.0, np.nan, -1.0]}, "finite"),
        ({"logprobs": [-1.0, -np.inf, -1.0]}, "finite"),
        ({"logprobs": [-1.0, 0.1, -1.0]}, "<= 0"),
        ({"loss_mask": [True]}, "one length"),
        ({"version_spans": ()}, "cover"),
        ({"version_spans": (VersionSpan(version=1, start=0, end=2),)}, "cover"),
        ({"version_spans": (VersionSpan(version=1, start=0, end=4),)}, "cover"),
        (
            {"version_spans": (VersionSpan(version=1, start=0, end=2), VersionSpan(version=2, start=1, end=3))},
            "in order",
        ),
        ({"version_spans": (VersionSpan(version=1, start=0, end=0), VersionSpan(version=2, start=0, end=3))}, "order"),
        ({"finish_reason": "abort"}, "'abort'"),
        ({"pool": "stale"}, "'stale'"),
        ({"cached_tokens": -1}, "cached_tokens must be >= 0, got -1"),
    ],
)
def test_a_completion_that_breaks_its_contract_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(RecordError, match=message):
        make_completion(**changes)


@pytest.mark.parametrize("ids", [[1.5], [-1], [2**31]])
def test_context_ids_are_token_ids(ids: list) -> None:
    with pytest.raises(RecordError, match="context_ids must be integers in"):
        Turn(context_ids=ids, completion=make_completion())
    with pytest.raises(RecordError, match="ids must be integers in"):
        as_ids(ids)
    assert (as_ids([]).dtype, as_ids([]).shape) == (np.int32, (0,))


def test_versions_are_counted_from_zero() -> None:
    with pytest.raises(RecordError, match="version must be >= 0, got -1"):
        VersionSpan(version=-1, start=0, end=1)
    with pytest.raises(RecordError, match="start_version must be >= 0, got -1"):
        replace(make_group([1.0]), start_version=-1)


def test_a_segment_interleaves_context_and_samples() -> None:
    segment = make_segment(make_turn(2, 2, version=3, first_id=10, masked=[1]), make_turn(1, 1, version=4, first_id=20))
    assert segment.ids.tolist() == [1, 2, 10, 11, 1, 20]
    assert segment.loss_mask.tolist() == [False, False, True, False, False, True]
    assert segment.versions.tolist() == [-1, -1, 3, 3, -1, 4]
    np.testing.assert_allclose(segment.behavior_logprobs, [0, 0, -0.5, 0, 0, -0.5])
    assert segment.num_loss_tokens == 2
    assert [x.dtype.name for x in (segment.ids, segment.loss_mask, segment.versions, segment.behavior_logprobs)] == [
        "int32",
        "bool",
        "int32",
        "float32",
    ]


@given(st.lists(st.tuples(st.integers(1, 5), st.integers(1, 5)), min_size=1, max_size=5))
@settings(max_examples=30, deadline=None)
def test_all_vectors_of_a_segment_have_one_length(sizes: list[tuple[int, int]]) -> None:
    segment = make_segment(*(make_turn(context, sampled) for context, sampled in sizes))
    vectors = segment.ids, segment.loss_mask, segment.versions, segment.behavior_logprobs
    assert {len(vector) for vector in vectors} == {sum(context + sampled for context, sampled in sizes)}
    assert segment.num_loss_tokens == sum(sampled for _, sampled in sizes)


def test_a_segment_needs_a_prompt() -> None:
    with pytest.raises(RecordError, match="prompt"):
        make_segment(make_turn(0, 2))
    with pytest.raises(RecordError, match="at least one turn"):
        Segment(turns=())
    assert len(make_segment(make_turn(1, 1), make_turn(0, 2)).ids) == 4


def test_a_trajectory_counts_all_its_segments() -> None:
    trajectory = make_trajectory(1.0, make_segment(make_turn(2, 3)), make_segment(make_turn(1, 1), make_turn(1, 2)))
    assert (trajectory.num_tokens, trajectory.num_loss_tokens, len(trajectory.turns)) == (10, 6, 3)
    assert trajectory.episode_id == "g0-m0"
    assert make_trajectory(-0.2, end=EpisodeEnd.CONTEXT_LIMIT).num_tokens == 0


@pytest.mark.parametrize(
    ("reward", "end", "message"),
    [
        (None, EpisodeEnd.COMPLETED, "cannot have reward"),
        (None, EpisodeEnd.MAX_TURNS, "cannot have reward"),
        (float("nan"), EpisodeEnd.COMPLETED, "finite"),
    ],
)
def test_reward_and_end_must_agree(reward: float | None, end: EpisodeEnd, message: str) -> None:
    with pytest.raises(RecordError, match=message):
        make_trajectory(reward, end=end)


def test_what_the_env_gave_must_be_finite() -> None:
    with pytest.raises(RecordError, match="finite"):
        make_trajectory(-0.2, env_reward=float("nan"), end=EpisodeEnd.MAX_TURNS)


def test_group_members_are_numbered_and_of_one_task() -> None:
    group = make_group([1.0, 0.0])
    with pytest.raises(RecordError, match=r"0\.\.G-1"):
        Group(group_id=0, task=group.task, start_version=0, trajectories=group.trajectories[::-1])
    with pytest.raises(RecordError, match="of its task"):
        Group(group_id=1, task=group.task, start_version=0, trajectories=group.trajectories)


@pytest.mark.parametrize(
    ("rewards", "has_signal"),
    [
        ([1.0, 0.0], True),
        ([1.0, 1.0], False),
        ([1.0, None], False),
        ([1.0, None, 0.0], True),
        ([1.0], False),
        ([0.1 + 0.2, 0.3], False),  # one reward, added up in two orders
    ],
)
def test_signal_needs_two_valid_rewards_that_differ(rewards: list[float | None], has_signal: bool) -> None:
    assert make_group(rewards).has_signal is has_signal


def test_an_episode_that_ended_before_its_first_token_is_valid_but_has_no_vote() -> None:
    early = make_trajectory(-0.2, end=EpisodeEnd.WALL_TIMEOUT)
    late = make_trajectory(-0.2, make_segment(), end=EpisodeEnd.WALL_TIMEOUT)
    broken = make_trajectory(None, make_segment(), end=EpisodeEnd.ENV_ERROR)
    assert [(t.end.is_valid, t.votes) for t in (early, late, broken)] == [(True, False), (True, True), (False, False)]
    silent = [[make_segment()], [make_segment()], []]
    assert not make_group([0.0, 0.0, -0.2], segments=silent).has_signal
    assert make_group([0.0, 1.0, -0.2], segments=silent).has_signal


def test_every_end_has_a_status_and_infrastructure_ends_neither_vote_nor_teach() -> None:
    infrastructure = {end for end in EpisodeEnd if end.is_infrastructure}
    names = {"env_timeout", "env_error", "engine_error", "cancelled"}
    assert {end.value for end in infrastructure} == names
    assert {end.value: end.agentrl_status for end in EpisodeEnd} == {
        "completed": "completed",
        "max_turns": "task limit reached",
        "context_limit": "agent context limit",
        "turn_truncated": "agent context limit",
        "invalid_action": "agent invalid action",
        "validation_failed": "agent validation failed",
        "wall_timeout": "task limit reached",
        "env_timeout": "task error",
        "env_error": "task error",
        "engine_error": "cancelled",
        "cancelled": "cancelled",
    }
    for end in EpisodeEnd:
        assert end.is_valid is (end not in infrastructure)


def test_a_task_has_one_key_and_no_negative_numbers() -> None:
    assert Task(env="db", split="eval", index=3, seed=9).key == "db/eval/3/9"
    for numbers in ({"index": -1, "seed": 0}, {"index": 0, "seed": -1}):
        with pytest.raises(RecordError, match=">= 0"):
            Task(env="db", split="eval", **numbers)


@pytest.mark.parametrize(
    "changes",
    [
        {"temperature": -0.1},
        {"temperature": float("nan")},
        {"temperature": float("inf")},
        {"max_new_tokens": 0},
        {"stop_ids": ()},
    ],
)
def test_wrong_sampling_params_are_refused(changes: dict[str, Any]) -> None:
    fields: dict[str, Any] = {"temperature": 1.0, "max_new_tokens": 1, "seed": 0, "stop_ids": (2,)}
    assert SamplingParams(**fields).stop_ids == (2,)
    with pytest.raises(RecordError, match="got"):
        SamplingParams(**(fields | changes))


def test_a_turns_reward_is_finite_and_its_calls_are_counted_from_zero() -> None:
    with pytest.raises(RecordError, match="finite"):
        Turn(context_ids=np.array([1], np.int32), completion=make_completion(), reward=float("inf"))
    with pytest.raises(RecordError, match="num_calls must be >= 0, got -1"):
        Turn(context_ids=np.array([1], np.int32), completion=make_completion(), num_calls=-1)
    with pytest.raises(RecordError, match=r"num_bare_calls must be in \[0, 1\], got 2"):
        Turn(context_ids=np.array([1], np.int32), completion=make_completion(), num_calls=1, num_bare_calls=2)


def test_ids_are_a_read_only_copy() -> None:
    source = np.array([[1, 2], [3, 4]])
    ids = as_ids(source)
    source[0, 0] = 9
    assert (ids.tolist(), ids.dtype, ids.flags.writeable) == ([1, 2, 3, 4], np.int32, False)
    assert isinstance(make_trajectory(1.0), Trajectory)
