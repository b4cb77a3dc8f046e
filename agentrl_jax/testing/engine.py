"""An engine without a model: a seeded toy policy (or a script) in virtual time. An `Engine` and a `ServableEngine`.

The toy policy is a real distribution: the logits after a prefix are a hash of (version, prefix), so ids and
log-probabilities obey the engine contract (temperature, greedy decoding, seeds, stop ids, version spans) exactly.
Faults are functions of the request or are switched on by the test, never random.
"""

import math
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

import numpy as np
import numpy.typing as npt
import trio

from agentrl_jax.engines.protocol import EngineStatistics
from agentrl_jax.engines.served import Sampled, Watch
from agentrl_jax.errors import EngineError
from agentrl_jax.seeding import derive_seed
from agentrl_jax.types import (
    Completion,
    FinishReason,
    Floats,
    Ids,
    Pool,
    SamplingParams,
    Truncation,
    VersionSpan,
    as_ids,
)

Script = Callable[[Ids, SamplingParams], Sequence[int]]
"""(prompt ids, params) → the ids to say. A script that does not end with a stop id gets one if there is room."""

TokenLatency = Callable[[str, SamplingParams], float]
"""(session, params) → seconds between two tokens of this turn."""

AcceptsWeights = Callable[[Any], bool]


def no_latency(session: str, sampling: SamplingParams) -> float:
    """Every token at once."""
    return 0.0


def constant_latency(seconds: float) -> TokenLatency:
    """The same time per token for every turn, in virtual seconds."""
    return lambda session, sampling: seconds


@dataclass
class _Counters:
    num_requests: int = 0
    num_aborted: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    sampled_tokens: int = 0
    num_nonfinite_logprobs: int = 0
    num_publishes: int = 0
    prefilled_tokens: int = 0


@dataclass
class _Sampled:
    """The tokens of one turn so far."""

    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)

    def spans(self) -> tuple[VersionSpan, ...]:
        starts = [i for i, v in enumerate(self.versions) if i == 0 or v != self.versions[i - 1]]
        ends = [*starts[1:], len(self.versions)]
        return tuple(
            VersionSpan(version=self.versions[start], start=start, end=end)
            for start, end in zip(starts, ends, strict=True)
        )


@dataclass(kw_only=True)
class FakeEngine:
    """See the module. Time passes only through trio, so that a MockClock drives everything.

    vocabulary: the ids that the toy policy chooses among, besides the turn's stop ids.
    script: what to say instead of sampling; log-probabilities are then still the toy policy's.
    token_latency: seconds per token of a turn. publish_s: how long a publish takes before it takes effect.
    max_running: turns served at the same time; further ones wait.
    nonfinite_positions: positions of a completion whose log-probability comes out as NaN: masked, counted.
    fails: turns that end in an EngineError once their first token is due.
    accepts: weights that a publish may carry.
    """

    name: str = "fake-0"
    pool: Pool = "current"
    version: int = 0
    vocabulary: tuple[int, ...] = tuple(range(2, 10))
    script: Script | None = None
    token_latency: TokenLatency = no_latency
    publish_s: float = 0.0
    max_running: float = math.inf
    nonfinite_positions: Container[int] = ()
    fails: Callable[[str, SamplingParams], bool] = lambda session, sampling: False
    accepts: AcceptsWeights = lambda weights: True

    def __post_init__(self) -> None:
        self._slots = trio.CapacityLimiter(self.max_running)
        self._publishing = trio.Lock()
        self._counters = _Counters()
        self._turns: set[trio.CancelScope] = set()
        self._prefixes: dict[str, tuple[int, Ids]] = {}
        self._is_dead = False
        self._running = trio.Event()
        self._running.set()

    @property
    def sessions(self) -> frozenset[str]:
        """The sessions whose prefix is kept, that is those that nobody has ended."""
        return frozenset(self._prefixes)

    async def generate(
        self, prompt_ids: Ids, sampling: SamplingParams, *, session: str, watch: Watch | None = None
    ) -> Completion:
        """See `ServableEngine.generate`. Raises EngineError: dead, an empty prompt, or `fails` says so."""
        if not len(prompt_ids):
            raise EngineError(f"{self.name}: a prompt needs at least one id, got none (session {session})")
        self._counters.num_requests += 1
        with self._turn(session):
            async with self._slots:
                return await self._serve(as_ids(prompt_ids), sampling, session, watch)
        raise EngineError(f"{self.name} died while it served session {session}")

    @contextmanager
    def _turn(self, session: str) -> Iterator[None]:
        if self._is_dead:
            raise EngineError(f"{self.name} is dead (session {session})")
        with trio.CancelScope() as death:
            self._turns.add(death)
            try:
                yield
            except trio.Cancelled:
                self._counters.num_aborted += not death.cancel_called
                raise
            finally:
                self._turns.discard(death)

    async def _serve(self, prompt: Ids, sampling: SamplingParams, session: str, watch: Watch | None) -> Completion:
        started_version, cached = self.version, self._cached_tokens(prompt, session)
        pause_s = self.token_latency(session, sampling)
        script = None if self.script is None else self._scripted(prompt, sampling)
        prefix = blake2b(prompt.tobytes(), digest_size=8)
        sampled = _Sampled()
        finish: FinishReason = "length"
        while len(sampled.ids) < sampling.max_new_tokens and finish == "length":
            await trio.sleep(pause_s)
            await self._running.wait()
            if self.fails(session, sampling):
                raise EngineError(f"{self.name} failed on purpose (session {session})")
            said = None if script is None else script[len(sampled.ids)]
            token, logprob = self._sample(prefix.digest(), sampling, len(sampled.ids), said)
            prefix.update(token.to_bytes(4, "little"))
            sampled.ids.append(token)
            sampled.logprobs.append(logprob)
            sampled.versions.append(self.version)
            if watch is not None:
                watch(Sampled(ids=(token,), logprobs=(logprob,), version=self.version))
            finish = "stop" if token in sampling.stop_ids else "length"
        completion = self._completion(sampled, finish, cached)
        self._count(completion, len(prompt))
        if self.version == started_version:
            self._prefixes[session] = (self.version, np.concatenate([prompt, completion.ids]))
        else:
            self._prefixes[session] = (self.version, as_ids(()))
        return completion

    def _scripted(self, prompt: Ids, sampling: SamplingParams) -> list[int]:
        assert self.script is not None
        said = [int(token) for token in self.script(prompt, sampling)]
        stop = next((i for i, token in enumerate(said) if token in sampling.stop_ids), None)
        return [*said, sampling.stop_ids[0]] if stop is None else said[: stop + 1]

    def _sample(self, prefix: bytes, sampling: SamplingParams, position: int, said: int | None) -> tuple[int, float]:
        """Return the next id and its log-probability under softmax(logits / temperature)."""
        stop_ids = [stop for stop in sampling.stop_ids if stop >= 0]  # those below stand for none
        candidates = sorted({*self.vocabulary, *stop_ids, *(() if said is None else (said,))})
        seed = derive_seed("logits", self.version, prefix.hex())
        logits = np.random.default_rng(seed).normal(size=len(candidates))
        scaled = logits / (sampling.temperature or 1.0)
        logprobs = scaled - np.logaddexp.reduce(scaled)
        is_kept = _keeps(logprobs, sampling.truncation)
        if said is not None:
            choice = candidates.index(said)
        elif sampling.temperature == 0:
            choice = int(logits.argmax())
        else:
            noise = np.random.default_rng(derive_seed("token", sampling.seed, position)).gumbel(size=len(candidates))
            choice = int(np.where(is_kept, logprobs + noise, -np.inf).argmax())
        return candidates[choice], float(logprobs[choice])

    def _completion(self, sampled: _Sampled, finish: FinishReason, cached: int) -> Completion:
        raw: Floats = np.array(sampled.logprobs, np.float32)
        raw[[i for i in range(len(raw)) if i in self.nonfinite_positions]] = np.nan
        is_finite = np.isfinite(raw)
        return Completion(
            ids=as_ids(sampled.ids),
            logprobs=np.where(is_finite, np.minimum(raw, 0.0), 0.0),
            loss_mask=is_finite,
            version_spans=sampled.spans(),
            finish_reason=finish,
            engine=self.name,
            pool=self.pool,
            cached_tokens=cached,
        )

    def _count(self, completion: Completion, prompt_tokens: int) -> None:
        self._counters.prompt_tokens += prompt_tokens
        self._counters.cached_tokens += completion.cached_tokens
        self._counters.prefilled_tokens += prompt_tokens - completion.cached_tokens
        self._counters.sampled_tokens += len(completion.ids)
        self._counters.num_nonfinite_logprobs += int((~completion.loss_mask).sum())

    def _cached_tokens(self, prompt: Ids, session: str) -> int:
        """Length of the prefix kept by this version; the last prompt id is always computed afresh."""
        version, kept = self._prefixes.get(session, (self.version, as_ids(())))
        if version != self.version:
            return 0
        shared = min(len(kept), len(prompt))
        differing = np.flatnonzero(kept[:shared] != prompt[:shared])
        return min(int(differing[0]) if len(differing) else shared, len(prompt) - 1)

    async def end_session(self, session: str) -> None:
        """See `Engine.end_session`."""
        await trio.lowlevel.checkpoint()
        self._prefixes.pop(session, None)

    async def publish(self, weights: Any, version: int) -> None:
        """See `Engine.publish`: running turns go on under the new version. Raises EngineError."""
        async with self._publishing:
            await trio.sleep(self.publish_s)
            if self._is_dead:
                raise EngineError(f"{self.name} is dead (publish of version {version})")
            if version <= self.version:
                raise EngineError(f"{self.name}: versions must increase, got {version} after {self.version}")
            if not self.accepts(weights):
                raise EngineError(f"{self.name}: the weights of version {version} do not fit; serving {self.version}")
            self.version = version
            self._counters.num_publishes += 1

    async def pause(self) -> None:
        """See `ServableEngine.pause`."""
        await trio.lowlevel.checkpoint()
        if self._running.is_set():
            self._running = trio.Event()

    async def resume(self) -> None:
        """See `ServableEngine.resume`."""
        await trio.lowlevel.checkpoint()
        self._running.set()

    def die(self) -> None:
        """Fail every running turn, and every later request until `revive`."""
        self._is_dead = True
        for scope in self._turns:
            scope.cancel()
        self._prefixes.clear()

    def revive(self) -> None:
        """Serve again, with an empty cache."""
        self._is_dead = False

    def statistics(self) -> EngineStatistics:
        slots = self._slots.statistics()
        return EngineStatistics(
            version=self.version,
            running=slots.borrowed_tokens,
            waiting=slots.tasks_waiting,
            **vars(self._counters),
        )


def _keeps(logprobs: npt.NDArray[np.float64], truncation: Truncation) -> npt.NDArray[np.bool_]:
    """See `types.Truncation`."""
    order = np.argsort(-logprobs, kind="stable")[: truncation.top_k or None]
    probs = np.exp(logprobs[order])
    probs /= probs.sum()
    order = order[(np.cumsum(probs) - probs < truncation.top_p) & (probs >= truncation.min_p * probs[0])]
    kept: npt.NDArray[np.bool_] = logprobs >= logprobs[order[-1]]
    return kept
