"""Packing: exact contents by hand, then what neither padding, bucket, order nor micro-batch size may change."""

import math
import re
import time
from dataclasses import replace
from functools import reduce
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl_jax.algo.advantages import AdvantageConfig
from agentrl_jax.algo.aggregate import add_outputs
from agentrl_jax.algo.bins import first_fit_decreasing
from agentrl_jax.algo.losses import LossConfig, make_loss
from agentrl_jax.algo.metrics import means
from agentrl_jax.batch import TokenBatch, map_tokens
from agentrl_jax.batch_files import load_batch, load_scores, save_batch
from agentrl_jax.errors import ConfigError, RecordError
from agentrl_jax.packing import (
    PackedBatch,
    PackingConfig,
    build_batch,
    pack_demonstrations,
    pack_segments,
    unpack,
)
from agentrl_jax.types import EpisodeEnd, Group
from tests.algo.record_builders import make_group, make_segment, make_trajectory, make_turn

PLAIN = AdvantageConfig(estimator="dr_grpo", task_normalisation="off")


def one_row(tokens: int) -> PackingConfig:
    return PackingConfig(row_tokens=(tokens,), rows_per_micro_batch=1)


def varied_groups(seed: int = 0) -> list[Group]:
    """Two envs, six groups, several turns and segments, masked tokens, versions 3 to 7; some without signal."""
    rng = np.random.default_rng(seed)

    def segments() -> list:
        return [
            make_segment(
                *(
                    make_turn(
                        int(rng.integers(1, 5)),
                        int(rng.integers(1, 7)),
                        version=int(rng.integers(3, 8)),
                        first_id=int(rng.integers(1, 20)),
                        masked=[0] if rng.random() < 0.2 else [],
                    )
                    for _ in range(rng.integers(1, 4))
                )
            )
            for _ in range(rng.integers(1, 3))
        ]

    rewards = [[1.0, 0.0, 0.0], [1.0, 0.3, None], [0.0, 0.0, 0.0], [1.0, 0.0, -0.2], [None, 1.0, None], [0.5, 1.0, 0.0]]
    return [
        make_group(values, group_id=i, env="ab"[i % 2], index=i, segments=[segments() for _ in values])
        for i, values in enumerate(rewards)
    ]


ARRAYS = [name for name in TokenBatch._fields if name not in ("totals", "reference_logprobs")]


def stacked(batch: PackedBatch) -> TokenBatch:
    return map_tokens(lambda *parts: np.concatenate(parts), *batch.micro_batches)


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


@given(st.lists(st.integers(1, 30), max_size=40), st.integers(30, 64))
@settings(max_examples=60, deadline=None)
def test_first_fit_places_each_segment_once_without_overlap(lengths: list[int], capacity: int) -> None:
    placement = first_fit_decreasing(lengths, capacity)
    slots = np.zeros((placement.num_rows, capacity), np.int64)
    for row, offset, length in zip(placement.rows, placement.offsets, lengths, strict=True):
        assert offset + length <= capacity
        slots[row, offset : offset + length] += 1
    assert slots.max(initial=0) <= 1
    assert slots.sum() == sum(lengths)
    for row in range(placement.num_rows):
        inside = placement.rows == row
        in_order = np.argsort(placement.offsets[inside])
        assert placement.ranks[inside][in_order].tolist() == list(range(inside.sum()))
        assert slots[row].argmin() == slots[row].sum() or slots[row].all()  # no holes
    assert (2 * slots.sum(axis=1) <= capacity).sum() <= 1  # the later of two such rows would have fitted the earlier


def test_first_fit_decreasing_by_hand() -> None:
    placement = first_fit_decreasing([4, 8, 1, 4, 2, 1], 10)  # the textbook case: two full rows
    assert placement.rows.tolist() == [1, 0, 1, 1, 0, 1]
    assert placement.num_rows == 2


@pytest.mark.parametrize("lengths", [[0], [11], [3, -1]])
def test_impossible_lengths_are_refused(lengths: list[int]) -> None:
    with pytest.raises(RecordError, match=r"\[1, 10\]"):
        first_fit_decreasing(lengths, 10)


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
    group = Group(group_id=0, task=members[0].task, admitted_version=0, trajectories=tuple(members))
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
    return Group(group_id=0, task=members[0].task, admitted_version=0, trajectories=tuple(members))


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


def toy_logprobs(table: jax.Array, tokens: TokenBatch) -> jax.Array:
    """log-probabilities that depend on a token, its position and the one before it in its segment."""
    before = jnp.concatenate([jnp.zeros_like(tokens.ids[:, :1]), tokens.ids[:, :-1]], axis=1)
    before = jnp.where(jnp.asarray(tokens.positions) > 0, before, 0)
    return -0.5 - 0.3 * jnp.square(jnp.sin(table[tokens.ids] + table[before] * jnp.cos(1.0 * tokens.positions)))


def loss_and_gradient(batch: PackedBatch, table: np.ndarray) -> tuple[float, np.ndarray, dict[str, float]]:
    """What a learner does: sums over micro-batches, one division by the global weight."""
    loss_fn = make_loss(LossConfig(clip_low=0.05, clip_high=0.05))

    @jax.jit
    def accumulate(table: jax.Array, tokens: TokenBatch) -> tuple:
        def objective(table: jax.Array) -> tuple:
            output = loss_fn(toy_logprobs(table, tokens), tokens)
            return output.loss.total / batch.loss_weight, output

        return jax.grad(objective, has_aux=True)(table)

    parts = [accumulate(jnp.asarray(table), tokens) for tokens in batch.micro_batches]
    outputs = [output for _, output in parts]
    assert sum(float(output.loss.weight) for output in outputs) == batch.loss_weight
    total = sum(float(output.loss.total) for output in outputs) / batch.loss_weight
    return total, np.sum([gradient for gradient, _ in parts], axis=0), means(reduce(add_outputs, outputs).metrics)


def test_loss_gradient_and_metrics_do_not_depend_on_the_layout() -> None:
    groups = varied_groups()
    table = np.random.default_rng(1).normal(size=64)
    layouts = [
        (groups, PackingConfig(row_tokens=(64,), rows_per_micro_batch=1)),
        (groups, PackingConfig(row_tokens=(1024,), rows_per_micro_batch=4)),
        (groups[::-1], PackingConfig(row_tokens=(50,), rows_per_micro_batch=3)),
    ]
    with jax.enable_x64(True):
        results = [
            loss_and_gradient(
                build_batch(some, advantages=AdvantageConfig(), packing=packing, learner_version=9), table
            )
            for some, packing in layouts
        ]
    loss, gradient, metrics = results[0]
    assert np.abs(gradient).max() > 1e-3
    assert 0 < metrics["clip_low_frac"] < 1
    for other in results[1:]:
        np.testing.assert_allclose(other[0], loss, rtol=1e-9)
        np.testing.assert_allclose(other[1], gradient, rtol=1e-9, atol=1e-12)
        assert other[2] == pytest.approx(metrics, rel=1e-9, nan_ok=True)


def test_loss_equals_a_loop_over_trajectories() -> None:
    groups = varied_groups(2)
    batch = build_batch(groups, advantages=PLAIN, packing=one_row(64), learner_version=9)
    table = np.random.default_rng(3).normal(size=64)
    total, weight = 0.0, 0
    for group in groups:
        rewards = [t.reward for t in group.trajectories if t.reward is not None]
        for trajectory in group.trajectories:
            if trajectory.reward is None or len(set(rewards)) < 2:
                continue
            advantage = trajectory.reward - sum(rewards) / len(rewards)
            for segment in trajectory.segments:
                for t in np.flatnonzero(segment.loss_mask):
                    angle = table[segment.ids[t]] + table[segment.ids[t - 1]] * math.cos(t)
                    ratio = math.exp(-0.5 - 0.3 * math.sin(angle) ** 2 - float(segment.behavior_logprobs[t]))
                    total += max(-advantage * ratio, -advantage * min(max(ratio, 0.95), 1.05))
                    weight += 1
    with jax.enable_x64(True):
        loss, _, _ = loss_and_gradient(batch, table)
    assert batch.loss_weight == weight
    np.testing.assert_allclose(loss, total / weight, rtol=1e-6)  # advantages travel as float32


@pytest.mark.parametrize("groups", [varied_groups(), []], ids=["full", "empty"])
def test_a_recorded_batch_comes_back_exactly(tmp_path: Path, groups: list[Group]) -> None:
    packing = PackingConfig(row_tokens=(64,), rows_per_micro_batch=2)
    batch = build_batch(groups, advantages=AdvantageConfig(), packing=packing, learner_version=9)
    path = tmp_path / "step-000001.npz"
    save_batch(path, batch)
    loaded = load_batch(path)
    assert [p.name for p in tmp_path.iterdir()] == [path.name]
    for name in ("loss_weight", "num_loss_tokens", "num_tokens", "efficiency", "task_names", "stats"):
        assert getattr(loaded, name) == getattr(batch, name), name
    assert len(loaded.micro_batches) == len(batch.micro_batches)
    for before, after in zip(batch.micro_batches, loaded.micro_batches, strict=True):
        assert before.totals == after.totals
        for name in ARRAYS:
            x, y = getattr(before, name), getattr(after, name)
            assert (x.dtype, x.tobytes(), x.shape) == (y.dtype, y.tobytes(), y.shape), name
            assert not y.flags.writeable
    assert loaded.segment_order.tolist() == batch.segment_order.tolist()


def test_other_files_are_not_taken_for_batches(tmp_path: Path) -> None:
    other, pickled = tmp_path / "other.npz", tmp_path / "pickled.npz"
    np.savez(other, x=np.zeros(3))
    with pytest.raises(RecordError, match="not a recorded batch"):
        load_batch(other)
    np.savez(other, format=99)
    with pytest.raises(RecordError, match="format 99"):
        load_batch(other)
    np.savez(pickled, format=np.array([{}], object))
    text, empty, array, cut = (tmp_path / name for name in ("text.npz", "empty.npz", "array.npy", "cut.npz"))
    text.write_text("no batch", encoding="utf-8")
    empty.touch()
    np.save(array, np.zeros(3))
    save_batch(cut, build_batch(varied_groups(), advantages=PLAIN, packing=one_row(64), learner_version=9))
    cut.write_bytes(cut.read_bytes()[:-200])
    for path in (other, pickled, text, empty, array, cut):
        for load in (load_batch, load_scores):
            with pytest.raises(RecordError, match=re.escape(str(path))):
                load(path)


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
