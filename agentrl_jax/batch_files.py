"""Recorded batches: the packed batch of a learner step as a file, and the log-probabilities that the step gave its
tokens, in float32: all that a loss is computed from, so that it can be replayed without a model."""

import os
import re
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from agentrl_jax.batch import Scores, TokenBatch, Totals
from agentrl_jax.errors import RecordError
from agentrl_jax.packing import PACKED_FIELDS, PackedBatch

_FILE_FORMAT = 3

KEEP_BATCHES = 100
"""Recorded batches of a run that stay, where nothing else is asked for."""

_KEPT_LONGER = 10
"""Of the batches that are older than those, each so-many-th stays: enough to see how a run changed."""

_NAME = re.compile(r"step-(\d{6,})\.npz")


def recorded_batches(folder: Path) -> dict[int, Path]:
    """The recorded batches in a folder by their steps, in ascending order; {} if there is no such folder."""
    names = {path: _NAME.fullmatch(path.name) for path in folder.iterdir()} if folder.is_dir() else {}
    return dict(sorted((int(match[1]), path) for path, match in names.items() if match is not None))


def thin_batches(folder: Path, step: int, *, keep: int) -> None:
    """Delete recorded batches that are older than the `keep` newest up to `step`, but each tenth step's."""
    for recorded, path in recorded_batches(folder).items():
        if recorded <= step - keep and recorded % _KEPT_LONGER:
            path.unlink(missing_ok=True)


def save_batch(path: Path, batch: PackedBatch, scores: Sequence[Scores] = ()) -> None:
    """Write `batch` as a compressed npz without pickles, all or nothing; `load_batch` gives back the same arrays.

    scores: of each micro-batch, for `load_scores`; () if the step was skipped.
    """
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
        "segment_order": batch.segment_order,
    }
    if batch.micro_batches:
        content |= {
            f"tokens/{name}": np.stack([getattr(m, name) for m in batch.micro_batches]) for name in PACKED_FIELDS
        }
        content["totals"] = np.array(batch.micro_batches[0].totals, np.float64)
    for name in Scores._fields:
        values = [getattr(part, name) for part in scores if getattr(part, name) is not None]
        if values:
            content[f"scores/{name}"] = np.stack(values)
    partial = path.with_name(path.name + ".partial")
    with partial.open("wb") as file:
        np.savez_compressed(file, **content)
    os.replace(partial, path)


def load_batch(path: Path) -> PackedBatch:
    """Read what `save_batch` wrote. Raises RecordError if the file is something else or of another format."""
    with _recorded(path) as content:
        micro_batches: tuple[TokenBatch, ...] = ()
        if int(content["num_micro_batches"]):
            fields = [content[f"tokens/{name}"] for name in PACKED_FIELDS]
            for array in fields:
                array.flags.writeable = False
            totals = Totals(*content["totals"].astype(np.float32))
            micro_batches = tuple(
                TokenBatch(**dict(zip(PACKED_FIELDS, parts, strict=True)), totals=totals)
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
            segment_order=content["segment_order"],
        )


def load_scores(path: Path) -> tuple[Scores, ...]:
    """Read the scores of each micro-batch from a file of `save_batch`; () if it was given none.

    Raises RecordError as `load_batch` does.
    """
    with _recorded(path) as content:
        columns = [content[f"scores/{name}"] for name in Scores._fields if f"scores/{name}" in content]
    return tuple(Scores(*parts) for parts in zip(*columns, strict=True))


@contextmanager
def _recorded(path: Path) -> Iterator[np.lib.npyio.NpzFile]:
    """The content of a recorded batch. Raises RecordError if it is none, broken off, or of another format."""
    try:
        with path.open("rb") as file:
            content = np.load(file, allow_pickle=False)
            if not isinstance(content, np.lib.npyio.NpzFile) or "format" not in content:
                raise RecordError(f"{path} is not a recorded batch")
            if (found := int(content["format"])) != _FILE_FORMAT:
                raise RecordError(f"{path} has format {found}, this version reads {_FILE_FORMAT}")
            yield content
    except RecordError:
        raise
    except (ValueError, EOFError, KeyError, zipfile.BadZipFile, zlib.error) as error:
        raise RecordError(f"{path} is not a recorded batch, or not a whole one: {error}") from error
