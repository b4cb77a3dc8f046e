"""Permits: how many groups may be in flight. Issued permits equal held plus free ones at any time."""

from dataclasses import dataclass

import trio


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionStatistics:
    """A snapshot. num_permits = num_held + num_free; num_acquired - num_released = num_held."""

    num_permits: int
    num_held: int
    num_free: int
    num_waiting: int
    num_acquired: int
    num_released: int


class Permit:
    """The right of one group to be in flight. To be released exactly once."""

    def __init__(self, admission: "Admission") -> None:
        self._admission: Admission | None = admission

    def release(self) -> None:
        """Give the permit back. Raises RuntimeError the second time."""
        if self._admission is None:
            raise RuntimeError("this permit has been released before; a group returns its permit exactly once")
        admission, self._admission = self._admission, None
        admission._take_back()


class Admission:
    """A fixed number of permits, handed out in the order of asking."""

    def __init__(self, num_permits: int) -> None:
        self._num_permits = num_permits
        self._free = trio.Semaphore(num_permits, max_value=num_permits)
        self._num_acquired = 0
        self._num_released = 0

    async def acquire(self) -> Permit:
        """Wait for a free permit. A cancelled wait takes none."""
        await self._free.acquire()
        self._num_acquired += 1
        return Permit(self)

    def _take_back(self) -> None:
        self._num_released += 1
        self._free.release()

    def statistics(self) -> AdmissionStatistics:
        num_held = self._num_acquired - self._num_released
        return AdmissionStatistics(
            num_permits=self._num_permits,
            num_held=num_held,
            num_free=self._num_permits - num_held,
            num_waiting=self._free.statistics().tasks_waiting,
            num_acquired=self._num_acquired,
            num_released=self._num_released,
        )
