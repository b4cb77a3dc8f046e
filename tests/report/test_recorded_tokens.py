"""Segments found again in a recorded batch: the right one or none."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from agentrl_jax.algo.advantages import AdvantageConfig
from agentrl_jax.batch import Scores
from agentrl_jax.batch_files import save_batch
from agentrl_jax.packing import PackingConfig, build_batch
from agentrl_jax.report.recorded_tokens import RATIO_EDGES, RecordedTokens
from agentrl_jax.types import Group, Segment
from tests.algo.record_builders import make_group, make_segment, make_turn

PACKING = PackingConfig(row_tokens=(16,), rows_per_micro_batch=2)


def recorded(path: Path, groups: Sequence[Group], difference: float | None = 0.25) -> RecordedTokens:
    """The batch of `groups`, whose learner gives every token `difference` nats more than its engine did."""
    batch = build_batch(
        groups,
        advantages=AdvantageConfig(estimator="rloo", task_normalisation="off"),
        packing=PACKING,
        learner_version=3,
    )
    scores = [
        Scores(logprobs=m.behavior_logprobs + np.float32(difference))
        for m in batch.micro_batches
        if difference is not None
    ]
    save_batch(path, batch, scores)
    return RecordedTokens(path)


def good_and_bad() -> tuple[Group, list[Segment]]:
    segments = [
        make_segment(make_turn(2, 3, first_id=20, version=1)),
        make_segment(make_turn(2, 4, first_id=40, version=2, masked=[1])),
    ]
    return make_group([1.0, 0.0], segments=[[segment] for segment in segments]), segments


def test_a_segment_has_its_own_figures(tmp_path: Path) -> None:
    group, (good, bad) = good_and_bad()
    batch = recorded(tmp_path / "b.npz", [group])
    found = batch.segment(good.ids, good.behavior_logprobs)
    assert found is not None
    assert found.advantages.tolist() == [0, 0, 1, 1, 1]
    assert found.version_lag.tolist() == [0, 0, 2, 2, 2]
    assert found.logprobs is not None
    np.testing.assert_allclose(found.logprobs[2:], good.behavior_logprobs[2:] + 0.25)
    other = batch.segment(bad.ids, None)
    assert other is not None
    assert other.advantages.tolist() == [0, 0, -1, 0, -1, -1]
    assert other.loss_mask.tolist() == [False, False, True, False, True, True]
    assert other.reference_logprobs is None


def test_a_segment_that_is_not_there_is_not_found(tmp_path: Path) -> None:
    group, (good, _) = good_and_bad()
    batch = recorded(tmp_path / "b.npz", [group])
    assert batch.segment(good.ids[:-1], None) is None


def test_of_equal_ids_those_of_the_same_logprobs_are_meant(tmp_path: Path) -> None:
    """Two groups sampled the same ids, one with success in the better group: by ids alone nothing can be said."""
    likely, unlikely = make_segment(make_turn(2, 3)), make_segment(make_turn(2, 3))
    object.__setattr__(unlikely.turns[0].completion, "logprobs", np.full(3, -3, np.float32))
    loser = make_segment(make_turn(2, 3, first_id=90))
    groups = [
        make_group([1.0, 0.0], segments=[[likely], [loser]]),
        make_group([0.0, 1.0], group_id=1, segments=[[unlikely], [loser]]),
    ]
    batch = recorded(tmp_path / "b.npz", groups)
    assert batch.segment(likely.ids, None) is None
    pair = [batch.segment(s.ids, s.behavior_logprobs) for s in (likely, unlikely)]
    assert [found.advantages.tolist()[-1] for found in pair if found] == [1, -1]
    assert batch.segment(loser.ids, loser.behavior_logprobs) is None  # once bad, once good: the same in all else


def test_equal_segments_that_say_the_same_are_one(tmp_path: Path) -> None:
    same = [
        [make_segment(make_turn(2, 3))],
        [make_segment(make_turn(2, 3))],
        [make_segment(make_turn(2, 3, first_id=50))],
    ]
    batch = recorded(tmp_path / "b.npz", [make_group([1.0, 1.0, 0.0], segments=same)])
    found = batch.segment(same[0][0].ids, None)
    assert found is not None
    assert found.advantages.tolist() == [0, 0, 0.5, 0.5, 0.5]


def test_ratios_are_counted_by_distance_from_one(tmp_path: Path) -> None:
    group, _ = good_and_bad()
    for difference, bar in ((0.0, 0), (0.0015, 1), (-0.0015, -1), (0.3, 8), (-9.0, -11), (9.0, 11)):
        counts = recorded(tmp_path / "b.npz", [group], difference).ratio_counts()
        assert counts[len(RATIO_EDGES) + bar] == counts.sum() == 6
    for unknown in (None, float("nan")):
        assert recorded(tmp_path / "b.npz", [group], unknown).ratio_counts().tolist() == [0] * 23
