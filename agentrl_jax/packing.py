"""Groups to fixed-shape rows: which tokens are trained, with which advantage, and where they stand.

numpy only. A batch uses one row length out of a few buckets and micro-batches of one size, so that a handful of
shapes is compiled in a whole run. Segments are never split. Episodes that are not trainable leave no token here.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from agentrl_jax.algo.advantages import AdvantageConfig, Advantages, compute_advantages
from agentrl_jax.algo.bins import Placement, first_fit_decreasing
from agentrl_jax.batch import TokenBatch, Totals
from agentrl_jax.errors import ConfigError, RecordError
from agentrl_jax.types import Bools, Group, Ids, Segment, Trajectory

_DTYPES: Mapping[str, npt.DTypeLike] = {
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

_FILE_FORMAT = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class PackingConfig:
    """row_tokens: lengths a row may have, ascending; each is compiled on first use, so keep them few.

    rows_per_micro_batch: rows of one forward and backward pass over the whole mesh.
    """

    row_tokens: tuple[int, ...]
    rows_per_micro_batch: int

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
    """

    micro_batches: tuple[TokenBatch, ...]
    loss_weight: float
    num_loss_tokens: int
    num_tokens: int
    efficiency: float
    task_names: tuple[str, ...]
    stats: dict[str, float] = field(default_factory=dict)

    @property
    def row_tokens(self) -> int:
        """The bucket that the batch uses; 0 if there are no rows."""
        return int(self.micro_batches[0].ids.shape[1]) if self.micro_batches else 0


def build_batch(
    groups: Sequence[Group], *, advantages: AdvantageConfig, packing: PackingConfig, learner_version: int
) -> PackedBatch:
    """Score, then pack, the groups of one learner step.

    Trainable episodes put all their segments into rows; a group without signal keeps its loss_mask but has
    has_signal False (unless `advantages` says `paper`). version_lag is learner_version − the token's version.

    Raises:
      RecordError: a segment is longer than the largest bucket, or a token was sampled by a version that the
        learner has not reached.
    """
    trajectories = [trajectory for group in groups for trajectory in group.trajectories]
    names = tuple(sorted({trajectory.task.env for trajectory in trajectories}))
    tasks = np.array([names.index(trajectory.task.env) for trajectory in trajectories], np.int32)
    scores = _score(groups, trajectories, tasks, advantages)
    owners, segments = _trainable_segments(trajectories, packing)
    lengths = np.array([len(segment.ids) for segment in segments], np.int64)
    owner = np.repeat(np.array(owners, np.int64), lengths)
    loss_mask = _concatenate([segment.loss_mask for segment in segments], np.bool_)
    lag = np.where(loss_mask, learner_version - _concatenate([segment.versions for segment in segments], np.int32), 0)
    if lag.size and lag.min() < 0:
        raise RecordError(f"tokens of version {learner_version - lag.min()} reached a learner at {learner_version}")
    columns = {
        "ids": _concatenate([segment.ids for segment in segments], np.int32),
        "loss_mask": loss_mask,
        "has_signal": loss_mask & scores.takes_part[owner],
        "behavior_logprobs": _concatenate([segment.behavior_logprobs for segment in segments], np.float32),
        "advantages": np.where(loss_mask, scores.advantages[owner], 0.0),
        "version_lag": lag,
        "task_ids": tasks[owner],
        "sequence_tokens": np.where(loss_mask, np.bincount(owner[loss_mask], minlength=len(trajectories))[owner], 0),
    }
    lag_of_loss, advantage_of_loss = lag[loss_mask], columns["advantages"][columns["has_signal"]]
    stats = {
        "num_groups": float(len(groups)),
        "num_signal_groups": float(sum(group.has_signal for group in groups)),
        "num_trajectories": float(len(trajectories)),
        "num_invalid": float(sum(not trajectory.end.is_valid for trajectory in trajectories)),
        "num_tasks_not_normalised": float(len(np.unique(tasks[~scores.is_normalised]))),
        "advantage_abs_mean": float(np.abs(advantage_of_loss).mean()) if advantage_of_loss.size else 0.0,
        "token_staleness_max": float(lag_of_loss.max()) if lag_of_loss.size else 0.0,
    }
    return _packed(lengths, columns, packing, names, stats)


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
    """
    sizes = np.asarray(lengths, np.int64)
    if not len(sizes):
        return ()
    capacity, placement = _choose_bucket(sizes, packing)
    num_rows = _padded_rows(placement.num_rows, packing)
    within = np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    target = np.repeat(placement.rows * capacity + placement.offsets, sizes) + within
    values = {**columns, "positions": within, "segment_ids": np.repeat(placement.ranks + 1, sizes)}
    arrays = {}
    for name, dtype in _DTYPES.items():
        flat = np.zeros(num_rows * capacity, dtype)
        if name in values:
            flat[target] = values[name]
        flat.flags.writeable = False
        arrays[name] = flat.reshape(-1, packing.rows_per_micro_batch, capacity)
    totals = _totals(columns, int(sizes.sum()))
    return tuple(
        TokenBatch(**dict(zip(arrays, parts, strict=True)), totals=totals)
        for parts in zip(*arrays.values(), strict=True)
    )


def save_batch(path: Path, batch: PackedBatch) -> None:
    """Write `batch` as a compressed npz without pickles, all or nothing; `load_batch` gives back the same arrays."""
    content: dict[str, Any] = {
        "format": _FILE_FORMAT,
        "num_micro_batches": len(batch.micro_batches),
        "loss_weight": np.float64(batch.loss_weight),
        "num_loss_tokens": batch.num_loss_tokens,
        "num_tokens": batch.num_tokens,
        "efficiency": np.float64(batch.efficiency),
        "task_names": np.array(batch.task_names, np.str_),
        "stats_names": np.array(list(batch.stats), np.str_),
        "stats_values": np.array(list(batch.stats.values()), np.float64),
    }
    if batch.micro_batches:
        content |= {f"tokens/{name}": np.stack([getattr(m, name) for m in batch.micro_batches]) for name in _DTYPES}
        content["totals"] = np.array(batch.micro_batches[0].totals, np.float64)
    partial = path.with_name(path.name + ".partial")
    with partial.open("wb") as file:
        np.savez_compressed(file, **content)
    os.replace(partial, path)


def load_batch(path: Path) -> PackedBatch:
    """Read what `save_batch` wrote. Raises RecordError if the file is something else or of another format."""
    with np.load(path, allow_pickle=False) as content:
        if not isinstance(content, np.lib.npyio.NpzFile) or "format" not in content:
            raise RecordError(f"{path} is not a recorded batch")
        if int(content["format"]) != _FILE_FORMAT:
            raise RecordError(f"{path} has format {int(content['format'])}, this version reads {_FILE_FORMAT}")
        micro_batches: tuple[TokenBatch, ...] = ()
        if int(content["num_micro_batches"]):
            fields = [content[f"tokens/{name}"] for name in _DTYPES]
            for array in fields:
                array.flags.writeable = False
            totals = Totals(*content["totals"].astype(np.float32))
            micro_batches = tuple(
                TokenBatch(**dict(zip(_DTYPES, parts, strict=True)), totals=totals)
                for parts in zip(*fields, strict=True)
            )
        values = content["stats_values"].tolist()
        return PackedBatch(
            micro_batches=micro_batches,
            loss_weight=float(content["loss_weight"]),
            num_loss_tokens=int(content["num_loss_tokens"]),
            num_tokens=int(content["num_tokens"]),
            efficiency=float(content["efficiency"]),
            task_names=tuple(content["task_names"].tolist()),
            stats=dict(zip(content["stats_names"].tolist(), values, strict=True)),
        )


def _score(
    groups: Sequence[Group], trajectories: Sequence[Trajectory], tasks: Ids, config: AdvantageConfig
) -> Advantages:
    # Numbered by place in the batch: whatever the groups are called, two of them are never taken for one.
    group_ids = np.repeat(np.arange(len(groups)), np.array([len(group.trajectories) for group in groups], np.int64))
    return compute_advantages(
        np.array([np.nan if t.reward is None else t.reward for t in trajectories], np.float64),
        np.array([t.end.is_valid for t in trajectories], np.bool_),
        group_ids,
        np.array([t.num_loss_tokens if t.end.is_trainable else 0 for t in trajectories], np.int64),
        tasks,
        config,
    )


def _trainable_segments(trajectories: Sequence[Trajectory], packing: PackingConfig) -> tuple[list[int], list[Segment]]:
    """Segments of trainable episodes, and the trajectory that each belongs to."""
    owners: list[int] = []
    segments: list[Segment] = []
    for number, trajectory in enumerate(trajectories):
        if not trajectory.end.is_trainable:
            continue
        for segment in trajectory.segments:
            _check_fits(len(segment.ids), f"episode {trajectory.episode_id} of {trajectory.task.key}", packing)
            owners.append(number)
            segments.append(segment)
    return owners, segments


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
    micro_batches = pack_segments(lengths, columns, packing)
    num_slots = sum(micro_batch.ids.size for micro_batch in micro_batches)
    num_tokens = int(lengths.sum())
    return PackedBatch(
        micro_batches=micro_batches,
        loss_weight=float((columns["loss_mask"] & columns["has_signal"]).sum()),
        num_loss_tokens=int(columns["loss_mask"].sum()),
        num_tokens=num_tokens,
        efficiency=num_tokens / num_slots if num_slots else 0.0,
        task_names=task_names,
        stats={**stats, "num_segments": float(len(lengths))},
    )


def _totals(columns: Mapping[str, npt.NDArray[Any]], num_tokens: int) -> Totals:
    nothing = np.zeros(num_tokens, np.int32)
    loss_mask = columns.get("loss_mask", nothing).astype(np.bool_)
    signal = loss_mask & columns.get("has_signal", nothing).astype(np.bool_)
    share = 1.0 / np.maximum(columns.get("sequence_tokens", nothing), 1)  # a trajectory's tokens add up to one
    counts = loss_mask.sum(), signal.sum(), share[loss_mask].sum(), share[signal].sum()
    return Totals(*(np.float32(count) for count in counts))


def _concatenate(parts: Sequence[npt.NDArray[Any]], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    return np.concatenate(parts, dtype=dtype) if parts else np.zeros(0, dtype)
