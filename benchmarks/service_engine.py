"""An inference engine as service times: turns share its iterations, its prefill and its cache. In virtual time.

It knows three kinds of time (service_model.py). *Iterations*: each gives one token to every running turn; they get
slower with every token of context. *Prefill*: what of a prompt is not in the cache is computed first, and meanwhile
nothing decodes. *Publishes*: nothing runs, and the cache is worth nothing afterwards, unless the engine keeps it. A
turn waits, first come first served, while the contexts of the running ones leave no room; idle sessions' prefixes give
way, the oldest first.

Time is advanced from event to event. Between two events b turns decode whose contexts hold K tokens; so n iterations
take n × t0 + kappa × (n × K + b × n² / 2) seconds, which is inverted where an event comes in between.
"""

import math
from collections import OrderedDict, deque
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Any

import numpy as np
import trio

from agentrl_jax.engines.protocol import EngineStatistics
from agentrl_jax.types import Completion, Ids, Pool, SamplingParams, VersionSpan, as_ids
from benchmarks.service_model import ServiceModel

_ROUNDING = 1e-6
"""Iterations by which an event may come too early."""

_IDS = as_ids(np.ones(16384, np.int32))
_LOGPROBS = np.zeros(len(_IDS), np.float32)


@dataclass(eq=False, slots=True)
class _Turn:
    """num_context: prompt and samples. begun: the iteration at which it began to decode."""

    session: str
    num_prompt: int
    num_sampled: int
    done: trio.Event = field(default_factory=trio.Event)
    begun: float = 0.0
    version: int = 0
    num_cached: int = 0

    @property
    def num_context(self) -> int:
        return self.num_prompt + self.num_sampled


class ServiceEngine:
    """Implements `engines.protocol.Engine`. `run` must be running while turns are asked of it.

    keeps_caches: sessions go on with what older weights have computed, as `--publish.mode in_place` has it.
    busy_s: seconds in which a turn decoded, a prompt was computed, or a publish held everything up; to its last event.
    """

    pool: Pool = "current"

    def __init__(self, name: str, model: ServiceModel, sigma: float, *, keeps_caches: bool = False) -> None:
        self.name, self.version = name, 0
        self.busy_s = 0.0
        self.num_iterations = 0.0
        self.prefilled_tokens = self.sampled_tokens = self.num_turns = 0
        self._model, self._sigma, self._keeps_caches = model, sigma, keeps_caches
        self._running: list[tuple[float, int, _Turn]] = []  # by the iteration at which they end
        self._waiting: deque[_Turn] = deque()
        self._idle: OrderedDict[str, int] = OrderedDict()  # cached tokens by session, oldest first
        self._num_idle = self._num_reserved = self._num_begun = 0
        self._context_tokens = 0.0  # of the running turns, now
        self._now = self._stalled_until = 0.0
        self._wake = trio.Event()
        self._due = math.inf
        self._updates: list[tuple[float, int]] = []  # iterations at which versions came, while turns of old ones run

    async def generate(self, prompt_ids: Ids, sampling: SamplingParams, *, session: str) -> Completion:
        wanted = self._model.episode.num_sampled(sampling.seed, self._sigma)
        num_sampled = min(wanted, sampling.max_new_tokens)
        turn = _Turn(session, len(prompt_ids), num_sampled)
        self._advance()
        self._waiting.append(turn)
        self._admit()
        self._alarm()
        await turn.done.wait()
        self.num_turns += 1
        self.sampled_tokens += num_sampled
        return Completion(
            ids=_IDS[:num_sampled],
            logprobs=_LOGPROBS[:num_sampled],
            version_spans=self._spans(turn),
            finish_reason="stop" if num_sampled == wanted else "length",
            engine=self.name,
            pool=self.pool,
            cached_tokens=turn.num_cached,
        )

    async def end_session(self, session: str) -> None:
        await trio.lowlevel.checkpoint()
        self._num_idle -= self._idle.pop(session, 0)

    async def publish(self, weights: Any, version: int) -> None:
        self._advance()
        self._stall(self._model.publish_s)
        await trio.sleep_until(self._stalled_until)
        self._advance()
        if not self._keeps_caches:
            self._idle.clear()
            self._num_idle = 0
        self.version = version
        self._updates.append((self.num_iterations, version))

    async def run(self) -> None:
        """Serve turns until cancelled."""
        while True:
            self._due = self._next_end()
            self._wake = trio.Event()
            with trio.move_on_at(self._due):
                await self._wake.wait()
            self._advance()
            self._finish()
            self._admit()

    def busy_until_now(self) -> float:
        """`busy_s`, with the time since the last event."""
        self._advance()
        return self.busy_s

    def statistics(self) -> EngineStatistics:
        return EngineStatistics(
            version=self.version,
            running=len(self._running),
            waiting=len(self._waiting),
            num_requests=self.num_turns,
            num_aborted=0,
            prompt_tokens=0,
            cached_tokens=0,
            sampled_tokens=self.sampled_tokens,
            num_nonfinite_logprobs=0,
            num_publishes=self.version,
            prefilled_tokens=self.prefilled_tokens,
        )

    def _stall(self, seconds: float) -> None:
        """Nothing decodes for `seconds` more."""
        self._stalled_until = max(self._stalled_until, self._now) + seconds

    def _alarm(self) -> None:
        """Wake `run` if a turn now ends before what it waits for."""
        if self._next_end() < self._due:
            self._wake.set()

    def _next_end(self) -> float:
        """The time at which the first running turn ends."""
        if not self._running:
            return math.inf
        num = max(0.0, self._running[0][0] - self.num_iterations)
        per_iteration = self._model.iteration_s + self._model.context_token_s * self._context_tokens
        growth = self._model.context_token_s * len(self._running) / 2
        return max(self._now, self._stalled_until) + num * per_iteration + growth * num * num

    def _advance(self) -> None:
        """Bring everything to the present."""
        now, begun = trio.current_time(), self._now
        self._now = now
        if not self._running:
            self.busy_s += max(0.0, min(now, self._stalled_until) - begun)
            return
        self.busy_s += now - begun
        seconds = now - max(begun, self._stalled_until)
        if seconds > 0:
            per_iteration = self._model.iteration_s + self._model.context_token_s * self._context_tokens
            growth = self._model.context_token_s * len(self._running) / 2
            root = math.sqrt(per_iteration * per_iteration + 4 * growth * seconds)
            num = 2 * seconds / (per_iteration + root)
            self.num_iterations += num
            self._context_tokens += num * len(self._running)

    def _finish(self) -> None:
        while self._running and self._running[0][0] - self.num_iterations <= _ROUNDING:
            _, _, turn = heappop(self._running)
            self._context_tokens -= turn.num_context
            self._num_reserved -= turn.num_context
            if turn.version == self.version or self._keeps_caches:  # else its cache holds keys of two versions
                self._idle[turn.session] = turn.num_context
                self._num_idle += turn.num_context
            turn.done.set()
        if not self._running:
            self._context_tokens = 0.0

    def _admit(self) -> None:
        capacity, max_running = self._model.cache_tokens, self._model.engine.max_running
        while self._waiting and len(self._running) < max_running:
            turn = self._waiting[0]
            if self._running and self._num_reserved + turn.num_context > capacity:
                return
            self._waiting.popleft()
            turn.num_cached = self._idle.pop(turn.session, 0)
            self._num_idle -= turn.num_cached
            while self._idle and self._num_idle + self._num_reserved + turn.num_context > capacity:
                self._num_idle -= self._idle.popitem(last=False)[1]
            self._begin(turn)

    def _begin(self, turn: _Turn) -> None:
        num_new = turn.num_prompt - turn.num_cached
        self.prefilled_tokens += num_new
        self._stall(num_new * self._model.prefill_s)
        self._num_reserved += turn.num_context
        self._context_tokens += turn.num_prompt
        turn.begun, turn.version = self.num_iterations, self.version
        self._num_begun += 1
        heappush(self._running, (turn.begun + turn.num_sampled, self._num_begun, turn))

    def _spans(self, turn: _Turn) -> tuple[VersionSpan, ...]:
        """Which version sampled which tokens; an update counts from the next whole token."""
        cuts = [(0, turn.version)]
        for iteration, version in self._updates:
            if version > turn.version and turn.num_sampled > (start := math.ceil(iteration - turn.begun)) >= 0:
                cuts = [cut for cut in cuts if cut[0] < start]
                cuts.append((start, version))
        ends = [*(start for start, _ in cuts[1:]), turn.num_sampled]
        return tuple(VersionSpan(version=v, start=start, end=end) for (start, v), end in zip(cuts, ends, strict=True))
