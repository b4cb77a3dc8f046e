"""The env workers of a run: which there are, which of them live, and sessions on them.

A worker is ALIVE while it sends heartbeats, in COMA when it has missed some (it gets no new sessions, its old ones go
on), and DEAD when it has missed them for long: then it is forgotten, its places vanish and its sessions end as env
errors. Heartbeats move a deadline; nothing polls.
"""

import enum
import math
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Generic, TypeVar

import trio

from agentrl_jax.controller.cancellation import CancelSwitch, unwrapped_errors
from agentrl_jax.controller.dispatch import Dispatcher, LineStatistics, PlaceHolder
from agentrl_jax.controller.hosted_sessions import Worker
from agentrl_jax.env import Action, Message, StepResult
from agentrl_jax.errors import ConfigError, EnvError, WorkerUnreachable
from agentrl_jax.types import Task

T = TypeVar("T")
W = TypeVar("W")


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistryConfig:
    """coma_after_s, dead_after_s: ages of the last heartbeat. max_waiting: episodes of one env that wait for a place.
    first_retry_s, max_retry_s: the pauses between calls of a worker that does not answer, doubling from one to the
    other."""

    coma_after_s: float = 11.0
    dead_after_s: float = 300.0
    max_waiting: int = 4096
    first_retry_s: float = 0.1
    max_retry_s: float = 5.0

    def __post_init__(self) -> None:
        if not 0 < self.coma_after_s < self.dead_after_s:
            raise ConfigError(
                f"workers need 0 < coma_after_s < dead_after_s, got {self.coma_after_s} and {self.dead_after_s}"
            )
        if not 0 < self.first_retry_s <= self.max_retry_s < math.inf:
            raise ConfigError(
                f"workers need 0 < first_retry_s <= max_retry_s, got {self.first_retry_s} and {self.max_retry_s}"
            )
        if self.max_waiting < 1:
            raise ConfigError(f"max_waiting must be at least 1, got {self.max_waiting}")


class WorkerStatus(enum.Enum):
    """See the module; a DEAD worker is in no list any more."""

    ALIVE = "ALIVE"
    COMA = "COMA"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerStatistics:
    """capacity, taken: places by env. age_s: of the last heartbeat (0 for workers without)."""

    status: WorkerStatus
    is_draining: bool
    capacity: Mapping[str, int]
    taken: Mapping[str, int]
    age_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistryStatistics:
    """workers: by name. lines: by env. num_lost: workers that died or were removed with sessions on them or without.
    num_retries: calls that were repeated because a worker did not answer."""

    workers: Mapping[str, WorkerStatistics]
    lines: Mapping[str, LineStatistics]
    num_lost: int
    num_retries: int


class Entry(Generic[W]):
    """One registered worker. lost: why it is no more; empty while it is. switch: trips when it is lost."""

    def __init__(self, name: str, worker: W, capacity: Mapping[str, int], *, beats: bool, coma_after_s: float) -> None:
        self.name, self.worker, self._coma_after_s = name, worker, coma_after_s
        self.last_beat = trio.current_time() if beats else math.inf
        self.is_draining = self.is_suspended = self.is_dead = False
        self.lost = ""
        self.switch = CancelSwitch()
        self.death = trio.CancelScope()
        self.places = PlaceHolder(name, capacity, self.is_available)

    @property
    def age_s(self) -> float:
        return max(0.0, trio.current_time() - self.last_beat)

    @property
    def status(self) -> WorkerStatus:
        is_in_coma = self.is_suspended or self.age_s > self._coma_after_s
        return WorkerStatus.COMA if is_in_coma else WorkerStatus.ALIVE

    def is_available(self) -> bool:
        return not self.is_draining and self.status is WorkerStatus.ALIVE


class WorkerPool(Generic[W]):
    """Workers of kind W and their places. on_lost: told of each worker that dies or is removed."""

    def __init__(
        self, config: RegistryConfig, nursery: trio.Nursery, on_lost: Callable[[Entry[W]], None] = lambda entry: None
    ) -> None:
        self.config = config
        self._nursery, self._on_lost = nursery, on_lost
        self._entries: dict[str, Entry[W]] = {}
        self._dispatcher = Dispatcher(config.max_waiting)
        self._num_lost = self.num_retries = 0

    def register(
        self, name: str, worker: W, capacity: Mapping[str, int], *, beats: bool = True, is_suspended: bool = False
    ) -> Entry[W]:
        """Add a worker, or change the capacity of one; either counts as a heartbeat.

        capacity: sessions that it runs at a time, by env. beats: False for a worker in this process, which cannot be
        lost. is_suspended: a new one begins in COMA, and its places are given away after its next heartbeat.
        Raises ConfigError if it serves nothing, or other envs than before.
        """
        if not capacity or min(capacity.values()) < 1:
            raise ConfigError(f"worker {name} must have at least one place for each of its envs, got {dict(capacity)}")
        entry = self._entries.get(name)
        if entry is None:
            entry = Entry(name, worker, capacity, beats=beats, coma_after_s=self.config.coma_after_s)
            entry.is_suspended = is_suspended
            self._add(entry)
            return entry
        if entry.places.capacity.keys() != capacity.keys():
            served, wanted = (", ".join(sorted(envs)) for envs in (entry.places.capacity, capacity))
            raise ConfigError(f"worker {name} serves {served}: remove it before it may serve {wanted}")
        entry.worker = worker
        entry.places.capacity.update(capacity)
        self.beat(name)
        return entry

    def beat(self, name: str) -> None:
        """Note a heartbeat; one in COMA is ALIVE again. Raises ConfigError for a worker that is not registered."""
        entry = self._entry(name)
        entry.is_suspended = False
        if entry.last_beat < math.inf:
            entry.last_beat = trio.current_time()
            entry.death.deadline = entry.last_beat + self.config.dead_after_s
        self._dispatcher.offer(entry.places)

    def suspend(self, name: str) -> None:
        """Put it in COMA until its next heartbeat."""
        self._entry(name).is_suspended = True

    def drain(self, name: str) -> None:
        """Give it no new sessions; those that run go on, and others go elsewhere meanwhile."""
        self._entry(name).is_draining = True

    def resume(self, name: str) -> None:
        """The end of `drain`."""
        entry = self._entry(name)
        entry.is_draining = False
        self._dispatcher.offer(entry.places)

    async def wait_idle(self, name: str) -> None:
        """Return once it has no sessions, or is lost. Raises ConfigError for a worker that is not registered."""
        entry = self._entry(name)
        while entry.places.num_taken and not entry.lost:
            await entry.places.wait_freed()
        await trio.lowlevel.checkpoint()

    def remove(self, name: str) -> None:
        """Forget it at once: its places vanish, and its sessions end as env errors."""
        entry = self._entry(name)
        self._lose(entry, "it was removed")

    def statistics(self) -> RegistryStatistics:
        workers = {
            entry.name: WorkerStatistics(
                status=entry.status,
                is_draining=entry.is_draining,
                capacity=dict(entry.places.capacity),
                taken=dict(entry.places.taken),
                age_s=entry.age_s,
            )
            for entry in self._entries.values()
        }
        lines = self._dispatcher.statistics()
        return RegistryStatistics(workers=workers, lines=lines, num_lost=self._num_lost, num_retries=self.num_retries)

    async def take(self, env: str) -> Entry[W]:
        """A place on a worker; for `give_back`."""
        while True:
            holder = await self._dispatcher.take(env)
            entry = self._entries.get(holder.name)
            if entry is not None and entry.places is holder:
                return entry

    def take_now(self, env: str) -> Entry[W] | None:
        """A place if one is free that nobody waits for; for `give_back`."""
        holder = self._dispatcher.take_now(env)
        return None if holder is None else self._entries[holder.name]

    def seize(self, entry: Entry[W], env: str) -> None:
        """Count a place that is taken already, though nobody asked here; for `give_back`."""
        self._dispatcher.seize(entry.places, env)

    def give_back(self, entry: Entry[W], env: str) -> None:
        self._dispatcher.give_back(entry.places, env)

    def _entry(self, name: str) -> Entry[W]:
        if name not in self._entries:
            known = ", ".join(sorted(self._entries)) or "none"
            raise ConfigError(f"no worker {name!r} is registered: known ones are {known}")
        return self._entries[name]

    def _add(self, entry: Entry[W]) -> None:
        self._entries[entry.name] = entry
        self._dispatcher.add(entry.places)
        entry.death.deadline = entry.last_beat + self.config.dead_after_s
        self._nursery.start_soon(self._watch, entry, name=f"watch {entry.name}")

    async def _watch(self, entry: Entry[W]) -> None:
        with entry.death:
            await trio.sleep_forever()
        if not entry.lost:
            entry.is_dead = True
            self._lose(entry, f"it sent no heartbeat for {self.config.dead_after_s} s")

    def _lose(self, entry: Entry[W], why: str) -> None:
        entry.lost = why
        self._num_lost += 1
        del self._entries[entry.name]
        self._dispatcher.remove(entry.places)
        entry.switch.trip()
        entry.death.cancel()
        entry.places.wake()
        self._on_lost(entry)


class WorkerRegistry(WorkerPool[Worker]):
    """Opened by `open_worker_registry`; `session` is a `SessionFactory`."""

    def __init__(self, config: RegistryConfig, nursery: trio.Nursery) -> None:
        super().__init__(config, nursery)
        # No id may come again on a worker that outlives this process.
        self._run = uuid.uuid4().hex[:12]
        self._num_sessions = 0

    def session(self, task: Task) -> "WorkerSession":
        """A session on whichever worker has a place first. Episodes of an env nobody serves yet wait like others."""
        self._num_sessions += 1
        return WorkerSession(self, task, f"{self._run}-{self._num_sessions}")


class WorkerSession:
    """Implements `sessions.Session` on a registered worker, repeating calls that got no answer."""

    def __init__(self, registry: WorkerRegistry, task: Task, session_id: str) -> None:
        self._registry, self._task, self.session_id = registry, task, session_id
        self._entry: Entry[Worker] | None = None
        self._is_started = False
        self._num_requests = 0

    async def reserve(self) -> None:
        """Wait for a place. Raises EnvError if too many wait already."""
        self._entry = await self._registry.take(self._task.env)

    async def start(self) -> tuple[Message, ...]:
        self._is_started = True
        return await self._call(lambda worker: worker.start(self.session_id, self._task))

    async def interact(self, action: Action) -> StepResult:
        self._num_requests += 1
        number = self._num_requests
        return await self._call(lambda worker: worker.interact(self.session_id, number, action))

    async def close(self) -> None:
        """Close it on its worker, if that is not dead, and give the place back."""
        entry, is_started = self._entry, self._is_started
        if entry is None:
            await trio.lowlevel.checkpoint()
            return
        try:
            if is_started and not entry.is_dead:  # a dead one closes what nobody uses, should it live after all
                await self._asked(entry, lambda worker: worker.close(self.session_id))
        finally:
            self._entry = None
            self._registry.give_back(entry, self._task.env)

    async def _call(self, call: Callable[[Worker], Awaitable[T]]) -> T:
        """The worker's answer. Raises EnvError if it is lost before it comes."""
        entry = self._entry
        if entry is None:
            raise EnvError(f"{self._task.key}: a session was used without a place on a worker")
        with entry.switch.scope():
            return await self._asked(entry, call)
        raise EnvError(f"{self._task.key}: worker {entry.name} was lost: {entry.lost}")

    async def _asked(self, entry: Entry[Worker], call: Callable[[Worker], Awaitable[T]]) -> T:
        """Ask as often as it takes. Whoever awaits it owns the deadline."""
        pause_s = self._registry.config.first_retry_s
        while True:
            try:
                return await call(entry.worker)
            except WorkerUnreachable:
                self._registry.num_retries += 1
                await trio.sleep(pause_s)
                pause_s = min(2 * pause_s, self._registry.config.max_retry_s)


@asynccontextmanager
async def open_worker_registry(config: RegistryConfig | None = None) -> AsyncIterator[WorkerRegistry]:
    """A registry without workers. It must outlive the sessions on it."""
    with unwrapped_errors():
        async with trio.open_nursery() as nursery:
            yield WorkerRegistry(config or RegistryConfig(), nursery)
            nursery.cancel_scope.cancel()
