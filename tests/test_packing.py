"""Packing: exact contents by hand, then what neither bucket, order nor micro-batch size may change."""

import time
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl_jax.algo.advantages import AdvantageConfig
from agentrl_jax.errors import ConfigError, RecordError
from agentrl_jax.packing import PackingConfig, build_batch, pack_demonstrations, pack_segments, unpack
from agentrl_jax.types import EpisodeEnd, Group
from tests.algo.record_builders import make_group, make_segment, make_trajectory, make_turn
from tests.packed_groups import ARRAYS, PLAIN, one_row, stacked, varied_groups


def test_one_group_in_one_row_by_hand() -> None:
    first = make_segment(make_turn(2, 2, version=4, first_id=10), make_turn(1, 1, version=5, first_id=20))
    second = make_segment(make_turn(1, 2, version=5, first_id=30, masked=[0]))
    group = make_group([1.0, 0.0], segments=[[first], [second]])
    batch = build_batch([group], advantages=PLAIN, packing=one_row(12), learner_version=7)
    (row,) = batch.micro_batches
    assert row.ids.tolist() == [[1, 2, 10, 11, 1, 20, 1, 30, 31, 0, 0, 0]]
    assert row.positions.tolist() == [[0, 1, 2, 3, 4, 5, 0, 1, 2, 0, 0, 0]]
    assert row.segment_ids.tolist() == [[1, 1, 1, 1, 1, 1, 2, 2, 2, 0, 0, 0]]
    assert row.loss_mask.astype(int).tolist() == [[0, 0, 1, 1, 0, 1, 0, 0, 1, 0, 0, 0]]
    assert row.has_signal.tolist() == row.loss_mask.tolist()
    assert row.advantages.tolist() == [[0, 0, 0.5, 0.5, 0, 0.5, 0, 0, -0.5, 0, 0, 0]]
    assert row.version_lag.tolist() == [[0, 0, 3, 3, 0, 2, 0, 0, 2, 0, 0, 0]]
    np.testing.assert_allclose(row.behavior_logprobs, [[0, 0, -0.5, -0.51, 0, -0.5, 0, 0, -0.51, 0, 0, 0]], rtol=1e-6)
    assert (batch.loss_weight, batch.num_loss_tokens, batch.num_tokens, batch.efficiency) == (4.0, 4, 9, 0.75)
    assert (batch.task_names, batch.row_tokens) == (("search",), 12)
    assert batch.stats["token_staleness_max"] == 3.0
    assert batch.stats["advantage_abs_mean"] == 0.5
    assert [getattr(row, name).dtype.name for name in ARRAYS] == [
        "int32", "int32", "int32", "bool", "bool", "float32", "float32", "int32", "int32", "int32",
    ]  # fmt: skip


def test_a_group_without_signal_keeps_its_loss_mask_only() -> None:
    groups = [make_group([1.0, 1.0], group_id=0), make_group([1.0, 0.0], group_id=1)]
    batch = build_batch(groups, advantages=PLAIN, packing=one_row(10), learner_version=0)
    rows = stacked(batch)
    assert (batch.num_loss_tokens, batch.loss_weight) == (12, 6.0)
    assert (rows.advantages[~rows.has_signal] == 0).all()
    assert (batch.stats["num_signal_groups"], batch.stats["num_groups"]) == (1.0, 2.0)


def test_paper_mode_lets_every_valid_trajectory_take_part_and_no_other() -> None:
    groups = [make_group([1.0, 1.0], group_id=0), make_group([1.0, 0.0, None, 0.0], group_id=1)]
    batch = build_batch(
        groups, advantages=AdvantageConfig(task_normalisation="paper"), packing=one_row(10), learner_version=0
    )
    rows = stacked(batch)
    assert batch.loss_weight == batch.num_loss_tokens == 15
    assert rows.advantages[rows.loss_mask].mean() == pytest.approx(0.0, abs=1e-6)
    assert rows.advantages[rows.loss_mask].std(ddof=1) == pytest.approx(1.0, abs=1e-4)


def test_records_and_arrays_agree_on_which_groups_have_signal() -> None:
    groups = varied_groups(5)
    batch = build_batch(groups, advantages=PLAIN, packing=one_row(64), learner_version=9)
    tokens = sum(t.num_loss_tokens for g in groups if g.has_signal for t in g.trajectories if t.end.is_valid)
    assert batch.loss_weight == tokens < batch.num_loss_tokens


def test_tasks_are_named_alphabetically_and_tasks_without_two_signals_are_counted() -> None:
    groups = [make_group([1.0, 0.0], group_id=i, env=env) for i, env in enumerate("zxyawz")]
    batch = build_batch(groups, advantages=AdvantageConfig(), packing=one_row(10), learner_version=0)
    rows = stacked(batch)
    assert batch.task_names == tuple("awxyz")
    assert np.bincount(rows.task_ids[rows.loss_mask]).tolist() == [6, 6, 6, 6, 12]
    assert batch.stats["num_tasks_not_normalised"] == 4.0


def test_the_bucket_with_the_fewest_slots_wins_and_the_smaller_of_equals() -> None:
    def bucket(lengths: list[int], *buckets: int, rows: int = 1) -> tuple[int, int]:
        micro_batches = pack_segments(lengths, {}, PackingConfig(row_tokens=buckets, rows_per_micro_batch=rows))
        return len(micro_batches), micro_batches[0].ids.shape[1]

    assert bucket([5, 5], 4, 6, 10) == (1, 10)  # 2 · 6 > 10
    assert bucket([3, 3], 4, 8) == (2, 4)  # 8 = 8
    assert bucket([6, 2], 4, 8, 16) == (1, 8)
    assert bucket([3, 3, 3], 4, 10, rows=2) == (2, 4)  # 4 · 4 < 2 · 10, empty rows included, although 3 · 4 > 10


def test_every_micro_batch_has_the_same_shape_and_the_last_is_padded() -> None:
    config = PackingConfig(row_tokens=(8,), rows_per_micro_batch=3)
    micro_batches = pack_segments([8, 8, 8, 8], {"loss_mask": np.ones(32, np.bool_)}, config)
    assert [batch.ids.shape for batch in micro_batches] == [(3, 8), (3, 8)]
    last = micro_batches[1]
    assert last.segment_ids[1:].max() == last.positions[1:].max() == 0
    assert not last.loss_mask[1:].any()


def test_a_column_has_a_value_for_each_token() -> None:
    for num in (4, 6):
        with pytest.raises(RecordError, match=f"5 values, one a token, got {{'ids': {num}}}"):
            pack_segments([2, 3], {"ids": np.zeros(num, np.int32)}, one_row(8))


def test_a_column_that_no_batch_has_is_refused() -> None:
    with pytest.raises(RecordError, match=r"must be fields of a packed TokenBatch, got advantage$"):
        pack_segments([2], {"ids": np.zeros(2, np.int32), "advantage": np.ones(2, np.float32)}, one_row(8))


def test_thousands_of_segments_pack_tightly_and_at_once() -> None:
    lengths = np.clip(np.random.default_rng(0).lognormal(7.3, 0.8, 4096), 200, 8192).astype(int)
    ids = np.arange(lengths.sum(), dtype=np.int32)
    config = PackingConfig(row_tokens=(8192,), rows_per_micro_batch=2)
    start = time.process_time()
    micro_batches = pack_segments(lengths, {"ids": ids}, config)
    assert time.process_time() - start < 1.0
    rows = np.concatenate([batch.ids for batch in micro_batches])
    assert lengths.sum() / rows.size >= 0.98
    seen = np.zeros(lengths.sum(), np.bool_)
    seen[rows[np.concatenate([batch.segment_ids for batch in micro_batches]) > 0]] = True
    assert seen.all()


def test_a_segment_that_is_too_long_is_named() -> None:
    group = make_group([1.0, 0.0], group_id=5, segments=[[make_segment(make_turn(9, 9))], [make_segment()]])
    with pytest.raises(RecordError, match=r"g5-m0 of search/train/0/0.*18 tokens.*16"):
        build_batch([group], advantages=PLAIN, packing=one_row(16), learner_version=0)
    with pytest.raises(RecordError, match="demonstration 0"):
        pack_demonstrations([(np.ones(17, np.int32), np.zeros(17, np.bool_))], one_row(16))


def test_a_token_from_the_future_is_refused() -> None:
    group = make_group([1.0], segments=[[make_segment(make_turn(version=9))]])
    with pytest.raises(RecordError, match="version 9 reached a learner at 8"):
        build_batch([group], advantages=PLAIN, packing=one_row(16), learner_version=8)


@pytest.mark.parametrize(
    "options", [{"row_tokens": ()}, {"row_tokens": (8, 4)}, {"row_tokens": (4, 4)}, {"row_tokens": (0,)}, {"rows": 0}]
)
def test_wrong_packing_options_are_refused(options: dict) -> None:
    with pytest.raises(ConfigError, match="got"):
        PackingConfig(row_tokens=options.get("row_tokens", (8,)), rows_per_micro_batch=options.get("rows", 1))


def test_demonstrations_by_hand() -> None:
    batch = pack_demonstrations(
        [
            (np.array([5, 6, 7], np.int32), np.array([False, True, True])),
            (np.array([8, 9], np.int32), np.array([False, True])),
        ],
        one_row(6),
    )
    (row,) = batch.micro_batches
    assert row.ids.tolist() == [[5, 6, 7, 8, 9, 0]]
    assert row.loss_mask.tolist() == row.has_signal.tolist() == [[False, True, True, False, True, False]]
    assert row.advantages.tolist() == [[0, 1, 1, 0, 1, 0]]
    assert not row.behavior_logprobs.any()
    assert (batch.loss_weight, batch.num_tokens, batch.task_names) == (3.0, 5, ("demonstrations",))


@pytest.mark.parametrize(
    ("num_ids", "mask", "message"), [(2, [True, True], "first token"), (2, [False], "as many"), (0, [], "as many")]
)
def test_wrong_demonstrations_are_refused(num_ids: int, mask: list[bool], message: str) -> None:
    with pytest.raises(RecordError, match=message):
        pack_demonstrations([(np.ones(num_ids, np.int32), np.array(mask, np.bool_))], one_row(6))


def test_nothing_to_train_gives_no_micro_batch() -> None:
    for groups in ([], [make_group([None, None])]):
        batch = build_batch(groups, advantages=AdvantageConfig(), packing=one_row(6), learner_version=0)
        assert batch.micro_batches == ()
        assert (batch.loss_weight, batch.num_tokens, batch.efficiency, batch.row_tokens) == (0.0, 0, 0.0, 0)


def test_the_advantage_of_a_turn_reaches_its_sampled_tokens_and_no_other() -> None:
    """Two segments of one episode; its first turn earned 0.25, the last the rest of the episode's reward."""
    turns = [replace(make_turn(2, 2), reward=0.25), make_turn(1, 1), make_turn(1, 3, masked=[1])]
    long = [make_segment(turns[0], turns[1]), make_segment(turns[2])]
    group = make_group([1.0, 0.0], segments=[long, [make_segment(make_turn(1, 1))]])
    config = AdvantageConfig(estimator="rloo", credit="turn", task_normalisation="off")
    (row,) = build_batch([group], advantages=config, packing=one_row(12), learner_version=0).micro_batches
    assert row.advantages.tolist() == [[0, 0, 1, 1, 0, 0.75, 0, 0.75, 0, 0.75, 0, -1]]
    assert row.segment_ids.tolist() == [[1] * 6 + [2] * 4 + [3] * 2]
    assert row.sequence_tokens.tolist() == [[0, 0, 5, 5, 0, 5, 0, 5, 0, 5, 0, 1]]


def test_credit_by_turn_counts_the_groups_that_it_can_tell_apart() -> None:
    turns = [[replace(make_turn(1, 1), reward=1.0), make_turn(1, 1)], [make_turn(1, 1), make_turn(1, 1)]]
    group = make_group([1.0, 1.0], segments=[[make_segment(*played)] for played in turns])
    by_turn = AdvantageConfig(estimator="rloo", credit="turn", task_normalisation="off")
    for config, num_signal, weight in ((PLAIN, 0, 0), (by_turn, 1, 4)):
        batch = build_batch([group], advantages=config, packing=one_row(8), learner_version=0)
        assert (batch.stats["num_signal_groups"], batch.loss_weight) == (num_signal, weight)


def test_totals_count_what_is_trained_and_what_has_a_signal_by_hand() -> None:
    """Three trajectories with a signal in 2, 2 and 4 tokens, one without in 3, one invalid and one without a vote."""
    long = [make_segment(make_turn(1, 3)), make_segment(make_turn(1, 1))]
    short = [make_segment(make_turn(1, 2))]
    groups = [
        make_group([1.0, 0.0, 0.0, None], segments=[short, short, long, short]),
        make_group([0.5], group_id=1, segments=[[make_segment(make_turn(1, 3))]]),
    ]
    batch = build_batch(groups, advantages=PLAIN, packing=one_row(8), learner_version=0)
    assert len(batch.micro_batches) > 1
    for tokens in batch.micro_batches:
        assert tokens.totals == pytest.approx((11, 8, 4, 3))
    assert batch.loss_weight == 8


def test_episodes_that_do_not_count_are_counted_by_why() -> None:
    """One ended by the infrastructure, one before its first token, one out of tokens, and one that teaches."""
    members = [
        make_trajectory(1.0, make_segment(), member=0),
        make_trajectory(-0.2, make_segment(), member=1, end=EpisodeEnd.CONTEXT_LIMIT),
        make_trajectory(-0.2, member=2, end=EpisodeEnd.CONTEXT_LIMIT),
        make_trajectory(None, make_segment(), member=3, end=EpisodeEnd.ENGINE_ERROR),
        make_trajectory(None, member=4, end=EpisodeEnd.ENV_ERROR),
    ]
    group = Group(group_id=0, task=members[0].task, start_version=0, trajectories=tuple(members))
    stats = build_batch(
        [group], advantages=replace(PLAIN, overlong="mask"), packing=one_row(12), learner_version=0
    ).stats
    counts = {name: stats[name] for name in ("num_trajectories", "num_invalid", "num_silent", "num_overlong_masked")}
    assert counts == {"num_trajectories": 5, "num_invalid": 2, "num_silent": 1, "num_overlong_masked": 1}


def overlong_group() -> Group:
    members = [
        make_trajectory(1.0, make_segment(make_turn(1, 2, first_id=10)), member=0),
        make_trajectory(-0.2, make_segment(make_turn(1, 2, first_id=20)), member=1, end=EpisodeEnd.CONTEXT_LIMIT),
        make_trajectory(-0.2, make_segment(make_turn(1, 2, first_id=30)), member=2, end=EpisodeEnd.TURN_TRUNCATED),
        make_trajectory(-0.2, make_segment(make_turn(1, 2, first_id=40)), member=3, end=EpisodeEnd.MAX_TURNS),
    ]
    return Group(group_id=0, task=members[0].task, start_version=0, trajectories=tuple(members))


def test_masked_overlong_episodes_vote_but_leave_no_token() -> None:
    config = replace(PLAIN, overlong="mask")
    batch = build_batch([overlong_group()], advantages=config, packing=one_row(12), learner_version=0)
    (row,) = batch.micro_batches
    assert row.ids.tolist() == [[1, 10, 11, 1, 40, 41, 0, 0, 0, 0, 0, 0]]
    np.testing.assert_allclose(row.advantages[0, :6], [0, 0.9, 0.9, 0, -0.3, -0.3], rtol=1e-6)
    assert (batch.stats["num_overlong_masked"], batch.stats["num_segments"], batch.loss_weight) == (2, 2, 4)
    trained = build_batch([overlong_group()], advantages=PLAIN, packing=one_row(12), learner_version=0)
    assert (trained.stats["num_overlong_masked"], trained.loss_weight) == (0, 8)


def test_masked_tokens_count_in_no_statistic_of_their_task() -> None:
    groups = [overlong_group(), make_group([1.0, 0.0], group_id=1, segments=[[make_segment(make_turn(1, 2))]] * 2)]
    config = AdvantageConfig(estimator="dr_grpo", overlong="mask")
    rows = stacked(build_batch(groups, advantages=config, packing=one_row(16), learner_version=0))
    trained = rows.advantages[rows.loss_mask]
    assert (trained.mean(), trained.std(ddof=1)) == pytest.approx((0.0, 1.0), abs=1e-4)


def test_a_batch_of_several_buckets_has_one_shape_and_teaches_the_same() -> None:
    groups = varied_groups(4)
    packing = PackingConfig(row_tokens=(32, 48, 1024), rows_per_micro_batch=2)
    batch = build_batch(groups, advantages=AdvantageConfig(), packing=packing, learner_version=9)
    assert {micro_batch.ids.shape for micro_batch in batch.micro_batches} == {(2, batch.row_tokens)}
    assert batch.row_tokens in (32, 48)
    assert batch.stats["packing_efficiency"] == batch.efficiency > 0.5
    large = build_batch(groups, advantages=AdvantageConfig(), packing=one_row(1024), learner_version=9)
    assert large.row_tokens == 1024
    for one, other in zip(unpack(batch)[1].items(), unpack(large)[1].items(), strict=True):
        if one[0] != "segment_ids":
            assert one[1].tobytes() == other[1].tobytes(), one[0]
    only_long = [make_group([1.0, 0.0], segments=[[make_segment(make_turn(40, 20))], [make_segment()]])]
    assert build_batch(only_long, advantages=PLAIN, packing=packing, learner_version=0).row_tokens == 1024


@given(
    st.lists(st.integers(1, 30), max_size=30),
    st.lists(st.integers(30, 90), min_size=1, max_size=3, unique=True),
    st.integers(1, 4),
)
@settings(max_examples=50, deadline=None)
def test_unpack_gives_back_what_was_packed_exactly(lengths: list[int], buckets: list[int], rows: int) -> None:
    rng = np.random.default_rng(sum(lengths))
    demonstrations = [(rng.integers(0, 99, n).astype(np.int32), np.arange(n) % 3 == 1) for n in lengths]
    packing = PackingConfig(row_tokens=tuple(sorted(buckets)), rows_per_micro_batch=rows)
    found, columns = unpack(pack_demonstrations(demonstrations, packing))
    assert found.tolist() == lengths
    ends = np.cumsum(found)[:-1]
    for (ids, mask), got_ids, got_mask in zip(
        demonstrations, np.split(columns["ids"], ends), np.split(columns["loss_mask"], ends), strict=bool(lengths)
    ):
        assert (got_ids.tolist(), got_mask.tolist()) == (ids.tolist(), mask.tolist())
    assert columns["positions"].tolist() == [i for length in lengths for i in range(length)]


def test_a_whole_batch_comes_back_in_the_order_of_its_episodes() -> None:
    groups = varied_groups(6)
    batch = build_batch(groups, advantages=AdvantageConfig(), packing=one_row(64), learner_version=9)
    segments = [s for g in groups for t in g.trajectories if t.is_valid for s in t.segments]
    lengths, columns = unpack(batch)
    assert lengths.tolist() == [len(segment.ids) for segment in segments]
    for name in ("ids", "loss_mask", "behavior_logprobs"):
        expected = np.concatenate([getattr(segment, name) for segment in segments])
        assert columns[name].tobytes() == expected.tobytes()
    with pytest.raises(RecordError, match="knows the order of 0"):
        unpack(replace(batch, segment_order=np.zeros(0, np.int64)))


def test_the_time_that_packing_took_is_reported() -> None:
    batch = build_batch(varied_groups(), advantages=AdvantageConfig(), packing=one_row(64), learner_version=9)
    assert 0 < batch.stats["pack_s"] < 60


def test_arrays_are_read_only() -> None:
    batch = build_batch([make_group([1.0, 0.0])], advantages=PLAIN, packing=one_row(16), learner_version=0)
    with pytest.raises(ValueError, match="read-only"):
        batch.micro_batches[0].ids[0, 0] = 1


def test_a_trajectory_of_one_sampled_token_counts_as_a_whole_one() -> None:
    masks = [[False, True], [False, True, True, True, True]]
    packed = pack_demonstrations(
        [(np.arange(len(mask), dtype=np.int32), np.array(mask)) for mask in masks],
        PackingConfig(row_tokens=(8,), rows_per_micro_batch=1),
    )
    totals = packed.micro_batches[0].totals
    assert (totals.loss_tokens, totals.signal_tokens) == (5, 5)
    assert totals.sequences == pytest.approx(2)
    assert totals.signal_sequences == pytest.approx(2)
