"""The turns that run at one engine: who may begin, who waits, and what ends them all. No jax."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

from agentrl_jax.errors import EngineError


class TurnGate:
    """Counts turns; closed, it holds new ones; shut down, it fails those that run."""

    def __init__(self) -> None:
        self._scopes: set[trio.CancelScope] = set()
        self._open = trio.Event()
        self._open.set()
        self._idle = trio.Event()
        self._idle.set()
        self._why = ""

    @property
    def num_running(self) -> int:
        return len(self._scopes)

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """One turn. Waits while the gate is closed. Raises EngineError, with the reason, if `fail_all` ends it."""
        await self._open.wait()
        with trio.CancelScope() as scope:
            if not self._scopes:
                self._idle = trio.Event()
            self._scopes.add(scope)
            try:
                yield
            finally:
                self._scopes.discard(scope)
                if not self._scopes:
                    self._idle.set()
        if scope.cancelled_caught:
            raise EngineError(self._why)

    def fail_all(self, why: str) -> None:
        """End every turn that runs now."""
        self._why = why
        for scope in self._scopes:
            scope.cancel()

    @asynccontextmanager
    async def closed(self) -> AsyncIterator[None]:
        """Hold turns that would begin within the block."""
        self._open = trio.Event()
        try:
            yield
        finally:
            self._open.set()

    async def until_idle(self) -> None:
        """Return once no turn runs."""
        await self._idle.wait()
