"""Host records: what an episode leaves behind, as immutable values.

Tokens are facts: ids, log-probabilities and versions come from the engine that sampled them, and are never
re-tokenised or recomputed. Every record validates itself at construction, so that whoever holds one need not.
numpy only: no jax, no trio.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import isfinite
from typing import Literal, TypeVar, get_args

import numpy as np
import numpy.typing as npt

from agentrl_jax.episode_end import EpisodeEnd as EpisodeEnd
from agentrl_jax.errors import RecordError

Ids = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float32]
Bools = npt.NDArray[np.bool_]

_Scalar = TypeVar("_Scalar", bound=np.generic)

Pool = Literal["current", "lagging"]
Split = Literal["train", "eval"]
FinishReason = Literal["stop", "length"]


_ALL_COUNT: Bools = np.ones(0, np.bool_)
"""Stands for a loss_mask that is True everywhere, where none is given."""

_LARGEST_ID = 2**31 - 1

REWARD_DECIMALS = 12
"""Decimals that rewards are compared to: sums of the same rewards in another order count as equal."""


def as_ids(ids: Sequence[int] | npt.NDArray[np.integer]) -> Ids:
    """Return `ids` as a read-only int32 vector of its own. Raises RecordError if one is no token id."""
    return _frozen_ids(np.reshape(ids, -1), "ids")


def _frozen_ids(ids: npt.ArrayLike, name: str) -> Ids:
    given = np.asarray(ids)
    # Casts would truncate fractions and wrap what is too large, and a negative id counts from a table's end.
    if given.size and (given.dtype.kind not in "iu" or given.min() < 0 or given.max() > _LARGEST_ID):
        raise RecordError(f"{name} must be integers in [0, 2^31), got {given.dtype} {given}")
    return _frozen(given, np.int32, name).astype(np.int32, copy=False)


def _frozen(array: npt.ArrayLike, dtype: npt.DTypeLike, name: str) -> npt.NDArray[np.generic]:
    result = np.array(array, dtype=dtype)
    if result.ndim != 1:
        raise RecordError(f"{name} must be a vector, got shape {result.shape}")
    result.flags.writeable = False
    return result


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One problem instance of an env's data set. `seed` fixes everything the env draws for it."""

    env: str
    split: Split
    index: int
    seed: int

    def __post_init__(self) -> None:
        if self.index < 0 or self.seed < 0:
            raise RecordError(f"task index and seed must be >= 0, got {self.index} and {self.seed}")

    @property
    def key(self) -> str:
        """A name that is unique among all tasks of a run."""
        return f"{self.env}/{self.split}/{self.index}/{self.seed}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Truncation:
    """Which ids may be drawn at all, applied one after the other to softmax(logits / temperature).

    top_k: the so many likeliest; 0: all. top_p: of these, renormalised, the likeliest until they have at least this
    probability together; 1: all. min_p: of these, the ones at least min_p times as likely as the likeliest; 0: all.
    Ids as likely as the last one that is kept are kept too.
    """

    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0

    def __post_init__(self) -> None:
        if self.top_k < 0:
            raise RecordError(f"top_k must be >= 0 (0: all ids), got {self.top_k}")
        if not 0.0 < self.top_p <= 1.0:
            raise RecordError(f"top_p must be in (0, 1], got {self.top_p}")
        if not 0.0 <= self.min_p <= 1.0:
            raise RecordError(f"min_p must be in [0, 1], got {self.min_p}")


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How one turn is sampled. Training needs the whole distribution: it never sets a truncation.

    temperature: > 0 samples from softmax(logits / temperature); 0 is greedy (evaluation only), and its
      log-probabilities are those at temperature 1.
    max_new_tokens: at most this many ids, the stop id included.
    seed: fixes the draw of each of the turn's tokens, whatever else the engine serves at the time.
    stop_ids: any of them ends the turn, and is its last id.
    truncation: for evaluation and for other clients. Log-probabilities are those of the whole distribution at
      `temperature` all the same, so they do not sum to 1 over the ids that can be drawn.
    """

    temperature: float
    max_new_tokens: int
    seed: int
    stop_ids: tuple[int, ...]
    truncation: Truncation = Truncation()

    def __post_init__(self) -> None:
        if not 0.0 <= self.temperature < float("inf"):
            raise RecordError(f"temperature must be finite and >= 0, got {self.temperature}")
        if self.max_new_tokens < 1:
            raise RecordError(f"max_new_tokens must be >= 1, got {self.max_new_tokens}")
        if not self.stop_ids:
            raise RecordError("stop_ids must name at least one token id, got none")


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionSpan:
    """Ids [start, end) of a completion were sampled by policy version `version`."""

    version: int
    start: int
    end: int

    def __post_init__(self) -> None:
        if self.version < 0:
            raise RecordError(f"a policy version must be >= 0, got {self.version}")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Completion:
    """What an engine returns for one turn.

    ids: int32 [n], n >= 1, the stop id included if one was sampled.
    logprobs: float32 [n], of the sampling engine, at the sampling temperature; finite.
    loss_mask: bool [n], False where the engine's log-probability was not finite (masked by its client, which
      stores 0 there and counts it).
    version_spans: contiguous, in order, covering [0, n).
    cached_tokens: prompt tokens whose keys and values the engine did not compute again.
    """

    ids: Ids
    logprobs: Floats
    version_spans: tuple[VersionSpan, ...]
    finish_reason: FinishReason
    engine: str
    pool: Pool
    cached_tokens: int = 0
    loss_mask: Bools = field(default_factory=lambda: _ALL_COUNT)

    def __post_init__(self) -> None:
        ids = _frozen_ids(self.ids, "ids")
        mask = np.ones(len(ids), np.bool_) if self.loss_mask is _ALL_COUNT else self.loss_mask
        object.__setattr__(self, "ids", ids)
        object.__setattr__(self, "logprobs", _frozen(self.logprobs, np.float32, "logprobs"))
        object.__setattr__(self, "loss_mask", _frozen(mask, np.bool_, "loss_mask"))
        if not len(ids):
            raise RecordError("a completion needs at least one id, got none")
        if not len(self.logprobs) == len(self.loss_mask) == len(ids):
            raise RecordError(
                f"ids, logprobs and loss_mask must have one length, got {len(ids)}, {len(self.logprobs)} and "
                f"{len(self.loss_mask)}"
            )
        least, largest = float(self.logprobs.min()), float(self.logprobs.max())  # NaN if there is one
        if not (isfinite(least) and isfinite(largest)):
            raise RecordError(f"log-probabilities must be finite, got {self.logprobs}; mask them in the client")
        if largest > 1e-4:
            raise RecordError(f"log-probabilities must be <= 0, got a largest of {largest:g}")
        position = 0
        for span in self.version_spans:
            if span.start != position or span.end <= span.start:
                raise RecordError(f"version spans must cover [0, {len(ids)}) in order, got {self.version_spans}")
            position = span.end
        if position != len(ids):
            raise RecordError(f"version spans must cover [0, {len(ids)}), got {self.version_spans}")
        if self.finish_reason not in get_args(FinishReason) or self.pool not in get_args(Pool):
            raise RecordError(f"unknown finish_reason {self.finish_reason!r} or pool {self.pool!r}")
        if self.cached_tokens < 0:
            raise RecordError(f"cached_tokens must be >= 0, got {self.cached_tokens}")

    @property
    def versions(self) -> Ids:
        """int32 [n]: the policy version of each id."""
        return np.repeat(
            np.array([span.version for span in self.version_spans], np.int32),
            [span.end - span.start for span in self.version_spans],
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Turn:
    """One engine call: the ids that were appended before it, and what it sampled.

    context_ids: int32 [m], what the environment and the template added since the previous turn's last id
      (for a segment's first turn, its whole prompt). Never trained.
    reward: the environment's reward for this turn (0 unless it gives intermediate rewards or ended here).
    num_calls, call_errors: tool calls that were parsed, and the reasons of those that could not be.
    num_bare_calls: how many of num_calls came as JSON without tags (`tool_calls = lenient`).
    """

    context_ids: Ids
    completion: Completion
    reward: float = 0.0
    num_calls: int = 0
    call_errors: tuple[str, ...] = ()
    num_bare_calls: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "context_ids", _frozen_ids(self.context_ids, "context_ids"))
        if not isfinite(self.reward):
            raise RecordError(f"a turn's reward must be finite, got {self.reward}")
        if self.num_calls < 0:
            raise RecordError(f"num_calls must be >= 0, got {self.num_calls}")
        if not 0 <= self.num_bare_calls <= self.num_calls:
            raise RecordError(f"num_bare_calls must be in [0, {self.num_calls}], got {self.num_bare_calls}")


@dataclass(frozen=True, kw_only=True, eq=False)
class Segment:
    """An append-only id stream: turn after turn, context then completion. All vectors are [T]."""

    turns: tuple[Turn, ...]

    def __post_init__(self) -> None:
        if not self.turns:
            raise RecordError("a segment needs at least one turn")
        if not len(self.turns[0].context_ids):
            raise RecordError("a segment's first turn needs a prompt: its first id cannot be predicted")

    @cached_property
    def ids(self) -> Ids:
        return np.concatenate([part for t in self.turns for part in (t.context_ids, t.completion.ids)])

    @cached_property
    def loss_mask(self) -> Bools:
        """True where an engine sampled the id and its log-probability is known."""
        context = [np.zeros(len(turn.context_ids), np.bool_) for turn in self.turns]
        return _interleave(context, [turn.completion.loss_mask for turn in self.turns])

    @cached_property
    def behavior_logprobs(self) -> Floats:
        """The sampling engine's log-probabilities; 0 where loss_mask is False."""
        context = [np.zeros(len(turn.context_ids), np.float32) for turn in self.turns]
        return np.where(
            self.loss_mask, _interleave(context, [t.completion.logprobs for t in self.turns]), np.float32(0)
        )

    @cached_property
    def versions(self) -> Ids:
        """The policy version that sampled each id; -1 for ids that no engine sampled."""
        context = [np.full(len(turn.context_ids), -1, np.int32) for turn in self.turns]
        return _interleave(context, [turn.completion.versions for turn in self.turns])

    @property
    def num_loss_tokens(self) -> int:
        return int(self.loss_mask.sum())


def _interleave(
    context: Sequence[npt.NDArray[_Scalar]], sampled: Sequence[npt.NDArray[_Scalar]]
) -> npt.NDArray[_Scalar]:
    return np.concatenate([part for pair in zip(context, sampled, strict=True) for part in pair])


@dataclass(frozen=True, kw_only=True, eq=False)
class Trajectory:
    """The immutable result of an episode.

    reward: the environment's for `completed`, the penalty of the reason for other policy-caused ends, None for
      infrastructure ends (unless they are penalised as published).
    env_reward: the sum of what the environment gave in its turns, before any penalty (None if it never answered);
      success is judged by it.
    segments: () if the episode died before its first token.
    """

    task: Task
    group_id: int
    member: int
    end: EpisodeEnd
    reward: float | None
    env_reward: float | None
    segments: tuple[Segment, ...]
    wall_s: float = 0.0
    env_s: float = 0.0
    engine_s: float = 0.0
    error: str = ""

    def __post_init__(self) -> None:
        # The published accounting gives the infrastructure's ends a penalty.
        is_fitting = (self.reward or 0.0) <= 0.0 if self.end.is_infrastructure else self.reward is not None
        if not is_fitting:
            raise RecordError(f"an episode that ended as {self.end.value} cannot have reward {self.reward}")
        if not all(isfinite(given) for given in (self.reward, self.env_reward) if given is not None):
            raise RecordError(f"a reward must be finite, got {self.reward} (from the environment {self.env_reward})")

    @property
    def episode_id(self) -> str:
        return f"g{self.group_id}-m{self.member}"

    @property
    def is_valid(self) -> bool:
        """True if it has a reward, and its sampled tokens take part in the loss."""
        return self.reward is not None

    @property
    def votes(self) -> bool:
        """True if its reward counts in the group's baseline: it is valid, and the policy sampled something.

        An episode that ended before its first token (a prompt beyond the context, a wall budget spent waiting for an
        engine) says nothing about what the policy does: it would only shift the others.
        """
        return self.is_valid and bool(self.segments)

    @property
    def turns(self) -> tuple[Turn, ...]:
        return tuple(turn for segment in self.segments for turn in segment.turns)

    @property
    def num_tokens(self) -> int:
        return sum(len(segment.ids) for segment in self.segments)

    @property
    def num_loss_tokens(self) -> int:
        return sum(segment.num_loss_tokens for segment in self.segments)


@dataclass(frozen=True, kw_only=True, eq=False)
class Group:
    """The G trajectories of one task, from one identical initial observation.

    start_version: the learner's version when its episodes began; its age counts from there.
    """

    group_id: int
    task: Task
    start_version: int
    trajectories: tuple[Trajectory, ...]

    def __post_init__(self) -> None:
        if self.start_version < 0:
            raise RecordError(f"group {self.group_id}: start_version must be >= 0, got {self.start_version}")
        members = [trajectory.member for trajectory in self.trajectories]
        if members != list(range(len(members))):
            raise RecordError(f"group {self.group_id}: members must be 0..G-1 in order, got {members}")
        if any(t.group_id != self.group_id or t.task != self.task for t in self.trajectories):
            raise RecordError(f"group {self.group_id}: every trajectory must be of its task {self.task.key}")

    @property
    def has_signal(self) -> bool:
        """True if at least two members that vote got different rewards (to REWARD_DECIMALS)."""
        rewards = [t.reward for t in self.trajectories if t.votes and t.reward is not None]
        return len({round(reward, REWARD_DECIMALS) for reward in rewards}) > 1
