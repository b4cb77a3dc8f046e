"""Which engine of a pool serves each session, and what becomes of its turns when that engine is out. No jax.

Invariants:
- A session keeps its engine, and with it its cached prefix, until that engine is clearly fuller than another one, or
  out.
- A turn is lost only if no engine can serve it: one that an engine fails by going out is asked of another one. While
  no lagging engine serves, current ones take their turns; while no current one does, turns wait.
"""

from collections.abc import Collection, Iterable, Sequence
from functools import lru_cache
from typing import Any, Literal, Protocol

import trio

from agentrl_jax.engines.protocol import Engine, EngineStatistics
from agentrl_jax.errors import EngineError
from agentrl_jax.seeding import derive_seed
from agentrl_jax.types import Completion, Ids, Pool, SamplingParams

# Sessions that an engine may have more than the emptiest of its pool: a few, or a quarter on top. Moving a session
# costs its whole prefix, and ends come in bursts of a group, so that small differences even out by themselves.
_SPARE_SESSIONS = 4
_SPARE_DIVISOR = 4

_NUM_ORDERS = 64
"""Remembered: those of more blocks than groups under way fill, where engines are so many that an order takes long."""


class Outages(Protocol):
    """Knows which engines, by name, are out: failed, and not back yet."""

    @property
    def is_any_out(self) -> bool:
        """False only if all engines serve: asked at every turn, where `is_serving` of each would take too long."""
        ...

    def is_serving(self, name: str) -> bool:
        """Whether a turn that begins now at this engine is served."""
        ...

    async def until_any(self, names: Collection[str]) -> None:
        """Return once one of these engines serves."""
        ...


class NoOutages:
    """Of engines that end the run when they fail."""

    is_any_out = False

    def is_serving(self, name: str) -> bool:
        return True

    async def until_any(self, names: Collection[str]) -> None:
        await trio.lowlevel.checkpoint()


class Occupancy:
    """How many sessions each engine has. A change, and the least number, take as long with a thousand engines."""

    def __init__(self, num_engines: int) -> None:
        self.counts = [0] * num_engines
        self.least = 0
        self._having: dict[int, set[int]] = {0: set(range(num_engines))}  # engines by their number of sessions

    @property
    def emptiest(self) -> int:
        """The first of the engines that have `least`."""
        return min(self._having[self.least])

    def change(self, index: int, by: Literal[1, -1]) -> None:
        """A session came to the engine, or left it."""
        before = self.counts[index]
        after = self.counts[index] = before + by
        self._having.setdefault(after, set()).add(index)
        others = self._having[before]
        others.remove(index)
        if not others:
            del self._having[before]
        if after < self.least or self.least not in self._having:
            self.least = after  # by one only: whoever was the last to have the fewest has the fewest still


class Seats:
    """Which engine of one pool each session uses."""

    def __init__(self, engines: Iterable[Engine], run_seed: int, outages: Outages) -> None:
        self.engines = tuple(engines)
        self.num_turns = self.num_moves = 0
        self._run_seed, self._outages = run_seed, outages
        self._names = tuple(engine.name for engine in self.engines)
        self._seats: dict[tuple[int, int], int] = {}
        self._occupancy = Occupancy(len(self.engines))

    @property
    def num_sessions(self) -> Sequence[int]:
        """By engine."""
        return self._occupancy.counts

    @property
    def is_serving(self) -> bool:
        """Whether any engine serves."""
        return any(map(self._outages.is_serving, self._names))

    def take(self, group_id: int, member: int, otherwise: "Seats") -> Engine:
        """The engine of the session's next turn. otherwise: where the turn goes if none here serves any more."""
        self.num_turns += 1
        return Seat(self, (group_id, member), self.sit((group_id, member)), otherwise)

    def sit(self, session: tuple[int, int]) -> int:
        """Give the session a seat at an engine that serves, if there is one; return the engine's index."""
        before = self._seats.get(session)
        if before is not None:
            self._occupancy.change(before, -1)
        index = self._unless_full(self._home(session[0]) if before is None else before)
        self._occupancy.change(index, 1)
        self._seats[session] = index
        self.num_moves += before not in (None, index)
        return index

    def leave(self, session: tuple[int, int], index: int) -> None:
        if self._seats.get(session) == index:  # else it has left, or moved, before
            del self._seats[session]
            self._occupancy.change(index, -1)

    def serves(self, index: int) -> bool:
        return self._outages.is_serving(self._names[index])

    async def until_serving(self) -> None:
        await self._outages.until_any(self._names)

    def _home(self, group_id: int) -> int:
        """Where all members of a group go first, to share their prompt's prefix.

        Each run of as many consecutive groups as there are engines visits every engine once, in an order of its
        own: even, and in step with no pattern of the tasks.
        """
        block, place = divmod(group_id, len(self.engines))
        return _order(self._run_seed, block, len(self.engines))[place]

    def _unless_full(self, index: int) -> int:
        if self._outages.is_any_out or not self.serves(index):
            return self._unless_full_or_out(index)
        occupancy = self._occupancy
        return index if _is_fine(occupancy.counts[index], occupancy.least) else occupancy.emptiest

    def _unless_full_or_out(self, index: int) -> int:
        counts = self._occupancy.counts
        serving = [i for i in range(len(self.engines)) if self.serves(i)] or [index]
        least = min(counts[i] for i in serving)
        if index in serving and _is_fine(counts[index], least):
            return index
        return next(i for i in serving if counts[i] == least)


@lru_cache(maxsize=_NUM_ORDERS)
def _order(run_seed: int, block: int, count: int) -> Sequence[int]:
    """The engines that the groups of a block begin at, one each."""
    return sorted(range(count), key=lambda index: derive_seed(run_seed, "home", block, index))


def _is_fine(count: int, least: int) -> bool:
    """Whether an engine with so many sessions may have one more, where the emptiest has `least`."""
    return count - least <= max(_SPARE_SESSIONS, least // _SPARE_DIVISOR)


class Seat:
    """An engine as one session sees it. It becomes another one if a turn cannot be served otherwise."""

    def __init__(self, seats: Seats, session: tuple[int, int], index: int, otherwise: Seats) -> None:
        self._seats, self._session, self._index, self._otherwise = seats, session, index, otherwise

    @property
    def engine(self) -> Engine:
        return self._seats.engines[self._index]

    @property
    def name(self) -> str:
        return self.engine.name

    @property
    def pool(self) -> Pool:
        return self.engine.pool

    @property
    def version(self) -> int:
        return self.engine.version

    async def generate(self, prompt_ids: Ids, sampling: SamplingParams, *, session: str) -> Completion:
        while True:
            if not self._seats.serves(self._index):
                await self._move()
            try:
                return await self.engine.generate(prompt_ids, sampling, session=session)
            except EngineError:
                if self._seats.serves(self._index):
                    raise

    async def _move(self) -> None:
        if not self._seats.is_serving:
            self._seats.leave(self._session, self._index)
            self._seats = self._otherwise
            await self._seats.until_serving()
        self._index = self._seats.sit(self._session)

    async def end_session(self, session: str) -> None:
        # First: an engine that fails or hangs here must not keep the seat taken.
        self._seats.leave(self._session, self._index)
        await self.engine.end_session(session)

    async def publish(self, weights: Any, version: int) -> None:
        await self.engine.publish(weights, version)

    def statistics(self) -> EngineStatistics:
        return self.engine.statistics()
