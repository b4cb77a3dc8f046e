"""How sessions of remote workers end: by the task, on request, by expiry, with their worker, or because it forgot them.

However it comes, an end is counted once and gives the session's place back once.
"""

from collections import Counter
from collections.abc import Callable
from typing import NoReturn

import trio

from agentrl_jax.controller.remote_config import RemoteConfig
from agentrl_jax.controller.remote_sessions import IdleQueue, RemoteRecord, SessionStore
from agentrl_jax.controller.remote_statistics import TaskCounts
from agentrl_jax.controller.remote_workers import AnswerLost, NotDelivered, RemoteWorker
from agentrl_jax.controller.wire_types import SampleIndex, WireProblem, session_body
from agentrl_jax.controller.workers import Entry, WorkerPool

Report = Callable[[str], None]


class SessionBook:
    """Live sessions, the places that they take, and their ends. report: what a log would say."""

    def __init__(self, config: RemoteConfig, nursery: trio.Nursery, report: Report) -> None:
        self.config, self.report = config, report
        self._nursery = nursery
        self.pool: WorkerPool[RemoteWorker] = WorkerPool(config.registry, nursery, self._lost)
        self.store = SessionStore(remember_s=config.remember_s, resume_s=config.resume_s)
        self._idle: IdleQueue[RemoteRecord] = IdleQueue(config.expire_s)
        self._counts: dict[str, TaskCounts] = {}
        nursery.start_soon(self.store.run)
        nursery.start_soon(self._expire_idle)

    def counts(self, name: str) -> TaskCounts:
        """Of the task `name`."""
        return self._counts.setdefault(name, TaskCounts())

    def failed(self, name: str, problem: WireProblem) -> WireProblem:
        """Count and report why a call for a session of the task `name` failed; returns `problem`."""
        self.counts(name).failures[problem.reason or "refused"] += 1
        self.report(f"{name}: {problem}")
        return problem

    def add(
        self, index: SampleIndex, custom_task: bytes | None, entry: Entry[RemoteWorker], *, expires: bool
    ) -> RemoteRecord:
        """A new session at a place that is taken for it."""
        self.counts(entry.worker.task.name).num_started += 1
        return self.store.add(index, custom_task, entry, expires=expires)

    def adopt(self, session_id: int, index: SampleIndex, entry: Entry[RemoteWorker]) -> RemoteRecord:
        """A session that a worker has from before."""
        self.pool.seize(entry, entry.worker.task.name)
        self.counts(entry.worker.task.name).num_started += 1
        record = self.store.adopt(session_id, index, entry)
        self._idle.touch(record)
        return record

    def begin_call(self, record: RemoteRecord) -> None:
        """A busy session does not expire."""
        record.begin_call()
        self._idle.discard(record)

    def end_call(self, record: RemoteRecord) -> None:
        record.end_call()
        if record.expires and not (record.is_over or record.is_cancelling):
            self._idle.touch(record)

    def finish(self, record: RemoteRecord, how: str) -> None:
        """It is over: `how` is the task's status, or a reason. No effect on one that is over."""
        if self.store.end(record, how):
            self._idle.discard(record)
            self.counts(record.name).ends[how] += 1
            self.pool.give_back(record.entry, record.name)

    def cancel(self, record: RemoteRecord, why: str = "session_cancelled") -> None:
        """Have its worker end it. It is over, and its place free, once the worker says so."""
        if record.is_cancelling or record.is_over:
            return
        record.is_cancelling, record.why_cancelled = True, why
        self._idle.discard(record)
        self._nursery.start_soon(self._cancel, record)

    def noticed(self, session_id: int) -> None:
        """A worker says that a session has ended as it was asked to. Raises WireProblem for one that never was."""
        record = self.store.live.get(session_id)
        if record is not None:
            self.finish(record, record.why_cancelled or "session_cancelled")
        elif self.store.fate(session_id) is None:
            raise WireProblem(400, "session not found")

    def order_end(self, session_id: int, worker: RemoteWorker) -> None:
        """Have a worker end a session that counts for nothing here."""
        self._nursery.start_soon(self._ask_to_cancel, session_id, worker)

    async def _expire_idle(self) -> NoReturn:
        await self._idle.run(lambda record: self.cancel(record, "session_expired"))

    async def _cancel(self, record: RemoteRecord) -> None:
        """With notice; failing that, waiting for it; failing that, the next sync will tell."""
        worker = record.entry.worker
        try:
            with record.entry.switch.scope():
                while not record.is_over:
                    call_over = record.call_over
                    was_calm = call_over.is_set()
                    is_there = await self._ask_to_cancel(record.session_id, worker)
                    if is_there is None:
                        is_there = await self._ask_to_cancel(record.session_id, worker, waits=True)
                        if is_there:
                            self.finish(record, record.why_cancelled)
                    if is_there is not False:
                        return
                    if was_calm:
                        self.finish(record, record.why_cancelled)
                    # Its start may not have come there yet, or its last answer not here.
                    await call_over.wait()
        finally:
            record.cancel_sent.set()

    async def _ask_to_cancel(self, session_id: int, worker: RemoteWorker, *, waits: bool = False) -> bool | None:
        """Whether the worker had such a session; None if it did not say."""
        endpoint = "cancel" if waits else "cancel_with_notice"
        with trio.move_on_after(self.config.interact_s if waits else self.config.control_s):
            try:
                response = await worker.transport.call(endpoint, session_body(session_id))
            except (NotDelivered, AnswerLost):
                return None
            return {200: True, 400: False}.get(response.status)
        return None

    def _lost(self, entry: Entry[RemoteWorker]) -> None:
        records = self.store.of(entry)
        self.report(f"worker {entry.name} was lost, with {len(records)} sessions: {entry.lost}")
        for record in records:
            self.finish(record, "worker_lost")

    def num_sessions(self) -> Counter[str]:
        """Live ones by task."""
        return Counter(record.name for record in self.store.live.values())
