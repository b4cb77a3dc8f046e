"""Episodes token by token, as the viewer of a report reads them: texts, ids' spellings, and what is known of each."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from agentrl_jax.errors import RecordError
from agentrl_jax.report.episode_table import EpisodeTable
from agentrl_jax.report.page import embedded_json
from agentrl_jax.report.recorded_tokens import RecordedTokens, SegmentTokens
from agentrl_jax.runlog import floats_from_text, ids_from_text
from agentrl_jax.types import Floats, Ids

LOGPROB_UNIT = 1e-4
"""Log-probabilities are whole numbers of so many nats: four digits are more than anyone reads."""

MAX_DETAIL_BYTES = 18_000_000
"""JSON of all details together; with it a report stays under 30 MB."""

_MAX_UNFINISHED = 8
"""Ids that one character may be spelt by, before they are shown as they are."""

Decode = Callable[[Ids], str]
Batches = Mapping[int, RecordedTokens]
"""By step."""


class _Turn(msgspec.Struct):
    """A turn as `runlog.describe` writes it; runs of earlier versions lack the fields with defaults."""

    segment: int
    context: str
    sampled: str
    versions: list[tuple[int, int, int]]
    pool: str
    engine: str
    finish_reason: str
    cached_tokens: int
    reward: float
    calls: int
    call_errors: list[str]
    context_ids: str = ""
    ids: str = ""
    logprobs: str = ""
    masked: list[int] = []


class _Episode(msgspec.Struct):
    turns: list[_Turn]


@dataclass(slots=True)
class Details:
    """What a report holds of the episodes that it shows token by token.

    episodes: by row, JSON. texts: what their numbers stand for; prompts of one group are the same.
    omitted: rows for which there was no room.
    """

    episodes: dict[int, dict[str, Any]] = field(default_factory=dict)
    texts: list[str] = field(default_factory=list)
    omitted: list[int] = field(default_factory=list)


def collect_details(
    table: EpisodeTable,
    rows: Sequence[int],
    batches: Batches,
    decode: Decode | None,
    *,
    max_bytes: int = MAX_DETAIL_BYTES,
) -> Details:
    """The details of `rows`, the first of them in any case, the others as long as there is room.

    decode: spells ids; None if the run's tokenizer is not at hand: then a turn is one piece of text, without figures.
    Raises RecordError if a turn or its ids cannot be read.
    """
    details, numbers, num_bytes = Details(), dict[str, int](), 0
    decoder = msgspec.json.Decoder(_Episode)
    for row in rows:
        try:
            played = decoder.decode(table.line(row))
        except msgspec.DecodeError as error:
            raise RecordError(f"{table.path}: expected the turns of {table.episode_id(row)}, got {error}") from error
        new = [turn.context for turn in played.turns if turn.context not in numbers]
        found = _episode(played, batches.get(table.columns["step"][row]), decode)
        size = len(embedded_json(found)) + sum(len(embedded_json(text)) for text in dict.fromkeys(new))
        if details.episodes and num_bytes + size > max_bytes:
            details.omitted.append(row)
            continue
        num_bytes += size
        for turn, shown in zip(played.turns, found["turns"], strict=True):
            shown["context"] = numbers.setdefault(turn.context, len(numbers))
        details.episodes[row] = found
    details.texts = list(numbers)
    return details


def pieces(ids: Ids, decode: Decode) -> list[str]:
    """The text that each id adds, "" for ids before the last of a character's; together they are `decode(ids)`.

    >>> import numpy as np
    >>> euro = dict(enumerate("€".encode()))
    >>> def decode(ids): return bytes(euro.get(int(i), 65) for i in ids).decode("utf-8", errors="replace")
    >>> pieces(np.array([7, 0, 1, 2]), decode)
    ['A', '', '', '€']
    """
    spelt: list[str] = []
    begin = 0
    for end in range(1, len(ids) + 1):
        text = decode(ids[begin:end])
        if text.endswith("\ufffd") and end < len(ids) and end - begin < _MAX_UNFINISHED:
            spelt.append("")
            continue
        spelt.append(text)
        begin = end
    return spelt


def _episode(played: _Episode, batch: RecordedTokens | None, decode: Decode | None) -> dict[str, Any]:
    turns: list[dict[str, Any]] = []
    segments: dict[int, list[_Turn]] = {}
    for turn in played.turns:
        segments.setdefault(turn.segment, []).append(turn)
    has_batch = bool(segments) and batch is not None
    for segment in segments.values():
        recorded = None if batch is None else _recorded(segment, batch)
        has_batch = has_batch and recorded is not None
        position = 0
        for turn in segment:
            position += len(ids_from_text(turn.context_ids))
            num_ids = len(ids_from_text(turn.ids))
            where = slice(position, position + num_ids)
            turns.append(_turn(turn, recorded, where, decode))
            position += num_ids
    return {"turns": turns, "hasBatch": has_batch}


def _recorded(segment: Sequence[_Turn], batch: RecordedTokens) -> SegmentTokens | None:
    """What `batch` says about a segment of these turns; None for runs that recorded no ids."""
    vectors = [_vectors(turn) for turn in segment]
    if not len(vectors[0][0]):
        return None
    ids = np.concatenate([part for context, sampled, _ in vectors for part in (context, sampled)])
    behavior = []
    for turn, (context, sampled, logprobs) in zip(segment, vectors, strict=True):
        if logprobs is None:
            return batch.segment(ids, None)
        masked = np.isin(np.arange(len(sampled)), turn.masked)
        behavior += [np.zeros(len(context), np.float32), np.where(masked, np.float32(0), logprobs)]
    return batch.segment(ids, np.concatenate(behavior))


def _vectors(turn: _Turn) -> tuple[Ids, Ids, Floats | None]:
    """(context ids, sampled ids, log-probabilities of these); None for those of runs that did not record them."""
    try:
        logprobs = floats_from_text(turn.logprobs) if turn.logprobs else None
        context, sampled = ids_from_text(turn.context_ids), ids_from_text(turn.ids)
    except ValueError as error:
        raise RecordError(f"expected ids and log-probabilities in base64, got {error}") from error
    if logprobs is not None and len(logprobs) != len(sampled):
        raise RecordError(f"expected as many log-probabilities as sampled ids, got {len(logprobs)} and {len(sampled)}")
    return context, sampled, logprobs


def _turn(turn: _Turn, recorded: SegmentTokens | None, where: slice, decode: Decode | None) -> dict[str, Any]:
    _, sampled, logprobs = _vectors(turn)
    shown: dict[str, Any] = {
        "segment": turn.segment,
        "pieces": pieces(sampled, decode) if decode is not None and len(sampled) else [turn.sampled],
        "pool": turn.pool,
        "engine": turn.engine,
        "finish": turn.finish_reason,
        "cached": turn.cached_tokens,
        "reward": turn.reward,
        "calls": turn.calls,
        "callErrors": turn.call_errors,
        "versions": turn.versions,
        "masked": turn.masked,
    }
    if len(shown["pieces"]) != len(sampled):
        return shown
    if recorded is not None:
        logprobs = recorded.behavior_logprobs[where] if logprobs is None else logprobs
        counts = recorded.loss_mask[where]
        shown["advantage"] = _one_or_all(recorded.advantages[where], counts)
        shown["signal"] = bool(recorded.has_signal[where].any())
        shown["lag"] = _one_or_all(recorded.version_lag[where], counts)
        shown["masked"] = np.flatnonzero(~counts).tolist()
        for name, values in (("learner", recorded.logprobs), ("reference", recorded.reference_logprobs)):
            if values is not None:
                shown[name] = _units(values[where])
    if logprobs is not None:
        shown["behavior"] = _units(logprobs)
    return shown


def _units(values: Floats) -> list[int | None]:
    """None for what is not finite, as those of a policy that has broken down are."""
    return [round(value / LOGPROB_UNIT) if isfinite(value) else None for value in values.tolist()]


def _one_or_all(values: npt.NDArray[Any], counts: npt.NDArray[np.bool_]) -> float | list[float]:
    """One number where all that count are the same, as advantages of a turn are."""
    rounded = [round(float(value), 5) for value in values]
    kept = {value for value, does in zip(rounded, counts, strict=True) if does}
    return kept.pop() if len(kept) == 1 else rounded
