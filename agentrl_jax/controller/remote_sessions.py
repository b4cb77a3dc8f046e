"""The sessions of remote workers: their ids, who is idle for how long, and why those that are over ended."""

import math
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, NoReturn, TypeVar

import trio

from agentrl_jax.controller.outcomes import Outcome
from agentrl_jax.controller.remote_workers import RemoteWorker
from agentrl_jax.controller.wire_types import SampleIndex, WireProblem, WorkerAnswer
from agentrl_jax.controller.workers import Entry

K = TypeVar("K")

_FIRST_MS = 1_704_067_200_000  # 2024
_IDS_PER_MS = 1 << 10
_MAX_REMEMBERED = 100_000


class RemoteRecord:
    """One session on a remote worker.

    started_at, used_at: seconds since 1970. calm_since: the loop's time at which its last call ended; infinite while
    one is under way, `call_over` comes after that. expires: False if whoever started it surely closes it.
    why_cancelled: a reason; empty if it is not cancelled. cancel_sent: its worker has been asked to, or cannot be,
    or it is over.
    """

    def __init__(
        self,
        session_id: int,
        index: SampleIndex,
        custom_task: bytes | None,
        entry: Entry[RemoteWorker],
        *,
        expires: bool = True,
    ) -> None:
        self.session_id, self.index, self.custom_task, self.entry = session_id, index, custom_task, entry
        self.expires = expires
        self.started_at = self.used_at = time.time()
        self.calm_since = trio.current_time()
        self.is_cancelling = self.is_over = False
        self.why_cancelled = ""
        self.call_over, self.cancel_sent = trio.Event(), trio.Event()
        self.call_over.set()
        self.last_request: tuple[str, Outcome[WorkerAnswer]] | None = None

    @property
    def name(self) -> str:
        """Of its task."""
        return self.entry.worker.task.name

    @property
    def is_busy(self) -> bool:
        """Whether a call is under way."""
        return not self.call_over.is_set()

    def was_asked(self, request_id: str | None) -> bool:
        """Whether its last turn had this id."""
        return request_id is not None and self.last_request is not None and self.last_request[0] == request_id

    def begin_call(self) -> None:
        self.calm_since, self.used_at = math.inf, time.time()
        self.call_over = trio.Event()

    def end_call(self) -> None:
        self.calm_since, self.used_at = trio.current_time(), time.time()
        self.call_over.set()


class IdleQueue(Generic[K]):
    """Keys in the order in which they fall due, all of them `after_s` after they were last touched."""

    def __init__(self, after_s: float) -> None:
        self._after_s = after_s
        self._due: OrderedDict[K, float] = OrderedDict()
        self._filled = trio.Event()

    def touch(self, key: K) -> None:
        """Let its time begin anew."""
        self._due[key] = trio.current_time() + self._after_s
        self._due.move_to_end(key)
        self._filled.set()

    def discard(self, key: K) -> None:
        self._due.pop(key, None)

    async def run(self, on_due: Callable[[K], None]) -> NoReturn:
        """Tell of each key that falls due, and forget it."""
        while True:
            while not self._due:
                self._filled = trio.Event()
                await self._filled.wait()
            key, due = next(iter(self._due.items()))
            await trio.sleep_until(due)
            if self._due.get(key, math.inf) <= trio.current_time():
                del self._due[key]
                on_due(key)


class SessionStore:
    """Live sessions by id, and the fates of others.

    Ids never come again, in whichever process: they begin at the present millisecond, and rise above every id that a
    worker reports.
    """

    def __init__(self, *, remember_s: float, resume_s: float) -> None:
        self.live: dict[int, RemoteRecord] = {}
        self.first_id = self._next_id = (int(time.time() * 1000) - _FIRST_MS) * _IDS_PER_MS
        self._fates: dict[int, tuple[RemoteRecord, str]] = {}
        self._forgetting: IdleQueue[int] = IdleQueue(remember_s)
        self._resumes_until = trio.current_time() + resume_s
        self._adopted = trio.Event()

    async def run(self) -> NoReturn:
        """Forget fates in time."""
        await self._forgetting.run(self._forget)

    def _forget(self, session_id: int) -> None:
        self._fates.pop(session_id, None)

    def add(
        self, index: SampleIndex, custom_task: bytes | None, entry: Entry[RemoteWorker], *, expires: bool
    ) -> RemoteRecord:
        """A new session."""
        record = RemoteRecord(self._next_id, index, custom_task, entry, expires=expires)
        self._next_id += 1
        self.live[record.session_id] = record
        return record

    def adopt(self, session_id: int, index: SampleIndex, entry: Entry[RemoteWorker]) -> RemoteRecord:
        """One that a worker has from before."""
        self._next_id = max(self._next_id, session_id + 1)
        record = self.live[session_id] = RemoteRecord(session_id, index, None, entry)
        self._adopted.set()
        self._adopted = trio.Event()
        return record

    def end(self, record: RemoteRecord, reason: str) -> bool:
        """It is over; False if it was already."""
        if record.is_over:
            return False
        record.is_over = True
        record.cancel_sent.set()
        del self.live[record.session_id]
        self._fates[record.session_id] = (record, reason)
        self._forgetting.touch(record.session_id)
        if len(self._fates) > _MAX_REMEMBERED:
            self._fates.pop(next(iter(self._fates)))
        return True

    def fate(self, session_id: int) -> tuple[RemoteRecord, str] | None:
        """A session that is over, and why; None if it is not known."""
        return self._fates.get(session_id)

    def of(self, entry: Entry[RemoteWorker]) -> list[RemoteRecord]:
        """Live sessions of one worker."""
        return [record for record in self.live.values() if record.entry is entry]

    async def find(self, session_id: int) -> RemoteRecord:
        """A live session; shortly after this process's start, one that a worker may still report is waited for.

        Raises WireProblem if there is none, with the reason if that is known.
        """
        may_be_older = 0 < session_id < self.first_id
        while session_id not in self.live and session_id not in self._fates and may_be_older:
            with trio.move_on_at(self._resumes_until) as scope:
                await self._adopted.wait()
            if scope.cancelled_caught:
                break
        record = self.live.get(session_id)
        if record is not None:
            return record
        _, reason = self._fates.get(session_id, (None, ""))
        raise WireProblem(400, "session not found", reason)
