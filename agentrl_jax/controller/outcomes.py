"""What a call comes to, for callers who may come twice, or go away before it is known."""

from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar, cast

import trio

from agentrl_jax.errors import EnvError

T = TypeVar("T")


class Outcome(Generic[T]):
    """What a call of a session came to, or will; any number of callers may wait for it."""

    def __init__(self) -> None:
        self._known = trio.Event()
        self._value: T | None = None
        self._error: EnvError | None = None

    @property
    def is_known(self) -> bool:
        """Whether `wait` returns at once."""
        return self._known.is_set()

    async def record(self, call: Callable[[], Awaitable[T]]) -> None:
        """Carry out `call` and keep its value or its EnvError; if it is cancelled, keep that."""
        try:
            self._value = await call()
        except EnvError as error:
            self._error = error
        except trio.Cancelled:
            self.fail(EnvError("the session was closed before it answered"))
            raise
        self._known.set()

    def succeed(self, value: T) -> None:
        """This is the value, unless it is known already."""
        if not self.is_known:
            self._value = value
            self._known.set()

    def fail(self, error: EnvError) -> None:
        """There will be no value, unless there is one already."""
        if not self.is_known:
            self._error = error
            self._known.set()

    async def wait(self) -> T:
        """The value. Raises the EnvError if there is that instead."""
        await self._known.wait()
        if self._error is not None:
            raise self._error
        return cast(T, self._value)
