"""Which workers there are, what they serve, and whether their sessions are the ones that we know.

A worker that is new, or back from COMA, is asked for its sessions before it gets others: those from before go on, and
those that it has forgotten are over.
"""

import random
import time
from collections.abc import Callable, Sequence

import trio

from agentrl_jax.controller.remote_book import SessionBook
from agentrl_jax.controller.remote_workers import RemoteWorker, ServedTask, Transport
from agentrl_jax.controller.wire_types import SampleIndex, WireProblem, decoded
from agentrl_jax.controller.workers import Entry, WorkerStatus

_JITTER_S = 2.0
_MAX_SESSION_ID = 1 << 53
"""Ids of ours are smaller for centuries. One that is larger would raise all that come after it."""

MakeTransport = Callable[[], Transport]
ReadIndices = Callable[[], Sequence[SampleIndex]]


class Roster:
    """Registered workers, by their addresses."""

    def __init__(self, book: SessionBook, nursery: trio.Nursery) -> None:
        self.book = book
        self.tasks: dict[str, ServedTask] = {}
        self._entries: dict[str, Entry[RemoteWorker]] = {}
        self._nursery = nursery
        self._num_workers = 0
        self._news = trio.Event()

    def entries(self) -> list[Entry[RemoteWorker]]:
        """The workers that are not lost."""
        return [entry for entry in self._entries.values() if not entry.lost]

    def task(self, name: str) -> ServedTask:
        """Raises WireProblem if no worker has ever served it."""
        if name not in self.tasks:
            raise WireProblem(400, f"task {name} does not exist", "unknown_task")
        return self.tasks[name]

    async def wait_served(self, name: str) -> ServedTask:
        """Return once a worker that serves `name` is ALIVE."""
        while not any(
            entry.worker.task.name == name and entry.status is WorkerStatus.ALIVE for entry in self.entries()
        ):
            await self.wait_news()
        return self.tasks[name]

    async def wait_news(self) -> None:
        """Return after the next worker has become ALIVE, or has been lost."""
        await self._news.wait()

    def worker(self, name: str, worker_id: int) -> Entry[RemoteWorker]:
        """Raises WireProblem if there is none."""
        self.task(name)
        for entry in self.entries():
            if entry.worker.worker_id == worker_id and entry.worker.task.name == name:
                return entry
        raise WireProblem(400, f"worker {worker_id} does not exist", "unknown_worker")

    def heartbeat(
        self,
        name: str,
        address: str,
        concurrency: int,
        *,
        raw: bytes,
        read_indices: ReadIndices,
        make_transport: MakeTransport,
    ) -> Entry[RemoteWorker]:
        """A worker lives; the first heartbeat registers it.

        raw: its indices in whatever form, looked at only if they are not the bytes that it sent before; then
        read_indices reads them. Raises WireProblem for what cannot be.
        """
        entry = self._entries.get(address)
        if entry is not None and entry.lost:
            entry = None
        if not name or not address or concurrency <= 0:
            raise WireProblem(400, "name, address and a positive concurrency must be given", "invalid_heartbeat")
        if entry is None or entry.worker.task.name != name or entry.worker.heartbeat != raw:
            task = self._served(name, raw, read_indices)
            if entry is None or entry.worker.task.name != name:
                entry = self._register(task, address, concurrency, make_transport)
            entry.worker.heartbeat, entry.worker.task = raw, task
            self.tasks[name] = task
        entry.worker.last_visit = time.time()
        entry.places.capacity[name] = concurrency
        if entry.status is WorkerStatus.ALIVE:
            self.book.pool.beat(address)
        elif not entry.worker.is_reviving:
            entry.worker.is_reviving = True
            self._nursery.start_soon(self._revive, entry)
        return entry

    def suspend(self, entry: Entry[RemoteWorker], why: str) -> None:
        """It does not answer: COMA until it beats again."""
        if not entry.lost and not entry.is_suspended:
            self.book.report(f"worker {entry.name} in COMA: {why}")
            self.book.pool.suspend(entry.name)

    async def sync(self, entry: Entry[RemoteWorker]) -> bool:
        """Compare its sessions with ours; False if it did not say which it has."""
        worker, asked_at = entry.worker, trio.current_time()
        response = await worker.ask("get_sessions", b"", within_s=self.book.config.control_s)
        if entry.lost:
            return False
        try:
            if response is None or response.status != 200:
                raise ValueError("no answer" if response is None else f"status {response.status}")
            theirs = decoded(response.body, dict[int, SampleIndex])
        except ValueError as error:
            self.suspend(entry, f"get_sessions: {error}")
            return False
        for session_id, index in theirs.items():
            self._compare(entry, session_id, index)
        for record in self.book.store.of(entry):
            if record.session_id not in theirs and record.calm_since < asked_at:
                self.book.finish(record, record.why_cancelled or "session_lost")
        return True

    async def sync_all(self) -> None:
        """Compare the sessions of every worker now."""
        async with trio.open_nursery() as nursery:
            for entry in self.entries():
                nursery.start_soon(self.sync, entry)

    def _compare(self, entry: Entry[RemoteWorker], session_id: int, index: SampleIndex) -> None:
        record = self.book.store.live.get(session_id)
        if record is not None and record.index == index:
            return  # ours; perhaps the worker is known by two addresses
        if record is not None and record.entry is entry:
            self.book.finish(record, "session_lost")  # there is another one of its id: not ours
        is_id = 0 < session_id < _MAX_SESSION_ID
        is_news = record is None and self.book.store.fate(session_id) is None and is_id
        if is_news and self.book.config.resume_sessions:
            self.book.adopt(session_id, index, entry)
        else:
            self.book.order_end(session_id, entry.worker)

    def _served(self, name: str, raw: bytes, read_indices: ReadIndices) -> ServedTask:
        known = self.tasks.get(name)
        if known is not None and known.raw == raw:
            return known
        indices = list(read_indices())
        if not indices:
            raise WireProblem(400, "indices must not be empty", "invalid_heartbeat")
        if known is not None and known.indices == indices:
            return known
        if known is not None and any(entry.worker.task.name == name for entry in self.entries()):
            raise WireProblem(400, f"task {name} already exists with different indices", "other_indices")
        return ServedTask(name, indices, raw)

    def _register(
        self, task: ServedTask, address: str, concurrency: int, make_transport: MakeTransport
    ) -> Entry[RemoteWorker]:
        transport = make_transport()
        if address in self._entries and not self._entries[address].lost:
            self.book.pool.remove(address)  # it serves another task now
        self._num_workers += 1
        worker = RemoteWorker(
            worker_id=self._num_workers,
            address=address,
            task=task,
            transport=transport,
            last_visit=time.time(),
            heartbeat=b"",
        )
        entry = self.book.pool.register(address, worker, {task.name: concurrency}, is_suspended=True)
        self._entries[address] = entry
        self._nursery.start_soon(self._attend, entry)
        self.book.report(f"worker {address} serves {task.name}: {concurrency} places, {len(task.indices)} indices")
        return entry

    async def _attend(self, entry: Entry[RemoteWorker]) -> None:
        """From its registration to its loss."""
        try:
            with entry.switch.scope():
                while True:
                    await trio.sleep(self.book.config.sync_every_s + random.uniform(0.0, _JITTER_S))
                    await self.sync(entry)
        finally:
            if self._entries.get(entry.name) is entry:
                del self._entries[entry.name]
            self._tell()
            with trio.CancelScope(shield=True):  # closing by force does not wait
                await entry.worker.transport.close()

    def _tell(self) -> None:
        self._news.set()
        self._news = trio.Event()

    async def _revive(self, entry: Entry[RemoteWorker]) -> None:
        with entry.switch.scope():
            if await self.sync(entry):
                self.book.pool.beat(entry.name)
                self._tell()
        entry.worker.is_reviving = False
