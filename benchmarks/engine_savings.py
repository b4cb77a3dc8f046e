"""How many prompt tokens prefix reuse saves the embedded engine, with and without lagging engines and publishes."""

import itertools
from collections.abc import Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass

import trio

from agentrl_jax.engines.local.config import LocalEngineConfig
from agentrl_jax.engines.local.engine import LocalEngine, open_local_engine
from agentrl_jax.engines.protocol import EngineStatistics
from agentrl_jax.models.params import init_params
from benchmarks.compiles import counted_compiles
from benchmarks.engine_load import Load
from benchmarks.engine_sessions import play_sessions
from benchmarks.figures import Figure, summarise
from benchmarks.step_cases import SMALL

LOAD = Load(prompt_tokens=96, new_tokens=32, env_tokens=24)
WAVES = 2
LAGGING_EVERY, PUBLISH_EVERY = 4, 8 * LOAD.sessions
ENGINE = LocalEngineConfig(num_slots=LOAD.sessions, cache_tokens=LOAD.longest)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Of one repeat: the engines' counters in it, and what was compiled."""

    prompt_tokens: int
    prefilled_tokens: int
    sampled_tokens: int
    num_compiles: int


def measure_savings(benchmark: str, case: str, *, has_lagging: bool, num_repeats: int) -> Iterator[Figure]:
    """The figures of one case, after a repeat that warms up."""
    outcomes = trio.run(repeat, has_lagging, num_repeats + 1)[1:]
    saved = [1 - outcome.prefilled_tokens / outcome.prompt_tokens for outcome in outcomes]
    compiled = [outcome.num_compiles for outcome in outcomes]
    yield summarise(saved, benchmark=benchmark, case=case, metric="prefill_saved_frac", unit="")
    yield summarise(compiled, benchmark=benchmark, case=case, metric="num_late_compiles", unit="")


async def repeat(has_lagging: bool, num_repeats: int) -> list[Outcome]:
    """Play two waves of sessions so many times on the same engines."""
    outcomes = []
    async with AsyncExitStack() as stack:
        engines = [
            await stack.enter_async_context(
                open_local_engine(model=SMALL, config=ENGINE, weights=init_params(SMALL, 0), version=0, name=name)
            )
            for name in (("current-0", "lagging-0") if has_lagging else ("current-0",))
        ]
        for number in range(num_repeats):
            before = [engine.statistics() for engine in engines]
            with counted_compiles() as compiles:
                await play_waves(engines, seed=number)
            after = [engine.statistics() for engine in engines]
            outcomes.append(
                Outcome(
                    prompt_tokens=grown("prompt_tokens", before, after),
                    prefilled_tokens=grown("prefilled_tokens", before, after),
                    sampled_tokens=grown("sampled_tokens", before, after),
                    num_compiles=len(compiles),
                )
            )
    return outcomes


async def play_waves(engines: list[LocalEngine], seed: int) -> None:
    """All sessions, wave by wave; publishes, and other engines than the first, only where there is a lagging one."""
    weights, turns = init_params(SMALL, seed), itertools.count(1)

    def choose(number: int, turn: int) -> LocalEngine:
        is_lagging = (7 * number + 3 * turn + number // LOAD.group) % LAGGING_EVERY == 0
        return engines[len(engines) > 1 and is_lagging]

    async def publish_at_times() -> None:
        if len(engines) > 1 and next(turns) % PUBLISH_EVERY == LOAD.sessions * LOAD.turns // 2:
            await engines[0].publish(weights, engines[0].version + 1)

    for wave in range(WAVES):
        await play_sessions(
            LOAD,
            engines,
            seed=WAVES * seed + wave,
            vocab_size=SMALL.vocab_size,
            choose=choose,
            after_turn=publish_at_times,
        )


def grown(counter: str, before: list[EngineStatistics], after: list[EngineStatistics]) -> int:
    """By how much a counter has grown, over all engines."""
    return sum(getattr(b, counter) - getattr(a, counter) for a, b in zip(before, after, strict=True))
