"""The engines of a training run, wherever its config has them: in this process, or on servers."""

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from agentrl_jax.config import TrainConfig
from agentrl_jax.controller.collector import calm_collector
from agentrl_jax.engines.local.placement import Place
from agentrl_jax.engines.probe import Score
from agentrl_jax.policy import Policy
from agentrl_jax.run_engines import RunEngines, Weights, open_served_engines
from agentrl_jax.run_local_engines import open_local_engines


@asynccontextmanager
async def open_run_engines(
    config: TrainConfig,
    policy: Policy,
    run_dir: Path,
    place: Place,
    *,
    current: Weights,
    lagging: Weights | None,
    score: Score | None,
    say: Callable[[str], None],
) -> AsyncIterator[RunEngines]:
    """Serving `current`, and `lagging` if there is one. place: of engines in this process.

    score: what servers are compared with; see `open_served_engines`, also for what is raised.
    """
    async with AsyncExitStack() as stack:
        engines: RunEngines
        if config.has_local_engines:
            local = open_local_engines(config, policy.model, place, current=current, lagging=lagging, say=say)
            engines = await stack.enter_async_context(local)
        else:
            served = open_served_engines(
                config, policy, run_dir, current=current, lagging=lagging, score=score, say=say
            )
            engines = await stack.enter_async_context(served)
        stack.enter_context(calm_collector())  # whatever lives as long as the run is there now
        yield engines
