"""The asynchronous side of environments: the `Session` protocol, and its adapter for a synchronous `Env`.

A session has no deadline of its own: `controller/episode.py` owns them and cancels. What a cancelled call leaves
behind in a thread is the adapter's business, not the caller's.
"""

import threading
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Protocol, TypeVar, runtime_checkable

import trio

from agentrl_jax.controller.guarded_env import EnvFactory, GuardedEnv
from agentrl_jax.env import Action, Message, StepResult
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


@runtime_checkable
class RemotelyPlayed(Protocol):
    """A family whose envs are elsewhere, and its expert nowhere: it makes its sessions itself."""

    def open_sessions(self) -> AbstractAsyncContextManager[SessionFactory]:
        """Sessions of its tasks, for as long as the block lasts."""
        ...


class WithoutQueue:
    """The `reserve` of sessions that need no place on a worker."""

    async def reserve(self) -> None:
        """Return at once."""
        await trio.lowlevel.checkpoint()


class ThreadSession(WithoutQueue):
    """A synchronous `Env` on worker threads.

    A cancelled call returns at once and leaves its thread running (it keeps its place in the limiter until it
    ends, so that the limiter bounds threads, not calls). An `Env` is never used by two threads at once: if a call
    is still running when the session closes, that thread closes the env as soon as the call is over. A call that
    never ends therefore costs one thread and its env; families that may hang belong into a process.
    """

    def __init__(self, make_env: EnvFactory, task: Task, limiter: trio.CapacityLimiter) -> None:
        self._task = task
        self._env = GuardedEnv(make_env, task)
        self._limiter = limiter
        self._lock = threading.Lock()  # guards the two fields below, and so who may use the env
        self._is_busy = False
        self._is_closing = False

    async def start(self) -> tuple[Message, ...]:
        """Make and reset the env. Raises EnvError for whatever the env raises, and for anything but messages."""
        return await self._in_thread("reset", self._make_and_reset)

    async def interact(self, action: Action) -> StepResult:
        """Step the env. Raises EnvError for whatever the env raises, and for anything but a StepResult."""
        return await self._in_thread("step", lambda: self._env.step(action))

    async def close(self) -> None:
        """Close the env, now or by the thread that still works for it. Raises EnvError if closing fails."""
        with self._lock:
            self._is_closing = True
            is_left_to_thread = self._is_busy
        if self._env.is_open and not is_left_to_thread:
            # Not under the shared limiter: threads that hang must not keep the others from being closed.
            own = trio.CapacityLimiter(1)
            await trio.to_thread.run_sync(self._env.close, limiter=own, abandon_on_cancel=True)

    def _make_and_reset(self) -> tuple[Message, ...]:
        self._env.make()
        if self._is_closing:  # making may have taken long; an episode that is over needs no reset
            return ()
        return self._env.reset()

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
            return call()
        finally:
            self._leave()

    def _leave(self) -> None:
        with self._lock:
            self._is_busy = False
            is_last = self._is_closing
        if is_last:
            self._env.close()


def thread_sessions(make_env: EnvFactory, limiter: trio.CapacityLimiter) -> SessionFactory:
    """Sessions of synchronous envs whose calls share `limiter`'s threads."""
    return lambda task: ThreadSession(make_env, task, limiter)
