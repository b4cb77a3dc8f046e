"""The engines of a training run, in its own process: one of the current policy, and one of the lagging policy."""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import trio

from agentrl_jax.config import TrainConfig
from agentrl_jax.engines.local.engine import LocalEngine, open_local_engine
from agentrl_jax.engines.local.placement import Place
from agentrl_jax.engines.pool import EnginePool
from agentrl_jax.engines.protocol import Engine
from agentrl_jax.engines.publish import PublishStatistics
from agentrl_jax.models.config import ModelConfig
from agentrl_jax.run_engines import Weights
from agentrl_jax.seeding import derive_seed


class LocalEngines:
    """Implements `RunEngines`. Made by `open_local_engines`; weights are taken as trees of params."""

    def __init__(self, pool: EnginePool, settings: Mapping[str, Any]) -> None:
        self._pool, self._settings = pool, settings

    @property
    def pool(self) -> EnginePool:
        return self._pool

    async def publish(self, weights: Weights) -> Mapping[str, int]:
        """See `RunEngines.publish`. Raises EngineError if an engine does not take them."""
        params = await trio.to_thread.run_sync(weights.take)
        return await self._pool.publish(params, weights.version)

    @asynccontextmanager
    async def evaluating(self, weights: Weights) -> AsyncIterator[Engine | None]:
        """See `RunEngines.evaluating`."""
        params = await trio.to_thread.run_sync(weights.take)
        opening = open_local_engine(weights=params, version=weights.version, name="evaluation-0", **self._settings)
        async with opening as engine:
            yield engine

    def statistics(self) -> Mapping[str, PublishStatistics]:
        return {}


@asynccontextmanager
async def open_local_engines(
    config: TrainConfig,
    model: ModelConfig,
    place: Place,
    *,
    current: Weights,
    lagging: Weights | None,
    say: Callable[[str], None],
) -> AsyncIterator[LocalEngines]:
    """The embedded engines at `place`, serving `current` and `lagging`."""
    settings: dict[str, Any] = {"model": model, "config": config.one_engine, "place": place}
    async with AsyncExitStack() as stack:

        async def open_one(weights: Weights, **names: Any) -> LocalEngine:
            params = await trio.to_thread.run_sync(weights.take)
            opening = open_local_engine(weights=params, version=weights.version, say=say, **names, **settings)
            return await stack.enter_async_context(opening)

        engines = [await open_one(current, name="current-0", pool="current")]
        if lagging is not None:
            engines.append(await open_one(lagging, name="lagging-0", pool="lagging"))
        pool = EnginePool(engines[:1], engines[1:], config.pool, derive_seed(config.seed, "pool"))
        yield LocalEngines(pool, settings)
