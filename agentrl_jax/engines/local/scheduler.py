"""Decides what the embedded engine does next: which turn has which slot, and which step the device takes.

Host logic only: no jax, no threads, no clock. Invariants:
- The first `num_held` ids of a slot are in its cache, computed by exactly the weights of the slot's `version`.
- A running turn always has at least one id that is not in the cache: the one the next draw comes after.
- What turns have in common is computed once: a later turn waits for the slot that is computing it, and gets a copy.
- A session keeps its slot between turns until another turn needs it; least recently used sessions lose theirs first,
  and none so soon that its environment had no chance to answer.
"""

from collections import deque
from dataclasses import dataclass, field
from math import isfinite

import numpy as np

from agentrl_jax.engines.local.config import LocalEngineConfig
from agentrl_jax.engines.local.slots import Slot
from agentrl_jax.engines.local.steps import ClearStep, CopyStep, DecodeStep, PrefillStep, Samplings, Step
from agentrl_jax.engines.local.turns import ServedTurn
from agentrl_jax.engines.protocol import EngineStatistics
from agentrl_jax.types import Bools, Floats, Ids

# Device calls for which an idle session keeps its slot though others wait: about as long as filling the slot anew would
# cost everyone. Without it, quick environments and more sessions than slots would evict every prefix before its use.
_GRACE_CALLS = 16
_CALL_TOKENS = 64  # what a prefill call costs besides its tokens, in tokens


@dataclass(slots=True)
class _Counters:
    num_requests: int = 0
    num_aborted: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    shared_tokens: int = 0
    prefilled_tokens: int = 0
    sampled_tokens: int = 0
    num_nonfinite_logprobs: int = 0
    num_publishes: int = 0


@dataclass(eq=False)
class Scheduler:
    """First come, first served; what is pending is prefilled before the next block is decoded.

    That order keeps decode blocks full: on throughput a waiting prefill costs more than a delayed block. But a prompt
    that takes several calls shares them with the turns that run: after each of its chunks they get a block.
    """

    config: LocalEngineConfig
    version: int
    _waiting: deque[ServedTurn] = field(default_factory=deque)
    _sessions: dict[str, Slot] = field(default_factory=dict)
    _counters: _Counters = field(default_factory=_Counters)
    _num_calls: int = 0

    def __post_init__(self) -> None:
        size, tokens = self.config.num_slots, self.config.cache_tokens
        self._slots = [Slot(i, np.zeros(tokens, np.int32), self.version) for i in range(size)]
        self._to_clear: set[int] = set()
        self._owes_block = False  # the last prefill left a prompt half fed
        self._samplings = Samplings(size)

    @property
    def is_idle(self) -> bool:
        """True if there is nothing to do before the next message."""
        return not self._waiting and not self._running()

    def submit(self, turn: ServedTurn) -> None:
        self._counters.num_requests += 1
        self._waiting.append(turn)

    def abort(self, request_id: int) -> None:
        """Drop a turn; its slot is free at once. A turn that has finished already is none of our business."""
        for slot in self._running():
            if slot.turn is not None and slot.turn.request_id == request_id:
                self._release(slot)
                slot.last_used -= _GRACE_CALLS  # whoever gave up a turn has no next one
                self._counters.num_aborted += 1
                return
        for turn in self._waiting:
            if turn.request_id == request_id:
                self._waiting.remove(turn)
                self._counters.num_aborted += 1
                return

    def end_session(self, session: str) -> None:
        slot = self._sessions.pop(session, None)
        if slot is not None:
            slot.session = None

    def set_version(self, version: int) -> None:
        """From now on tokens are those of `version`: whatever is cached is stale, running turns start over."""
        self.version = version
        self._counters.num_publishes += 1
        running = self._running()
        for slot in running:
            self._empty(slot)
        for slot in running:
            slot.follow(running)

    def next_step(self) -> Step | None:
        """Give slots to waiting turns, then say what the device does next; None if nothing is running."""
        self._admit()
        self._num_calls += 1
        if self._to_clear:
            keep = np.ones(len(self._slots), np.bool_)
            keep[list(self._to_clear)] = False
            self._to_clear.clear()
            return ClearStep(keep=keep)
        fed, unfed = self._by_progress()
        ready = [slot for slot in unfed if slot.leader is not None and slot.leader.num_held >= slot.num_shared]
        if ready:
            return self._copy_step(ready)
        # A follower may wait for ids that its leader has yet to draw, so it is no reason not to decode.
        unled = [slot for slot in unfed if slot.leader is None]
        if fed and (self._owes_block or not unled):
            return self._decode_step(fed)
        if unled:
            return self._prefill_step(unled)
        assert not unfed, "every turn that waits for another must wait for one that goes on"
        return None

    def record_prefill(self, step: PrefillStep, ids: Ids, logprobs: Floats) -> list[ServedTurn]:
        """Take in a prefill's draws [P]; return the turns that finished."""
        finished = []
        for row in range(step.num_rows):
            slot = self._slots[step.slots[row]]
            slot.num_held += int(step.counts[row])
            self._counters.prefilled_tokens += int(step.counts[row])
            slot.is_poisoned |= not np.isfinite(logprobs[row])
            if slot.num_pending == 0:
                finished += self._extend(slot, [int(ids[row])], [float(logprobs[row])])
        return finished

    def record_decode(self, step: DecodeStep, ids: Ids, logprobs: Floats) -> list[ServedTurn]:
        """Take in a block's draws [N, S]; return the turns that finished."""
        finished = []
        is_finite: Bools = np.logical_and.reduce(np.isfinite(logprobs), axis=0)
        id_rows, logprob_rows = ids.T.tolist(), logprobs.T.tolist()
        for index in step.slots:
            slot = self._slots[index]
            slot.is_poisoned |= not is_finite[index]
            finished += self._extend(slot, id_rows[index], logprob_rows[index])
        return finished

    def running_turns(self) -> list[ServedTurn]:
        return [slot.turn for slot in self._slots if slot.turn is not None]

    def statistics(self) -> EngineStatistics:
        counters = {name: getattr(self._counters, name) for name in _Counters.__slots__}
        return EngineStatistics(
            version=self.version, running=len(self._running()), waiting=len(self._waiting), **counters
        )

    def _running(self) -> list[Slot]:
        return [slot for slot in self._slots if slot.turn is not None]

    def _admit(self) -> None:
        idle = [slot for slot in self._slots if slot.turn is None]
        if not idle or not self._waiting:
            return
        # A slot whose session is waiting serves that session; the others go to strangers, unowned ones first.
        returning = {turn.session for turn in self._waiting}
        usable = [slot for slot in idle if slot.session in returning or self._is_given_up(slot)]
        if not usable and len(idle) == len(self._slots):
            usable = idle  # nothing runs, so nothing is gained by waiting
        spare = [slot for slot in usable if slot.session not in returning]
        spare.sort(key=lambda slot: (slot.session is None, -slot.last_used))
        waiting: deque[ServedTurn] = deque()
        for turn in self._waiting:
            own = self._sessions.get(turn.session)
            if own is not None and own.turn is None:
                self._assign(own, turn)
            elif spare:
                self._assign(spare.pop(), turn)
            else:
                waiting.append(turn)
        self._waiting = waiting

    def _is_given_up(self, slot: Slot) -> bool:
        return slot.session is None or self._num_calls - slot.last_used >= _GRACE_CALLS

    def _assign(self, slot: Slot, turn: ServedTurn) -> None:
        if slot.session is not None:
            del self._sessions[slot.session]
        self.end_session(turn.session)
        slot.session, slot.turn = turn.session, turn
        self._sessions[turn.session] = slot
        turn.cached_tokens = slot.num_common(turn.prompt, self.version)
        if not turn.cached_tokens:
            self._empty(slot)
        slot.num_ids, slot.num_held = len(turn.prompt), turn.cached_tokens
        slot.ids[: slot.num_ids] = turn.prompt
        self._samplings.assign(slot.index, turn.sampling)
        self._counters.prompt_tokens += len(turn.prompt)
        self._counters.cached_tokens += turn.cached_tokens
        slot.follow(self._slots)

    def _empty(self, slot: Slot) -> None:
        slot.num_held, slot.version, slot.leader = 0, self.version, None
        if slot.is_poisoned:
            self._to_clear.add(slot.index)
            slot.is_poisoned = False

    def _release(self, slot: Slot) -> None:
        slot.turn, slot.last_used = None, self._num_calls
        self._samplings.release(slot.index)

    def _extend(self, slot: Slot, ids: list[int], logprobs: list[float]) -> list[ServedTurn]:
        turn = slot.turn
        assert turn is not None
        before = len(turn.ids)
        room = self.config.cache_tokens - slot.num_ids
        taken = turn.extend(ids, logprobs, version=self.version, room=room)
        slot.ids[slot.num_ids : slot.num_ids + taken] = turn.ids[before:]
        slot.num_ids += taken
        slot.num_held = slot.num_ids - 1  # every id but the last was fed to draw the next
        self._counters.sampled_tokens += taken
        self._counters.num_nonfinite_logprobs += sum(not isfinite(x) for x in turn.logprobs[before:])
        if turn.finish_reason is None:
            return []
        self._release(slot)
        return [turn]

    def _by_progress(self) -> tuple[list[Slot], list[Slot]]:
        """Running slots that can be decoded, and those that cannot yet; of the latter, leaders are up to date."""
        running = self._running()
        unfed = [slot for slot in running if slot.num_pending > 1]
        for slot in unfed:
            if slot.leader is not None and not slot.is_following:
                slot.follow(self._slots)
        return [slot for slot in running if slot.num_pending == 1], unfed

    def _copy_step(self, followers: list[Slot]) -> CopyStep:
        """Copies are done, as far as the books go, once they are ordered: the device takes one step after another."""
        sources, counts = np.zeros(len(self._slots), np.int32), np.zeros(len(self._slots), np.int32)
        for slot in followers:
            assert slot.leader is not None
            assert slot.turn is not None
            sources[slot.index], counts[slot.index] = slot.leader.index, slot.num_shared
            self._counters.shared_tokens += slot.num_shared - slot.num_held
            slot.num_held, slot.leader = slot.num_shared, None
            cached = min(slot.num_held, len(slot.turn.prompt) - 1)
            self._counters.cached_tokens += max(0, cached - slot.turn.cached_tokens)
            slot.turn.cached_tokens = max(cached, slot.turn.cached_tokens)
        return CopyStep(sources=sources, counts=counts)

    def _prefill_step(self, unfed: list[Slot]) -> PrefillStep:
        unfed.sort(key=lambda slot: -slot.num_pending)

        def usefulness(shape: tuple[int, int]) -> float:
            rows, tokens = shape
            fed = sum(min(slot.num_pending, tokens) for slot in unfed[:rows])
            return fed / (rows * tokens + _CALL_TOKENS)

        rows, tokens = max(self.config.prefill_shapes, key=usefulness)
        ids = np.zeros((rows, tokens), np.int32)
        slots = np.full(rows, len(self._slots), np.int32)
        starts, counts = np.zeros(rows, np.int32), np.ones(rows, np.int32)
        chosen = unfed[:rows]
        self._owes_block = chosen[0].num_pending > tokens
        for row, slot in enumerate(chosen):
            count = min(slot.num_pending, tokens)
            ids[row, :count] = slot.ids[slot.num_held : slot.num_held + count]
            slots[row], starts[row], counts[row] = slot.index, slot.num_held, count
        drawn = np.zeros(rows, np.int32)
        indices = np.zeros(rows, np.int32)
        for row, slot in enumerate(chosen):
            assert slot.turn is not None
            drawn[row], indices[row] = slot.index, len(slot.turn.ids)
        draws = self._samplings.draws(drawn, indices)
        return PrefillStep(num_rows=len(chosen), ids=ids, slots=slots, starts=starts, counts=counts, draws=draws)

    def _decode_step(self, fed: list[Slot]) -> DecodeStep:
        self._owes_block = False
        tokens = np.zeros(len(self._slots), np.int32)
        starts = np.full(len(self._slots), self.config.cache_tokens, np.int32)
        indices = np.zeros(len(self._slots), np.int32)
        for slot in fed:
            assert slot.turn is not None
            tokens[slot.index], starts[slot.index] = slot.ids[slot.num_held], slot.num_held
            indices[slot.index] = len(slot.turn.ids)
        draws = self._samplings.draws(np.arange(len(self._slots), dtype=np.int32), indices)
        return DecodeStep(slots=tuple(slot.index for slot in fed), tokens=tokens, starts=starts, draws=draws)
