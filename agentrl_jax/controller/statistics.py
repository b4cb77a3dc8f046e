"""Counts of sessions, and the moment's records of everything that episodes wait for.

Every component has a `statistics()` of its own. A run writes all of them beside each step: `StepRecord` has those of
admission, ledger and tasks, `RolloutStatistics` those of what runs the groups. So whoever looks at a slow run sees
where it waits.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

from agentrl_jax.controller.sessions import Session, SessionFactory
from agentrl_jax.controller.slots import SlotStatistics
from agentrl_jax.controller.telemetry import TelemetryStatistics
from agentrl_jax.engines.pool import PoolStatistics
from agentrl_jax.env import Action, Message, StepResult
from agentrl_jax.errors import EnvError
from agentrl_jax.types import Task


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionStatistics:
    """A snapshot of the sessions of one env. num_open = num_made - num_closed.

    num_reserving, num_starting, num_stepping, num_closing: calls that have not returned. An open session without a
    call waits for an engine. num_failed: calls that raised EnvError.
    """

    num_made: int
    num_open: int
    num_reserving: int
    num_starting: int
    num_stepping: int
    num_closing: int
    num_failed: int


class SessionCounts:
    """Makes the sessions of one factory, and counts what becomes of them."""

    def __init__(self, make: SessionFactory) -> None:
        self._make = make
        self.num_made = self.num_closed = self.num_failed = 0
        self.calls = {"reserve": 0, "start": 0, "step": 0, "close": 0}

    def __call__(self, task: Task) -> Session:
        """A `SessionFactory`."""
        self.num_made += 1
        return _CountedSession(self._make(task), self)

    def statistics(self) -> SessionStatistics:
        return SessionStatistics(
            num_made=self.num_made,
            num_open=self.num_made - self.num_closed,
            num_reserving=self.calls["reserve"],
            num_starting=self.calls["start"],
            num_stepping=self.calls["step"],
            num_closing=self.calls["close"],
            num_failed=self.num_failed,
        )


class _Call:
    """Counts one call of a session while it runs, and whether it failed."""

    __slots__ = ("_counts", "_name")

    def __init__(self, counts: SessionCounts, name: str) -> None:
        self._counts, self._name = counts, name

    def __enter__(self) -> None:
        self._counts.calls[self._name] += 1

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        self._counts.calls[self._name] -= 1
        self._counts.num_failed += isinstance(error, EnvError)


class _CountedSession:
    """Implements `Session`."""

    __slots__ = ("_counts", "_session")

    def __init__(self, session: Session, counts: SessionCounts) -> None:
        self._session, self._counts = session, counts

    async def reserve(self) -> None:
        with _Call(self._counts, "reserve"):
            await self._session.reserve()

    async def start(self) -> tuple[Message, ...]:
        with _Call(self._counts, "start"):
            return await self._session.start()

    async def interact(self, action: Action) -> StepResult:
        with _Call(self._counts, "step"):
            return await self._session.interact(action)

    async def close(self) -> None:
        try:
            with _Call(self._counts, "close"):
                await self._session.close()
        finally:
            self._counts.num_closed += 1


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutStatistics:
    """Where episodes are: sessions by env, the pool with its engines, and the training groups that have a place or wait
    for one (None before there are any). telemetry: None if it is off."""

    slots: SlotStatistics | None
    sessions: Mapping[str, SessionStatistics]
    pool: PoolStatistics
    telemetry: TelemetryStatistics | None


def as_record(statistics: Any) -> Any:
    """Nested frozen records as plain JSON values, field by field."""
    if is_dataclass(statistics) and not isinstance(statistics, type):
        return {field.name: as_record(getattr(statistics, field.name)) for field in fields(statistics)}
    if isinstance(statistics, Mapping):
        return {str(key): as_record(value) for key, value in statistics.items()}
    return statistics
