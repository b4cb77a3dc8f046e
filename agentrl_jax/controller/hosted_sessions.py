"""Sessions on the worker's side: each request has one effect however often it is sent, and what is forgotten expires.

Every session is one task of the host's nursery. It owns the session from before its start to after its close, so
that a caller who goes away, a cancelled one included, neither leaks a session nor undoes what it has asked for: a
request once begun is carried out, and its answer is there for whoever asks again.
"""

from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Protocol, TypeVar

import trio

from agentrl_jax.controller.cancellation import unwrapped_errors
from agentrl_jax.controller.outcomes import Outcome
from agentrl_jax.controller.sessions import Session, SessionFactory
from agentrl_jax.env import Action, Message, StepResult
from agentrl_jax.errors import (
    ConfigError,
    EnvError,
    EnvTimeout,
    RequestOrderError,
    SessionExpired,
    UnknownSession,
)
from agentrl_jax.types import Task

T = TypeVar("T")

_MAX_REMEMBERED = 10_000
"""Sessions that are over, or were closed before their start came, and whose fate is still known."""


class Worker(Protocol):
    """What serves sessions: a `SessionHost` in this process, or an adapter that speaks to a remote one.

    Every call may be repeated with the same arguments, in particular after WorkerUnreachable, and then has one effect
    and one result. Any call may raise EnvError; for `SessionExpired` and `UnknownSession` see there.
    """

    async def start(self, session_id: str, task: Task) -> tuple[Message, ...]:
        """Make and start a session. `session_id` is the caller's choice, unique for all time."""
        ...

    async def interact(self, session_id: str, request_id: int, action: Action) -> StepResult:
        """Carry out request 1, 2, 3, … of a session. Raises RequestOrderError for one that cannot come next."""
        ...

    async def close(self, session_id: str) -> None:
        """Release a session, whatever it is doing; no error if there is none. A start that comes later is refused."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class HostConfig:
    """The bounds of hosted sessions.

    call_deadline_s: a start or a request that takes longer is cancelled, and with it the env's process.
    idle_expiry_s: a session that nobody uses for so long is closed. It must exceed the longest turn of an engine, and
      every pause in which its worker may be unreachable and still come back.
    close_deadline_s: bounds each close.
    """

    call_deadline_s: float = 600.0
    idle_expiry_s: float = 660.0
    close_deadline_s: float = 10.0

    def __post_init__(self) -> None:
        for name in ("call_deadline_s", "idle_expiry_s", "close_deadline_s"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name} must be positive, got {getattr(self, name)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class HostStatistics:
    """num_live: sessions now. The others count since the host was opened; num_repeated: requests that were answered
    from, or joined, an earlier one with the same id."""

    num_live: int
    num_started: int
    num_expired: int
    num_repeated: int


class _Hosted:
    """One session and the task that owns it."""

    def __init__(self, session_id: str, task: Task, session: Session, config: HostConfig) -> None:
        self.session_id, self.task = session_id, task
        self._session, self._config = session, config
        self.start: Outcome[tuple[Message, ...]] = Outcome()
        self.closed: Outcome[None] = Outcome()
        self._last: Outcome[StepResult] | None = None
        self._last_action: Action | None = None
        self._num_requests = 0
        self._is_over = False
        self._sender, self._receiver = trio.open_memory_channel[Callable[[], Awaitable[None]]](1)
        self._life, self._idle = trio.CancelScope(), trio.CancelScope()
        self.fate: EnvError | None = None

    async def run(self) -> None:
        """Start it, carry out requests, and close it, whatever happens."""
        try:
            with self._life:
                await self.start.record(lambda: self._timed("start", self._begin))
                await self._serve()
            self.fate = self.fate or UnknownSession(f"{self._name}: it is closed")
            if self._last is not None:
                self._last.fail(self.fate)  # asked for in the moment in which it ended
        finally:
            with trio.CancelScope(shield=True, deadline=trio.current_time() + self._config.close_deadline_s):
                await self.closed.record(self._session.close)

    @property
    def _name(self) -> str:
        return f"{self.task.key}: session {self.session_id}"

    async def _begin(self) -> tuple[Message, ...]:
        await self._session.reserve()
        return await self._session.start()

    async def _serve(self) -> None:
        while True:
            with trio.CancelScope() as self._idle:
                self.touch()
                request = await self._receiver.receive()
            if self._idle.cancelled_caught:
                idle_s = self._config.idle_expiry_s
                self.fate = SessionExpired(f"{self._name}: session_expired: nobody used it for {idle_s} s")
                return
            await request()

    async def _timed(self, what: str, call: Callable[[], Awaitable[T]]) -> T:
        with trio.move_on_after(self._config.call_deadline_s):
            return await call()
        raise EnvTimeout(f"{self._name}: {what} took longer than {self._config.call_deadline_s} s")

    def touch(self) -> None:
        """Let the time to its expiry begin anew."""
        self._idle.deadline = trio.current_time() + self._config.idle_expiry_s

    def request(self, request_id: int, action: Action) -> tuple[Outcome[StepResult], bool]:
        """The outcome of a request, and whether it had been asked for before."""
        if self._last is not None and request_id == self._num_requests:
            if repr(action) != repr(self._last_action):  # not by ==: a NaN differs from itself
                raise RequestOrderError(f"{self._name}: request {request_id} came again with another action")
            self.touch()
            return self._last, True
        self._check_next(request_id)
        self._num_requests, self._last_action = request_id, action
        self._last = outcome = Outcome[StepResult]()
        self._sender.send_nowait(lambda: outcome.record(lambda: self._timed("step", lambda: self._step(action))))
        return outcome, False

    def _check_next(self, request_id: int) -> None:
        if request_id != self._num_requests + 1:
            raise RequestOrderError(f"{self._name}: expected request {self._num_requests + 1}, got {request_id}")
        if not self.start.is_known or not (self._last is None or self._last.is_known):
            raise RequestOrderError(f"{self._name}: request {request_id} came before the last one was answered")
        if self._is_over:
            raise RequestOrderError(f"{self._name}: request {request_id} came after the end of the episode")

    async def _step(self, action: Action) -> StepResult:
        result = await self._session.interact(action)
        self._is_over = result.end is not None
        return result

    def end(self) -> None:
        """Have its task cancel what it does, and close."""
        self._life.cancel()


class SessionHost:
    """Implements `Worker` in this process, for the envs of `sessions`, by name. Opened by `open_session_host`."""

    def __init__(self, sessions: Mapping[str, SessionFactory], config: HostConfig, nursery: trio.Nursery) -> None:
        self._sessions, self._config, self._nursery = sessions, config, nursery
        self._live: dict[str, _Hosted] = {}
        self._fates: OrderedDict[str, EnvError] = OrderedDict()
        self._num_started = self._num_expired = self._num_repeated = 0

    def statistics(self) -> HostStatistics:
        return HostStatistics(
            num_live=len(self._live),
            num_started=self._num_started,
            num_expired=self._num_expired,
            num_repeated=self._num_repeated,
        )

    async def start(self, session_id: str, task: Task) -> tuple[Message, ...]:
        """See `Worker`. Raises UnknownSession for an id that was used before, EnvError for an env not served here."""
        hosted = self._live.get(session_id)
        if hosted is None:
            self._raise_fate(session_id)
            if task.env not in self._sessions:
                raise EnvError(f"{task.key}: this worker serves {', '.join(sorted(self._sessions))}")
            hosted = _Hosted(session_id, task, self._sessions[task.env](task), self._config)
            self._live[session_id] = hosted
            self._num_started += 1
            self._nursery.start_soon(self._own, hosted, name=session_id)
        elif hosted.task != task:
            raise RequestOrderError(f"session {session_id} is one of {hosted.task.key}, not of {task.key}")
        else:
            self._num_repeated += 1
        return await hosted.start.wait()

    async def interact(self, session_id: str, request_id: int, action: Action) -> StepResult:
        """See `Worker`."""
        hosted = self._live.get(session_id)
        if hosted is None or hosted.fate is not None:
            self._raise_fate(session_id)
            raise UnknownSession(f"no session {session_id} on this worker")
        outcome, is_repeated = hosted.request(request_id, action)
        self._num_repeated += is_repeated
        return await outcome.wait()

    async def close(self, session_id: str) -> None:
        """See `Worker`. Raises EnvError if the env's close does."""
        hosted = self._live.get(session_id)
        if hosted is None:
            # Its start may still be under way: nobody would use, or close, what it started.
            if session_id not in self._fates:
                self._remember(session_id, UnknownSession(f"session {session_id} was closed before its start came"))
            await trio.lowlevel.checkpoint()
            return
        hosted.end()
        await hosted.closed.wait()

    async def _own(self, hosted: _Hosted) -> None:
        try:
            await hosted.run()
        finally:
            del self._live[hosted.session_id]
            self._num_expired += isinstance(hosted.fate, SessionExpired)
            fate = hosted.fate or UnknownSession(f"session {hosted.session_id} is closed")
            self._remember(hosted.session_id, fate)

    def _remember(self, session_id: str, fate: EnvError) -> None:
        self._fates[session_id] = fate
        if len(self._fates) > _MAX_REMEMBERED:
            self._fates.popitem(last=False)

    def _raise_fate(self, session_id: str) -> None:
        hosted = self._live.get(session_id)
        fate = self._fates.get(session_id) if hosted is None else hosted.fate
        if fate is not None:
            raise fate


@asynccontextmanager
async def open_session_host(
    sessions: Mapping[str, SessionFactory], config: HostConfig | None = None
) -> AsyncIterator[SessionHost]:
    """A host of sessions; all of them are closed at the end of the block, however it is left."""
    with unwrapped_errors():
        async with trio.open_nursery() as nursery:
            yield SessionHost(sessions, config or HostConfig(), nursery)
            nursery.cancel_scope.cancel()
