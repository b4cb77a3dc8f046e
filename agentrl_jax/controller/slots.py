"""Who runs when the engines are full: places for groups, shared between envs by how long their episodes take.

The tasks that are drawn, and so the mix that is trained, are the sampler's business alone. Places decide only which of
the groups that are admitted already start first: in proportion to weight × time of an episode, so that the groups of
slow and of fast envs that were drawn together also end together, and nobody waits for a slow one that started last.
"""

from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass

import trio

from agentrl_jax.errors import ConfigError
from agentrl_jax.types import Group

_EMA = 0.1
"""Weight of the newest group in an env's time: the mean of about the last twenty."""


class EpisodeTimes:
    """How long groups of each env hold a place: the time of their slowest episode, smoothed.

    time ← time + 0.1 × (slowest episode of the group − time), seconds; the first group sets it.
    """

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}

    def observe(self, groups: Iterable[Group]) -> None:
        """These groups ran to their ends."""
        for group in groups:
            slowest = max((trajectory.wall_s for trajectory in group.trajectories), default=0.0)
            known = self._seconds.get(group.task.env, slowest)
            self._seconds[group.task.env] = known + _EMA * (slowest - known)

    def of(self, env: str) -> float | None:
        """Seconds, or None before the first group of `env` has ended."""
        return self._seconds.get(env)

    def shares(self, weights: Mapping[str, float]) -> dict[str, float]:
        """Share of the places that each env should have: weight × seconds, normalised to a sum of 1.

        An env that is not known yet counts as the mean of the others; without any times the shares are the weights.
        """
        known = [self._seconds[env] for env in weights if env in self._seconds]
        usual = sum(known) / len(known) if known else 1.0
        products = {env: weight * self._seconds.get(env, usual) for env, weight in weights.items()}
        total = sum(products.values())
        if total <= 0.0:  # every episode took no time at all
            products, total = dict(weights), sum(weights.values())
        return {env: product / total for env, product in products.items()}

    def state(self) -> dict[str, float]:
        """Seconds by env, as plain JSON."""
        return dict(self._seconds)

    def restore(self, state: Mapping[str, float]) -> None:
        """Go on where `state` was taken."""
        self._seconds = {env: float(seconds) for env, seconds in state.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotStatistics:
    """A snapshot of `GroupSlots`; running and waiting groups by env."""

    num_slots: int
    running: Mapping[str, int]
    waiting: Mapping[str, int]


class GroupSlots:
    """A fixed number of places for running groups. None is free while a group waits.

    A free place goes to the env that has none, if one waits; else to the env with the least (running + 1) / share.
    Among equals, and within an env, to whoever has waited longest.
    """

    def __init__(self, num_slots: int, shares: Callable[[], Mapping[str, float]]) -> None:
        """shares: asked anew for every place; see `EpisodeTimes.shares`. Raises ConfigError without any place."""
        if num_slots < 1:
            raise ConfigError(f"groups need at least one place to run in, got {num_slots}")
        self._num_slots = num_slots
        self._shares = shares
        self._running: Counter[str] = Counter()
        self._waiting: deque[tuple[str, trio.Event]] = deque()

    @asynccontextmanager
    async def place(self, env: str) -> AsyncIterator[None]:
        """Wait for a place, and keep it for the body."""
        asked = (env, trio.Event())
        self._waiting.append(asked)
        self._hand_out()
        try:
            await asked[1].wait()
            yield
        finally:
            if asked[1].is_set():
                self._running[env] -= 1
            else:
                self._waiting.remove(asked)
            self._hand_out()

    def _hand_out(self) -> None:
        while self._waiting and self._running.total() < self._num_slots:
            chosen = self._next()
            self._waiting.remove(chosen)
            self._running[chosen[0]] += 1
            chosen[1].set()

    def _next(self) -> tuple[str, trio.Event]:
        shares = self._shares()

        def crowding(env: str) -> float:
            return (self._running[env] + 1) / shares[env] if self._running[env] and shares[env] > 0 else 0.0

        first: dict[str, tuple[str, trio.Event]] = {}
        for asked in self._waiting:
            first.setdefault(asked[0], asked)
        return first[min(first, key=crowding)]

    def statistics(self) -> SlotStatistics:
        return SlotStatistics(
            num_slots=self._num_slots,
            running=dict(+self._running),
            waiting=dict(Counter(env for env, _ in self._waiting)),
        )
