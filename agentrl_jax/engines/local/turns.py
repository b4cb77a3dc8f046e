"""One turn on its way through the embedded engine: what was asked, and what has been sampled so far."""

from dataclasses import dataclass, field

import numpy as np

from agentrl_jax.engines.served import Sampled
from agentrl_jax.types import Completion, FinishReason, Ids, Pool, SamplingParams, VersionSpan


@dataclass(slots=True, eq=False)
class ServedTurn:
    """A request and its progress. The device loop's thread owns it until the turn is finished.

    cached_tokens: prompt tokens found in the cache when the turn got its slot.
    finish_reason: None while the turn is running.
    is_watched: somebody wants to see what it samples; num_reported: how many ids they have seen.
    """

    request_id: int
    prompt: Ids
    sampling: SamplingParams
    session: str
    is_watched: bool = False
    num_reported: int = 0
    cached_tokens: int = 0
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    version_starts: list[tuple[int, int]] = field(default_factory=list)
    finish_reason: FinishReason | None = None

    def extend(self, ids: list[int], logprobs: list[float], *, version: int, room: int) -> int:
        """Append sampled ids up to the first stop id or limit; return how many were taken.

        room: how many more ids the cache can hold for this turn, >= 1.
        """
        before = len(self.ids)
        limit = min(self.sampling.max_new_tokens, before + room)
        if not self.version_starts or self.version_starts[-1][0] != version:
            self.version_starts.append((version, before))
        taken = ids[: limit - before]
        stops = [index for index, token in enumerate(taken) if token in self.sampling.stop_ids]
        if stops:
            taken = taken[: stops[0] + 1]
        self.ids += taken
        self.logprobs += logprobs[: len(taken)]
        if stops:
            self.finish_reason = "stop"
        elif len(self.ids) == limit:
            self.finish_reason = "length"
        return len(taken)

    def news(self) -> Sampled | None:
        """What has been sampled since the last call, all by one version if each device call is followed by one."""
        if not self.is_watched or self.num_reported == len(self.ids):
            return None
        start, self.num_reported = self.num_reported, len(self.ids)
        return Sampled(
            ids=tuple(self.ids[start:]), logprobs=tuple(self.logprobs[start:]), version=self.version_starts[-1][0]
        )

    def completion(self, *, engine: str, pool: Pool) -> Completion:
        """The finished turn as a record; log-probabilities that are not finite are masked and stored as 0."""
        if self.finish_reason is None:
            raise ValueError(f"turn {self.request_id} of session {self.session!r} has not finished")
        logprobs = np.array(self.logprobs, np.float32)
        is_finite = np.isfinite(logprobs)
        ends = [start for _, start in self.version_starts[1:]] + [len(self.ids)]
        return Completion(
            ids=np.array(self.ids, np.int32),
            logprobs=np.where(is_finite, np.minimum(logprobs, 0.0), 0.0),  # rounding may leave them just above 0
            loss_mask=is_finite,
            version_spans=tuple(
                VersionSpan(version=version, start=start, end=end)
                for (version, start), end in zip(self.version_starts, ends, strict=True)
            ),
            finish_reason=self.finish_reason,
            engine=engine,
            pool=pool,
            cached_tokens=self.cached_tokens,
        )
