"""Places on env workers: the least loaded worker first, and for each env a line of its own that is first come, first
served and not endless.

No place is shared between envs, so an env that hangs fills its own places and its own line, never another's. Nothing
here knows time or sessions: whoever waits owns the deadline, and whoever holds a place gives it back.
"""

from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import trio

from agentrl_jax.errors import EnvError


@dataclass(frozen=True, slots=True, kw_only=True)
class LineStatistics:
    """Of one env. num_waiting: episodes without a place now. num_granted, num_refused, num_left: since the start:
    places given, episodes sent away by a full line, and those that gave up waiting."""

    num_waiting: int
    num_granted: int
    num_refused: int
    num_left: int


class PlaceHolder:
    """A worker as dispatch sees it: how many places it has for each env, and how many are taken."""

    def __init__(self, name: str, capacity: Mapping[str, int], is_available: Callable[[], bool]) -> None:
        self.name = name
        self.capacity = dict(capacity)
        self.is_available = is_available
        self.taken = dict.fromkeys(capacity, 0)
        self.last_granted = 0
        self._freed = trio.Event()

    def load(self, env: str) -> float:
        """The share of the places for `env` that is taken; 1 or more if none is free."""
        places = self.capacity.get(env, 0)
        return self.taken[env] / places if places else 1.0

    @property
    def num_taken(self) -> int:
        return sum(self.taken.values())

    def free(self, env: str) -> None:
        """A place is no longer taken."""
        self.taken[env] -= 1
        self.wake()

    def wake(self) -> None:
        """Have those that `wait_freed` look again."""
        self._freed.set()
        self._freed = trio.Event()

    async def wait_freed(self) -> None:
        """Return after the next `free` or `wake`."""
        await self._freed.wait()


class _Waiter:
    def __init__(self) -> None:
        self.granted = trio.Event()
        self.holder: PlaceHolder | None = None


class _Line:
    def __init__(self) -> None:
        self.waiters: OrderedDict[_Waiter, None] = OrderedDict()
        self.num_granted = self.num_refused = self.num_left = 0


class Dispatcher:
    """Gives the places of `holders` to whoever asks. max_waiting: length of each env's line."""

    def __init__(self, max_waiting: int) -> None:
        self._max_waiting = max_waiting
        self._holders: dict[str, PlaceHolder] = {}
        self._lines: dict[str, _Line] = {}
        self._num_granted = 0

    def add(self, holder: PlaceHolder) -> None:
        """Offer its places; to those who wait, at once."""
        self._holders[holder.name] = holder
        self.offer(holder)

    def remove(self, holder: PlaceHolder) -> None:
        """Its places are no more; those taken need not be given back."""
        del self._holders[holder.name]

    def offer(self, holder: PlaceHolder) -> None:
        """It has become available, or has more places."""
        for env in holder.capacity:
            self._advance(env)

    async def take(self, env: str) -> PlaceHolder:
        """Wait for a place and take it. Raises EnvError if the line is full.

        The caller passes it to `give_back` exactly once. If this is cancelled, no place has been taken.
        """
        line = self._lines.setdefault(env, _Line())
        if len(line.waiters) >= self._max_waiting:
            line.num_refused += 1
            raise EnvError(f"{env}: {len(line.waiters)} episodes wait for a place on a worker already, no more may")
        waiter = _Waiter()
        line.waiters[waiter] = None
        self._advance(env)
        try:
            # Awaited even if granted already: every call of this is a checkpoint.
            await waiter.granted.wait()
        except BaseException:
            line.num_left += 1
            if waiter.holder is None:
                del line.waiters[waiter]
            else:  # granted and cancelled at once
                self.give_back(waiter.holder, env)
            raise
        assert waiter.holder is not None
        return waiter.holder

    def take_now(self, env: str) -> PlaceHolder | None:
        """A place if one is free that nobody waits for; for `give_back` too."""
        line = self._lines.setdefault(env, _Line())
        holder = None if line.waiters else self._least_loaded(env)
        if holder is None:
            line.num_refused += 1
            return None
        self._grant(line, holder, env)
        return holder

    def seize(self, holder: PlaceHolder, env: str) -> None:
        """Count a place that is taken already, though nobody asked here, even beyond the capacity; for `give_back`."""
        self._grant(self._lines.setdefault(env, _Line()), holder, env)

    def give_back(self, holder: PlaceHolder, env: str) -> None:
        """Free the place, for the next in line."""
        holder.free(env)
        self._advance(env)

    def statistics(self) -> dict[str, LineStatistics]:
        """By env."""
        return {
            env: LineStatistics(
                num_waiting=len(line.waiters),
                num_granted=line.num_granted,
                num_refused=line.num_refused,
                num_left=line.num_left,
            )
            for env, line in self._lines.items()
        }

    def _advance(self, env: str) -> None:
        line = self._lines.get(env)
        while line and line.waiters and (holder := self._least_loaded(env)) is not None:
            waiter, _ = line.waiters.popitem(last=False)
            self._grant(line, holder, env)
            waiter.holder = holder
            waiter.granted.set()

    def _grant(self, line: _Line, holder: PlaceHolder, env: str) -> None:
        self._num_granted += 1
        line.num_granted += 1
        holder.taken[env] += 1
        holder.last_granted = self._num_granted

    def _least_loaded(self, env: str) -> PlaceHolder | None:
        """By load; of equals the one whose last grant is longest ago, so that idle workers take turns."""
        free = [holder for holder in self._holders.values() if holder.is_available() and holder.load(env) < 1]
        return min(free, key=lambda holder: (holder.load(env), holder.last_granted), default=None)
