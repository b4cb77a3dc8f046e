"""The asynchronous side of environments: the `Session` protocol, and its adapter for a synchronous `Env`.

A session has no deadline of its own: `controller/episode.py` owns them and cancels. What a cancelled call leaves
behind in a thread is the adapter's business, not the caller's.
"""

import threading
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Protocol, TypeVar

import trio

from agentrl_jax.env import Action, Env, Message, StepResult
from agentrl_jax.errors import EnvError
from agentrl_jax.types import Task

T = TypeVar("T")


class Session(Protocol):
    """One live environment instance, for one episode. Every call may be cancelled; afterwards only `close` follows."""

    async def reserve(self) -> None:
        """Wait for a place on an env worker. Called once, before `start`, so that queueing is not taken for a slow
        reset. Raises EnvError if there will be none."""
        ...

    async def start(self) -> tuple[Message, ...]:
        """Return the messages before the first assistant turn. Called once. Raises EnvError."""
        ...

    async def interact(self, action: Action) -> StepResult:
        """Carry out one assistant turn. Raises EnvError if the environment, not the policy, is to blame."""
        ...

    async def close(self) -> None:
        """Release everything. Called exactly once, also if `start` never ran, failed or was cancelled."""
        ...


SessionFactory = Callable[[Task], Session]
"""Makes a session without doing anything yet: no I/O before `reserve`."""


class WithoutQueue:
    """The `reserve` of sessions that need no place on a worker."""

    async def reserve(self) -> None:
        """Return at once."""
        await trio.lowlevel.checkpoint()


EnvFactory = Callable[[Task], Env]


class ThreadSession(WithoutQueue):
    """A synchronous `Env` on worker threads.

    A cancelled call returns at once and leaves its thread running (it keeps its place in the limiter until it
    ends, so that the limiter bounds threads, not calls). An `Env` is never used by two threads at once: if a call
    is still running when the session closes, that thread closes the env as soon as the call is over. A call that
    never ends therefore costs one thread and its env; families that may hang belong into a process.
    """

    def __init__(self, make_env: EnvFactory, task: Task, limiter: trio.CapacityLimiter) -> None:
        self._make_env = make_env
        self._task = task
        self._limiter = limiter
        self._lock = threading.Lock()  # guards the three fields below
        self._env: Env | None = None
        self._is_busy = False
        self._is_closing = False

    async def start(self) -> tuple[Message, ...]:
        """Make and reset the env. Raises EnvError for whatever the env raises, and for anything but messages."""
        return await self._in_thread("reset", self._make_and_reset)

    async def interact(self, action: Action) -> StepResult:
        """Step the env. Raises EnvError for whatever the env raises, and for anything but a StepResult."""
        return await self._in_thread("step", lambda: self._step(action))

    async def close(self) -> None:
        """Close the env, now or by the thread that still works for it. Raises EnvError if closing fails."""
        with self._lock:
            self._is_closing = True
            env = None if self._is_busy else self._take_env()
        if env is not None:
            # Not under the shared limiter: threads that hang must not keep the others from being closed.
            own = trio.CapacityLimiter(1)
            await trio.to_thread.run_sync(self._guarded, "close", env.close, limiter=own, abandon_on_cancel=True)

    def _take_env(self) -> Env | None:
        env, self._env = self._env, None
        return env

    def _make_and_reset(self) -> tuple[Message, ...]:
        self._env = self._make_env(self._task)
        if self._is_closing:  # `make` may have taken long; an episode that is over needs no reset
            return ()
        messages = self._messages("reset", self._env.reset())
        if not messages:
            raise EnvError(f"{self._task.key}: reset must return at least one message, got none")
        return messages

    def _step(self, action: Action) -> StepResult:
        if self._env is None:
            raise EnvError(f"{self._task.key}: interact came before start")
        result: object = self._env.step(action)
        if not isinstance(result, StepResult):
            raise EnvError(f"{self._task.key}: step must return a StepResult, got {result!r}")
        return replace(result, messages=self._messages("step", result.messages))

    def _messages(self, what: str, given: Iterable[object]) -> tuple[Message, ...]:
        """Read here, in the env's thread: `given` may be a generator, whose code and errors are the env's too."""
        messages = []
        for message in given:
            if not isinstance(message, Message):
                raise EnvError(f"{self._task.key}: {what} must answer with Messages, got {message!r}")
            messages.append(message)
        return tuple(messages)

    async def _in_thread(self, what: str, call: Callable[[], T]) -> T:
        return await trio.to_thread.run_sync(
            self._exclusively, what, call, limiter=self._limiter, abandon_on_cancel=True
        )

    def _exclusively(self, what: str, call: Callable[[], T]) -> T:
        with self._lock:
            if self._is_closing:  # cancelled between the thread's start and now: nobody waits for the result
                raise EnvError(f"{self._task.key}: {what} came after close")
            self._is_busy = True
        try:
            return self._guarded(what, call)
        finally:
            self._leave()

    def _leave(self) -> None:
        with self._lock:
            self._is_busy = False
            env = self._take_env() if self._is_closing else None
        if env is not None:
            self._guarded("close", env.close)

    def _guarded(self, what: str, call: Callable[[], T]) -> T:
        try:
            return call()
        except EnvError:
            raise
        # The seam between foreign code and ours. A worker thread receives neither KeyboardInterrupt nor
        # trio.Cancelled, so SystemExit, asyncio.CancelledError and the like are the env's own failures too.
        except BaseException as error:
            raise EnvError(f"{self._task.key}: {what} raised {type(error).__name__}: {error}") from error


def thread_sessions(make_env: EnvFactory, limiter: trio.CapacityLimiter) -> SessionFactory:
    """Sessions of synchronous envs whose calls share `limiter`'s threads."""
    return lambda task: ThreadSession(make_env, task, limiter)
