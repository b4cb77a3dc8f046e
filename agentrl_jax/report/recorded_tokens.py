"""What a recorded batch says about the tokens of an episode: the learner's log-probabilities, advantages, signal.

A batch holds segments of ids without names. A segment is found again by its ids and, among several equal ones, by the
engine's log-probabilities; where that does not single out one value, nothing is said, rather than something wrong.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from agentrl_jax.batch import TokenBatch
from agentrl_jax.batch_files import load_batch, load_scores
from agentrl_jax.packing import PackedBatch, unpack
from agentrl_jax.types import Floats, Ids

RATIO_EDGES = np.array([0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0])
"""|log ratio| at which the bars of the histogram of ratios part, on both sides of 1; nats."""

_COLUMNS = ("advantages", "behavior_logprobs", "has_signal", "loss_mask", "version_lag")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SegmentTokens:
    """Of one segment, one value a token [T]. logprobs: the learner's, under the params the step began with.

    reference_logprobs: of the frozen reference; each None if the step recorded none.
    """

    advantages: Floats
    behavior_logprobs: Floats
    has_signal: npt.NDArray[np.bool_]
    loss_mask: npt.NDArray[np.bool_]
    version_lag: Ids
    logprobs: Floats | None
    reference_logprobs: Floats | None


class RecordedTokens:
    """The tokens of one recorded batch. Raises RecordError if `path` is no whole recorded batch of this version."""

    def __init__(self, path: Path) -> None:
        batch, scores = load_batch(path), load_scores(path)
        lengths, self._columns = unpack(batch)
        self._scores: dict[str, npt.NDArray[Any] | None] = {"logprobs": None, "reference_logprobs": None}
        for name in self._scores if scores else ():
            values = [getattr(score, name) for score in scores]
            if values[0] is not None:
                self._scores[name] = _unpacked(batch, values)
        ends = np.cumsum(lengths)
        self._by_ids: dict[bytes, list[slice]] = {}
        for end, length in zip(ends.tolist(), lengths.tolist(), strict=True):
            where = slice(end - length, end)
            self._by_ids.setdefault(self._columns["ids"][where].tobytes(), []).append(where)

    def segment(self, ids: Ids, behavior_logprobs: Floats | None) -> SegmentTokens | None:
        """The recorded segment of these ids [T]; None if there is none, or several that say different things.

        behavior_logprobs: [T], 0 where no engine sampled; None if they are not known.
        """
        found = self._by_ids.get(np.ascontiguousarray(ids, np.int32).tobytes(), [])
        if behavior_logprobs is not None and len(found) > 1:
            found = [w for w in found if np.array_equal(self._columns["behavior_logprobs"][w], behavior_logprobs)]
        if not found or any(self._differ(found[0], other) for other in found[1:]):
            return None
        values: dict[str, Any] = {name: self._columns[name][found[0]] for name in _COLUMNS}
        values |= {name: None if scores is None else scores[found[0]] for name, scores in self._scores.items()}
        return SegmentTokens(**values)

    def ratio_counts(self) -> npt.NDArray[np.int64]:
        """Tokens of loss_mask by π/π_behavior at the start of the step: [2 · len(RATIO_EDGES) + 1], ascending.

        Those of a policy that has become NaN have none. All 0 if the step recorded no log-probabilities.
        """
        edges = np.concatenate([-RATIO_EDGES[::-1], RATIO_EDGES])
        logprobs = self._scores["logprobs"]
        if logprobs is None:
            return np.zeros(len(edges) + 1, np.int64)
        ratio = (logprobs - self._columns["behavior_logprobs"])[self._columns["loss_mask"]]
        return np.bincount(np.searchsorted(edges, ratio[~np.isnan(ratio)]), minlength=len(edges) + 1)

    def _differ(self, one: slice, other: slice) -> bool:
        return any(not np.array_equal(self._columns[name][one], self._columns[name][other]) for name in _COLUMNS)


def _unpacked(batch: PackedBatch, values: Sequence[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    """Per-token `values` of the micro-batches in the order of `unpack`."""

    def carrying(micro_batch: TokenBatch, carried: npt.NDArray[Any]) -> TokenBatch:
        return micro_batch._replace(behavior_logprobs=carried)

    pairs = zip(batch.micro_batches, values, strict=True)
    carrier = replace(batch, micro_batches=tuple(carrying(micro_batch, carried) for micro_batch, carried in pairs))
    return unpack(carrier)[1]["behavior_logprobs"]
