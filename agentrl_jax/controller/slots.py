"""Who runs when the engines are full: places for episodes, shared between envs by how long theirs take.

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
    """How long groups of each env take: the time of their slowest episode, smoothed.

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
    """A snapshot of `EpisodeSlots`; running: episodes by env; waiting: groups by env."""

    num_slots: int
    running: Mapping[str, int]
    waiting: Mapping[str, int]


class Places:
    """What one group has asked for, and holds from `given` on. number: how many asked before it."""

    def __init__(self, env: str, size: int, slots: "EpisodeSlots", number: int) -> None:
        self.env, self.num_held, self.given, self.number = env, size, trio.Event(), number
        self._slots = slots

    def give_back(self, number: int = 1) -> None:
        """So many episodes of the group have ended."""
        self.num_held -= number
        self._slots.take_back(self.env, number)


class EpisodeSlots:
    """A fixed number of places for running episodes. A group starts when there is one for each of its episodes.

    An episode's place is free as soon as it ends, not when the slowest of its group does. Free places go to the env
    that has none, if one waits; else to the env with the least (running + size) / share. Among equals, and within an
    env, to whoever has waited longest; nobody else starts before that group does.
    """

    def __init__(self, num_slots: int, shares: Callable[[], Mapping[str, float]]) -> None:
        """shares: asked anew for every group; see `EpisodeTimes.shares`. Raises ConfigError without any place."""
        if num_slots < 1:
            raise ConfigError(f"groups need at least one place to run in, got {num_slots}")
        self._num_slots = num_slots
        self._shares = shares
        self._running: Counter[str] = Counter()
        self._waiting: dict[str, deque[Places]] = {}  # by env, of those that have any: episodes end by the thousand
        self._num_asked = 0

    @asynccontextmanager
    async def place(self, env: str, size: int = 1) -> AsyncIterator[Places]:
        """Wait for places for a group of `size` episodes; those that are not given back earlier are kept for the body.

        A group that is larger than all places together waits for all of them.
        """
        asked = Places(env, size, self, self._num_asked)
        self._num_asked += 1
        self._waiting.setdefault(env, deque()).append(asked)
        self._hand_out()
        try:
            await asked.given.wait()
            yield asked
        finally:
            if asked.given.is_set():
                asked.give_back(asked.num_held)
            else:
                self._wait_no_longer(asked)
                self._hand_out()

    def take_back(self, env: str, number: int) -> None:
        """See `Places.give_back`."""
        self._running[env] -= number
        self._hand_out()

    def _hand_out(self) -> None:
        while self._waiting:
            chosen, running = self._next(), self._running.total()
            if running and running + chosen.num_held > self._num_slots:
                return
            self._wait_no_longer(chosen)
            self._running[chosen.env] += chosen.num_held
            chosen.given.set()

    def _next(self) -> Places:
        shares = self._shares()

        def precedence(asked: Places) -> tuple[float, int]:
            running, share = self._running[asked.env], shares[asked.env]
            return (running + asked.num_held) / share if running and share > 0 else 0.0, asked.number

        return min((waiting[0] for waiting in self._waiting.values()), key=precedence)

    def _wait_no_longer(self, asked: Places) -> None:
        waiting = self._waiting[asked.env]
        waiting.remove(asked)
        if not waiting:
            del self._waiting[asked.env]

    def statistics(self) -> SlotStatistics:
        return SlotStatistics(
            num_slots=self._num_slots,
            running=dict(+self._running),
            waiting={env: len(waiting) for env, waiting in self._waiting.items()},
        )
