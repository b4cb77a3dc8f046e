"""Groups to fixed-shape rows: which tokens are trained, with which advantage, and where they stand.

numpy only. A batch uses one row length out of a few buckets and micro-batches of one size, so that a handful of
shapes is compiled in a whole run. Segments are never split. Episodes that are not trainable leave no token here.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from agentrl_jax.algo.advantages import AdvantageConfig, Advantages, compute_advantages
from agentrl_jax.algo.bins import Placement, first_fit_decreasing
from agentrl_jax.algo.grouping import Indices, sum_by
from agentrl_jax.algo.outcomes import Outcomes, outcomes_of
from agentrl_jax.algo.turn_credit import turn_numbers
from agentrl_jax.batch import TokenBatch, Totals
from agentrl_jax.errors import ConfigError, RecordError
from agentrl_jax.types import Bools, Group, Ids, Segment, Trajectory

PACKED_FIELDS: Mapping[str, npt.DTypeLike] = {
    "ids": np.int32,
    "positions": np.int32,
    "segment_ids": np.int32,
    "loss_mask": np.bool_,
    "has_signal": np.bool_,
    "behavior_logprobs": np.float32,
    "advantages": np.float32,
    "version_lag": np.int32,
    "task_ids": np.int32,
    "sequence_tokens": np.int32,
}
"""The fields of a `TokenBatch` that the host packs, token by token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PackingConfig:
    """The shapes that batches may have."""

    row_tokens: tuple[int, ...]
    """Lengths a row may have, ascending; each is compiled on first use, so keep them few"""
    rows_per_micro_batch: int
    """Rows of one forward and backward pass over the whole mesh"""

    def __post_init__(self) -> None:
        if not self.row_tokens or self.row_tokens[0] < 1 or list(self.row_tokens) != sorted(set(self.row_tokens)):
            raise ConfigError(f"row_tokens must be ascending lengths >= 1, got {self.row_tokens}")
        if self.rows_per_micro_batch < 1:
            raise ConfigError(f"rows_per_micro_batch must be >= 1, got {self.rows_per_micro_batch}")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PackedBatch:
    """The batch of one learner step.

    micro_batches: numpy arrays [rows_per_micro_batch, row_tokens], read-only; () if no segment is trainable.
    loss_weight: tokens in loss_mask & has_signal of all micro-batches; the denominator of the loss. 0: skip the step.
    num_loss_tokens: tokens in loss_mask. num_tokens: tokens of all segments, prompts included.
    efficiency: num_tokens / (rows · row_tokens), empty rows included; 0 if there are no rows.
    task_names: what `task_ids` index, in alphabetical order.
    stats: plain figures about the batch, for the log.
    segment_order: [S], of the segments in row order, which one each is in the order in which they were packed (of
      `build_batch`: trajectory after trajectory, those that teach nothing left out).
    """

    micro_batches: tuple[TokenBatch, ...]
    loss_weight: float
    num_loss_tokens: int
    num_tokens: int
    efficiency: float
    task_names: tuple[str, ...]
    stats: dict[str, float] = field(default_factory=dict)
    segment_order: Indices = field(default_factory=lambda: np.zeros(0, np.int64))

    @property
    def row_tokens(self) -> int:
        """The bucket that the batch uses; 0 if there are no rows."""
        return int(self.micro_batches[0].ids.shape[1]) if self.micro_batches else 0


def build_batch(
    groups: Sequence[Group], *, advantages: AdvantageConfig, packing: PackingConfig, learner_version: int
) -> PackedBatch:
    """Score, then pack, the groups of one learner step.

    Episodes that teach (`AdvantageConfig.teaches`) put all their segments into rows; a group without signal keeps its
    loss_mask but has has_signal False (unless `advantages` says `paper`). Every sampled token has the advantage of its
    turn. version_lag is learner_version − the token's version.

    stats: num_silent are valid episodes without a vote (types.Trajectory.votes), num_overlong_masked those that vote
    but do not teach, pack_s the time all this took.

    Raises:
      RecordError: a segment is longer than the largest bucket, or a token was sampled by a version that the
        learner has not reached.
    """
    begun_s = time.perf_counter()
    trajectories = [trajectory for group in groups for trajectory in group.trajectories]
    teaches = [advantages.teaches(trajectory) for trajectory in trajectories]
    names = tuple(sorted({trajectory.task.env for trajectory in trajectories}))
    outcomes = outcomes_of(groups, teaches, names)
    scores = compute_advantages(outcomes, advantages)
    owners, segments = _taught_segments(trajectories, teaches, packing)
    lengths = np.array([len(segment.ids) for segment in segments], np.int64)
    turns, turn_lengths = _taught_turns(trajectories, teaches)
    loss_mask = _concatenate([segment.loss_mask for segment in segments], np.bool_)
    versions = _concatenate([segment.versions for segment in segments], np.int32)
    lag = np.where(loss_mask, learner_version - versions, 0)
    if lag.size and lag.min() < 0:
        raise RecordError(f"tokens of version {learner_version - lag.min()} reached a learner at {learner_version}")
    num_loss_tokens = sum_by(turn_numbers(outcomes.num_turns)[0], outcomes.turn_loss_tokens, len(trajectories))
    takes_part, tasks, sequence_tokens = (
        np.repeat(values[owners], lengths) for values in (scores.takes_part, outcomes.task_ids, num_loss_tokens)
    )
    columns = {
        "ids": _concatenate([segment.ids for segment in segments], np.int32),
        "loss_mask": loss_mask,
        "has_signal": loss_mask & takes_part,
        "behavior_logprobs": _concatenate([segment.behavior_logprobs for segment in segments], np.float32),
        "advantages": np.where(loss_mask, np.repeat(scores.advantages[turns].astype(np.float32), turn_lengths), 0),
        "version_lag": lag,
        "task_ids": tasks,
        "sequence_tokens": np.where(loss_mask, sequence_tokens, 0),
    }
    stats = _stats(trajectories, teaches, outcomes, scores, columns)
    batch = _packed(lengths, columns, packing, names, stats)
    return replace(batch, stats={**batch.stats, "pack_s": time.perf_counter() - begun_s})


def pack_demonstrations(ids_and_masks: Sequence[tuple[Ids, Bools]], packing: PackingConfig) -> PackedBatch:
    """Pack demonstrations for supervised fine-tuning: (ids [T], loss_mask [T]) each, True where a token is learnt.

    Advantages are 1 and has_signal is True on the mask; behavior_logprobs and version_lag are 0.

    Raises:
      RecordError: ids and mask differ in length, the first token is to be learnt (nothing predicts it), or a
        demonstration is longer than the largest bucket.
    """
    for number, (ids, mask) in enumerate(ids_and_masks):
        if not len(ids) or len(ids) != len(mask):
            raise RecordError(f"demonstration {number}: needs as many mask values as ids, got {len(mask)}, {len(ids)}")
        if mask[0]:
            raise RecordError(f"demonstration {number}: its first token cannot be learnt, nothing predicts it")
        _check_fits(len(ids), f"demonstration {number}", packing)
    loss_mask = _concatenate([mask for _, mask in ids_and_masks], np.bool_)
    columns = {
        "ids": _concatenate([ids for ids, _ in ids_and_masks], np.int32),
        "loss_mask": loss_mask,
        "has_signal": loss_mask,
        "advantages": loss_mask.astype(np.float32),
        "sequence_tokens": _concatenate([mask * mask.sum() for _, mask in ids_and_masks], np.int32),
    }
    lengths = np.array([len(ids) for ids, _ in ids_and_masks], np.int64)
    return _packed(lengths, columns, packing, ("demonstrations",), {})


def pack_segments(
    lengths: npt.ArrayLike, columns: Mapping[str, npt.NDArray[Any]], packing: PackingConfig
) -> tuple[TokenBatch, ...]:
    """Lay segments of `lengths` [S] into micro-batches of [rows_per_micro_batch, row_tokens] arrays.

    columns: fields of `TokenBatch` by name, one value a token, all segments one after the other; positions and
      segment_ids follow from the placement, and fields that are not given are 0 or False.

    The bucket is the one, of those that hold the longest segment, that needs the fewest token slots, empty rows
    included; the smaller one if two need as many. Rows are filled longest segment first (`first_fit_decreasing`).

    Raises:
      RecordError: a segment is longer than the largest bucket, a column has not one value a token, or it is no field.
    """
    return _pack(lengths, columns, packing)[0]


def unpack(batch: PackedBatch) -> tuple[Indices, dict[str, npt.NDArray[Any]]]:
    """(lengths [S], columns): what was packed, in the order in which it was; the inverse of `pack_segments`, exactly.

    columns: the fields of `PACKED_FIELDS`, all segments one after the other, without padding. `segment_ids` are the
    numbers of the segments in their rows.

    Raises:
      RecordError: the batch does not say in which order its segments were packed.
    """
    if not batch.micro_batches:
        return np.zeros(0, np.int64), {name: np.zeros(0, dtype) for name, dtype in PACKED_FIELDS.items()}
    rows = {name: np.concatenate([getattr(m, name) for m in batch.micro_batches]) for name in PACKED_FIELDS}
    present = rows["segment_ids"] > 0
    flat = {name: row[present] for name, row in rows.items()}  # row after row, in which segments stand in order
    starts = np.flatnonzero(flat["positions"] == 0)
    if len(batch.segment_order) != len(starts):
        raise RecordError(f"a batch of {len(starts)} segments knows the order of {len(batch.segment_order)}")
    place = np.argsort(batch.segment_order)
    lengths = np.diff(np.append(starts, len(flat["ids"])))[place]
    tokens = np.repeat(starts[place], lengths) + _counted(lengths)
    return lengths, {name: values[tokens] for name, values in flat.items()}


def _pack(
    lengths: npt.ArrayLike, columns: Mapping[str, npt.NDArray[Any]], packing: PackingConfig
) -> tuple[tuple[TokenBatch, ...], Indices]:
    """(micro_batches, segment_order)."""
    sizes = np.asarray(lengths, np.int64)
    if strangers := sorted(set(columns) - set(PACKED_FIELDS)):
        raise RecordError(f"columns must be fields of a packed TokenBatch, got {', '.join(strangers)}")
    wrong = {name: len(values) for name, values in columns.items() if len(values) != sizes.sum()}
    if wrong:
        raise RecordError(f"columns must have {sizes.sum()} values, one a token, got {wrong}")
    if not len(sizes):
        return (), np.zeros(0, np.int64)
    capacity, placement = _choose_bucket(sizes, packing)
    num_rows = _padded_rows(placement.num_rows, packing)
    starts = placement.rows * capacity + placement.offsets
    # Slices, not an index for each token: a large batch would spend most of its time on making the index.
    spans = list(zip(starts.tolist(), (starts + sizes).tolist(), (np.cumsum(sizes) - sizes).tolist(), strict=True))
    arrays = {}
    for name, dtype in PACKED_FIELDS.items():
        flat = np.zeros(num_rows * capacity, dtype)
        if name == "positions":
            counted = np.arange(capacity, dtype=dtype)
            for start, end, _ in spans:
                flat[start:end] = counted[: end - start]
        elif name == "segment_ids":
            for (start, end, _), rank in zip(spans, placement.ranks.tolist(), strict=True):
                flat[start:end] = rank + 1
        elif name in columns:
            for start, end, source in spans:
                flat[start:end] = columns[name][source : source + end - start]
        flat.flags.writeable = False
        arrays[name] = flat.reshape(-1, packing.rows_per_micro_batch, capacity)
    totals = _totals(columns, int(sizes.sum()))
    micro_batches = tuple(
        TokenBatch(**dict(zip(arrays, parts, strict=True)), totals=totals)
        for parts in zip(*arrays.values(), strict=True)
    )
    return micro_batches, np.lexsort((placement.offsets, placement.rows))


def _stats(
    trajectories: Sequence[Trajectory],
    teaches: Sequence[bool],
    outcomes: Outcomes,
    scores: Advantages,
    columns: Mapping[str, npt.NDArray[Any]],
) -> dict[str, float]:
    lag, advantage = columns["version_lag"][columns["loss_mask"]], columns["advantages"][columns["has_signal"]]
    counts = {
        "num_groups": len(np.unique(outcomes.group_ids)),
        "num_signal_groups": len(np.unique(outcomes.group_ids[scores.has_signal])),
        "num_trajectories": len(trajectories),
        "num_invalid": sum(not t.is_valid for t in trajectories),
        "num_silent": sum(t.is_valid and not t.votes for t in trajectories),
        "num_overlong_masked": sum(t.votes and not does for t, does in zip(trajectories, teaches, strict=True)),
        "num_tasks_not_normalised": len(np.unique(outcomes.task_ids[~scores.is_normalised])),
        "token_staleness_max": lag.max(initial=0),
        "advantage_abs_mean": np.abs(advantage).mean() if advantage.size else 0.0,
    }
    return {name: float(value) for name, value in counts.items()}


def _taught_turns(trajectories: Sequence[Trajectory], teaches: Sequence[bool]) -> tuple[Indices, Indices]:
    """(turn [S], tokens [S]) of the episodes that teach: its number among the turns of all episodes, and its length."""
    turns = [trajectory.turns for trajectory in trajectories]
    does = np.repeat(np.array(teaches, np.bool_), np.array([len(played) for played in turns], np.int64))
    lengths = [len(turn.context_ids) + len(turn.completion.ids) for played in turns for turn in played]
    return np.flatnonzero(does), np.array(lengths, np.int64)[does]


def _taught_segments(
    trajectories: Sequence[Trajectory], teaches: Sequence[bool], packing: PackingConfig
) -> tuple[Indices, list[Segment]]:
    """The trajectory that each segment of the episodes that teach belongs to, and the segments."""
    owners: list[int] = []
    segments: list[Segment] = []
    for number, (trajectory, does) in enumerate(zip(trajectories, teaches, strict=True)):
        for segment in trajectory.segments if does else ():
            _check_fits(len(segment.ids), f"episode {trajectory.episode_id} of {trajectory.task.key}", packing)
            owners.append(number)
            segments.append(segment)
    return np.array(owners, np.int64), segments


def _counted(lengths: Indices) -> Indices:
    """0, 1, … for each length, one after the other."""
    return np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)


def _check_fits(length: int, name: str, packing: PackingConfig) -> None:
    if length > packing.row_tokens[-1]:
        raise RecordError(
            f"{name}: a segment of {length} tokens does not fit a row of {packing.row_tokens[-1]} and is never split; "
            f"add a larger bucket to row_tokens or bound the episode's length"
        )


def _choose_bucket(lengths: npt.NDArray[np.int64], packing: PackingConfig) -> tuple[int, Placement]:
    longest = int(lengths.max())
    _check_fits(longest, "packing", packing)
    placements = {
        capacity: first_fit_decreasing(lengths, capacity) for capacity in packing.row_tokens if capacity >= longest
    }
    best = min(placements, key=lambda capacity: _padded_rows(placements[capacity].num_rows, packing) * capacity)
    return best, placements[best]


def _padded_rows(num_rows: int, packing: PackingConfig) -> int:
    return -(-num_rows // packing.rows_per_micro_batch) * packing.rows_per_micro_batch


def _packed(
    lengths: npt.NDArray[np.int64],
    columns: Mapping[str, npt.NDArray[Any]],
    packing: PackingConfig,
    task_names: tuple[str, ...],
    stats: Mapping[str, float],
) -> PackedBatch:
    micro_batches, order = _pack(lengths, columns, packing)
    num_slots = sum(micro_batch.ids.size for micro_batch in micro_batches)
    num_tokens = int(lengths.sum())
    efficiency = num_tokens / num_slots if num_slots else 0.0
    return PackedBatch(
        micro_batches=micro_batches,
        loss_weight=float((columns["loss_mask"] & columns["has_signal"]).sum()),
        num_loss_tokens=int(columns["loss_mask"].sum()),
        num_tokens=num_tokens,
        efficiency=efficiency,
        task_names=task_names,
        stats={**stats, "num_segments": float(len(lengths)), "packing_efficiency": efficiency},
        segment_order=order,
    )


def _totals(columns: Mapping[str, npt.NDArray[Any]], num_tokens: int) -> Totals:
    nothing = np.zeros(num_tokens, np.int32)
    loss_mask = columns.get("loss_mask", nothing).astype(np.bool_)
    signal = loss_mask & columns.get("has_signal", nothing).astype(np.bool_)
    sequence_tokens = columns.get("sequence_tokens", nothing)
    counts = [np.count_nonzero(mask) for mask in (loss_mask, signal)]
    # The tokens of one trajectory add up to one.
    shares = [(1.0 / np.maximum(sequence_tokens[mask], 1)).sum() for mask in (loss_mask, signal)]
    return Totals(*(np.float32(count) for count in (*counts, *shares)))


def _concatenate(parts: Sequence[npt.NDArray[Any]], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    return np.concatenate(parts, dtype=dtype) if parts else np.zeros(0, dtype)
