"""Episodes of every family on one pool of engines: training groups, and evaluations on held-out tasks."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import trio

from agentrl_jax.config import TrainConfig
from agentrl_jax.controller.episode import EngineChooser, EpisodeSetup
from agentrl_jax.controller.evaluation import run_tasks
from agentrl_jax.controller.group import AdmittedGroup, run_group, run_group_when_placed
from agentrl_jax.controller.ports import RunOneGroup
from agentrl_jax.controller.sessions import SessionFactory
from agentrl_jax.controller.slots import EpisodeSlots
from agentrl_jax.controller.statistics import RolloutStatistics, SessionCounts
from agentrl_jax.controller.telemetry import Telemetry
from agentrl_jax.engines.pool import EnginePool
from agentrl_jax.engines.protocol import Engine
from agentrl_jax.env import EnvFamily, tools_for
from agentrl_jax.evaluation import Evaluation, summarise
from agentrl_jax.rendering.tokenizer import ChatTokenizer
from agentrl_jax.rendering.transcript import TemplateRenderer
from agentrl_jax.seeding import derive_seed
from agentrl_jax.types import Group, Task

_TRAINING = "train"


class Rollouts:
    """Runs groups and evaluations of `families` for one config on one pool. sessions: by the families' names.

    telemetry: observes all episodes.
    """

    def __init__(
        self,
        families: Sequence[EnvFamily],
        sessions: Mapping[str, SessionFactory],
        tokenizer: ChatTokenizer,
        config: TrainConfig,
        pool: EnginePool,
        telemetry: Telemetry | None = None,
    ) -> None:
        self.pool = pool
        self._telemetry = telemetry
        self._families = families
        self._sessions = {name: SessionCounts(make) for name, make in sessions.items()}
        self._config = config
        self._slots: EpisodeSlots | None = None
        self._renderers = {
            family.name: TemplateRenderer(tokenizer, tools=family.tools, config=config.rendering) for family in families
        }
        self._render_threads = trio.CapacityLimiter(1)  # more would only take turns: Python runs one of them at a time

    def training_groups(self, shares: Callable[[], Mapping[str, float]]) -> RunOneGroup:
        """Run admitted groups, as many episodes at a time as the engines have slots, each env with its share of them.

        More episodes than slots would only take each other's prefixes out of the engines' caches.
        """
        size = self._config.rollout.group_size
        slots = self._slots = EpisodeSlots(self._config.engine.num_slots, shares)
        setups = self._setups(self.pool, _TRAINING, self._config.temperature)

        async def run_one_group(admitted: AdmittedGroup) -> Group:
            setup = setups[admitted.task.env]
            return await run_group_when_placed(admitted, group_size=size, setup=setup, slots=slots)

        return run_one_group

    def statistics(self) -> RolloutStatistics:
        """Of the training groups, and of all sessions and engines."""
        return RolloutStatistics(
            slots=None if self._slots is None else self._slots.statistics(),
            sessions={name: counts.statistics() for name, counts in self._sessions.items()},
            pool=self.pool.statistics(),
            telemetry=None if self._telemetry is None else self._telemetry.statistics(),
        )

    async def evaluate(
        self, mode: str, *, until: Callable[[], Awaitable[object]], engine: Engine | None = None
    ) -> dict[str, Evaluation]:
        """Success of the current policy by env, one episode of each held-out task; {} if `until` returns first.

        mode: "sampled" at the training temperature, or "greedy". The tasks and seeds are the same each time.
        engine: one that no publish reaches, to evaluate its policy beside training; None: the pool's current ones.
        """
        size = self._config.evaluation.num_tasks
        tasks = [family.task("eval", index) for family in self._families for index in range(size)]
        temperature = self._config.temperature if mode == "sampled" else 0.0
        version = self.pool.version if engine is None else engine.version
        choose_engine: EngineChooser = self.pool.choose_current if engine is None else _only(engine)
        setups = self._setups(choose_engine, "evaluation", temperature)
        return summarise(mode, await self._run_unless(until, tasks, setups, version))

    async def _run_unless(
        self,
        until: Callable[[], Awaitable[object]],
        tasks: Sequence[Task],
        setups: dict[str, EpisodeSetup],
        version: int,
    ) -> tuple[Group, ...]:
        async def run_one_group(admitted: AdmittedGroup) -> Group:
            return await run_group(admitted, group_size=1, setup=setups[admitted.task.env])

        async def cancel_after(scope: trio.CancelScope) -> None:
            await until()
            scope.cancel()

        groups: tuple[Group, ...] = ()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(cancel_after, nursery.cancel_scope)
            concurrency = self._config.evaluation.max_concurrent
            groups = await run_tasks(tasks, run_one_group, version=version, max_concurrent=concurrency)
            nursery.cancel_scope.cancel()
        return groups

    def _setups(self, choose_engine: EngineChooser, purpose: str, temperature: float) -> dict[str, EpisodeSetup]:
        return {
            family.name: EpisodeSetup(
                sessions=self._sessions[family.name],
                tools=family.tools,
                tools_of=partial(tools_for, family),
                renderer=self._renderers[family.name],
                choose_engine=choose_engine,
                config=replace(
                    self._config.episode,
                    temperature=temperature,
                    max_turns=self._config.max_turns or family.max_turns,
                    # The published evaluation leaves these ends out all the same.
                    penalises_infrastructure=self._config.upstream_compat and purpose == _TRAINING,
                ),
                run_seed=derive_seed(self._config.seed, purpose),
                observe=None if self._telemetry is None else self._telemetry.observe,
                render_threads=self._render_threads,
            )
            for family in self._families
        }


def _only(engine: Engine) -> EngineChooser:
    return lambda group_id, member, turn: engine
