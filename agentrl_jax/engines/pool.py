"""Which engine serves a turn, and which publishes it gets: cross-policy sampling and session affinity. No jax.

Invariants:
- Whether the lagging policy samples a turn depends on (run seed, group, member, turn) and on its share, never on when
  it is asked. The share changes only if it adapts (shares.py).
- Within a pool, seats.py decides: a session keeps its engine unless that is clearly fuller than another one, or out.
- Between publishes, lagging engines are at most `lagging_period - 1` versions behind the current ones.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import trio

from agentrl_jax.engines.protocol import Engine, EngineStatistics
from agentrl_jax.engines.seats import NoOutages, Outages, Seats
from agentrl_jax.engines.shares import AdaptiveConfig, PolicyShares
from agentrl_jax.errors import ConfigError, EngineError
from agentrl_jax.seeding import derive_seed
from agentrl_jax.types import Pool

_DEFAULT_PERIOD = 8
_SEEDS = 2**63  # derive_seed gives numbers below this


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolConfig:
    """Cross-policy sampling (AgentRL, arXiv 2510.04206): any turn may be sampled by an older policy."""

    lagging_prob: float = 0.25
    """Probability that the lagging policy samples a turn, below 1; 0: there is no lagging engine"""
    lagging_period: int = _DEFAULT_PERIOD
    """The lagging policy gets each so-many-th version; 1: every one"""
    adaptive: AdaptiveConfig = field(default_factory=AdaptiveConfig)

    def __post_init__(self) -> None:
        if not 0 <= self.lagging_prob < 1:
            raise ConfigError(f"lagging_prob must be in [0, 1), got {self.lagging_prob}")
        if self.lagging_period < 1:
            raise ConfigError(f"lagging_period must be at least 1, got {self.lagging_period}")
        if not self.has_lagging and self.lagging_period != _DEFAULT_PERIOD:
            raise ConfigError(
                f"lagging_period = {self.lagging_period} has no effect without a lagging policy; leave it out, or set "
                "lagging_prob above 0"
            )
        self.make_shares()

    def make_shares(self) -> PolicyShares:
        """The shares of the policies, as they begin. Raises ConfigError if they cannot adapt from there."""
        return PolicyShares(self.lagging_prob, self.adaptive)

    @property
    def has_lagging(self) -> bool:
        return self.lagging_prob > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolStatistics:
    """A snapshot. num_turns (by pool) and num_moves count since the start; the others are by engine name, of now.

    num_moves: sessions that left an engine that was full, or out, for another one of its pool.
    num_sessions: those that have asked the engine for a turn, or left another for it, and have not ended.
    engines: each engine's own. shares: how much each pool is to sample from now on; they adapt or stay.
    """

    num_turns: Mapping[Pool, int]
    num_moves: int
    num_sessions: Mapping[str, int]
    versions: Mapping[str, int]
    engines: Mapping[str, EngineStatistics]
    shares: Mapping[Pool, float]


class EnginePool:
    """Chooses the engine of each turn (an `EngineChooser`), and publishes to all of them.

    An engine it returns is good for that session only: ending the session there tells the pool that it has left.
    shares: how often the lagging policy samples; whoever owns the run may replace them, and lets them learn.
    """

    def __init__(
        self,
        current: Sequence[Engine],
        lagging: Sequence[Engine],
        config: PoolConfig,
        run_seed: int,
        outages: Outages | None = None,
    ) -> None:
        """Raises ConfigError: engines that do not fit `config`, say they belong elsewhere, or share a name."""
        _check(current, lagging, config)
        self.config = config
        self.shares = config.make_shares()
        self._run_seed = run_seed
        outages = outages or NoOutages()
        self._current, self._lagging = Seats(current, run_seed, outages), Seats(lagging, run_seed, outages)

    @property
    def version(self) -> int:
        """The version that every current engine has got; while a publish is under way some may serve the next one."""
        return min(engine.version for engine in self._current.engines)

    def __call__(self, group_id: int, member: int, turn: int) -> Engine:
        """The engine of this turn of training: a lagging one with the probability that is its share, if one serves."""
        draw = derive_seed(self._run_seed, "pool", group_id, member, turn)
        is_lagging = draw < self.shares.lagging * _SEEDS and self._lagging.is_serving
        return (self._lagging if is_lagging else self._current).take(group_id, member, self._current)

    def choose_current(self, group_id: int, member: int, turn: int) -> Engine:
        """The engine of this turn of evaluation: always a current one."""
        return self._current.take(group_id, member, self._current)

    async def publish(self, weights: Any, version: int) -> Mapping[str, int]:
        """Publish to every engine that is due, all at once; return which version each engine of the pool serves.

        Current engines get every version; lagging ones those at which version // lagging_period grows. So after the
        publish of v they serve a version >= v - v % lagging_period, and while the next one is under way they are at
        most lagging_period behind. It is the version's number that counts: a resumed run keeps the rhythm.
        Raises EngineError, once all have finished, if some refused; the others serve the new version then.
        """
        refusals: dict[str, EngineError] = {}

        async def publish_to(engine: Engine) -> None:
            try:
                await engine.publish(weights, version)
            except EngineError as error:
                refusals[engine.name] = error

        period = self.config.lagging_period
        due = [*self._current.engines]
        due += [engine for engine in self._lagging.engines if version // period > engine.version // period]
        async with trio.open_nursery() as nursery:
            for engine in due:
                nursery.start_soon(publish_to, engine)
        if refusals:
            reasons = "; ".join(str(refusals[name]) for name in sorted(refusals))
            raise EngineError(f"{len(refusals)} of {len(due)} engines did not take version {version}: {reasons}")
        return self._versions()

    def statistics(self) -> PoolStatistics:
        pools = (self._current, self._lagging)
        return PoolStatistics(
            num_turns={"current": self._current.num_turns, "lagging": self._lagging.num_turns},
            num_moves=sum(pool.num_moves for pool in pools),
            num_sessions={
                engine.name: count for p in pools for engine, count in zip(p.engines, p.num_sessions, strict=True)
            },
            versions=self._versions(),
            engines={engine.name: engine.statistics() for pool in pools for engine in pool.engines},
            shares=self.shares.by_pool(),
        )

    def _versions(self) -> dict[str, int]:
        return {engine.name: engine.version for pool in (self._current, self._lagging) for engine in pool.engines}


def _check(current: Sequence[Engine], lagging: Sequence[Engine], config: PoolConfig) -> None:
    if not current:
        raise ConfigError("a pool needs at least one current engine, got none")
    if bool(lagging) != config.has_lagging:
        expected = "at least one lagging engine" if config.has_lagging else "no lagging engine"
        raise ConfigError(f"lagging_prob = {config.lagging_prob} needs {expected}, got {len(lagging)}")
    names = [engine.name for engine in (*current, *lagging)]
    if len(set(names)) < len(names):
        raise ConfigError(f"engines of a pool need different names, got {names}")
    expectations: tuple[tuple[Pool, Sequence[Engine]], ...] = (("current", current), ("lagging", lagging))
    for pool, engines in expectations:
        strangers = [engine.name for engine in engines if engine.pool != pool]
        if strangers:
            raise ConfigError(f"{', '.join(strangers)} would record its turns as of another pool than {pool!r}")
