"""What does the embedded engine make of many short agent sessions: tokens per CPU-second, and prefill saved?

    python -m benchmarks.engine [--json] [--quick]

64 sessions at a time of 4 turns each, in groups of 8 that share their prompt, and 64 more after them; every turn
samples 32 ids and gets 24 more from its environment. `tiny` runs one engine without publishes;
`tiny/lagging` has a lagging engine sample every fourth turn, and publishes after every 8 turns of each session, the
first time in the middle of episodes.

A good answer: `prefill_saved_frac` of at least 0.6 and, with the lagging engine, 0.4; `num_late_compiles` 0.
`matmul_frac` is the share of this machine's own rate on one large product, measured in the same run, counting one
multiplication and addition for each weight of the layers and the head and each id that was computed.

Other engines are not compared: transformers' generate and SGLang need torch, which this environment does not have.
"""

import itertools
import sys
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass

import jax
import numpy as np
import trio

from agentrl_jax.engines.local.config import LocalEngineConfig
from agentrl_jax.engines.local.engine import LocalEngine, open_local_engine
from agentrl_jax.engines.protocol import EngineStatistics
from agentrl_jax.models.params import init_params, num_params
from agentrl_jax.types import SamplingParams, as_ids
from benchmarks.figures import Figure, json_lines, summarise, table
from benchmarks.step_cases import SMALL, Spent, matmul_gflops_per_cpu_s, stopwatch
from launch.config import parse

NAME = "engine"
SESSIONS, GROUP, TURNS, WAVES = 64, 8, 4, 2
PROMPT_TOKENS, NEW_TOKENS, ENV_TOKENS = 96, 32, 24
LAGGING_EVERY, PUBLISH_EVERY = 4, 8 * SESSIONS
ENGINE = LocalEngineConfig(num_slots=SESSIONS, cache_tokens=PROMPT_TOKENS + TURNS * (NEW_TOKENS + ENV_TOKENS))


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Tokens per CPU-second and prefill savings of the embedded engine."""

    json: bool = False
    """One JSON line per figure instead of a table"""
    quick: bool = False
    """One repeat"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Of one repeat: time, the engines' counters in it, compilations, and GFLOP per CPU-second of a product."""

    spent: Spent
    prompt_tokens: int
    prefilled_tokens: int
    sampled_tokens: int
    num_compiles: int
    matmul_rate: float


def main(arguments: list[str] | None = None) -> None:
    options = parse(Options, arguments, program=f"benchmarks.{NAME}")
    num_repeats = 1 if options.quick else 5
    figures = [figure for case in ("tiny", "tiny/lagging") for figure in measure(case, num_repeats)]
    print("\n".join(json_lines(figures)) if options.json else table(figures))


def measure(case: str, num_repeats: int) -> Iterator[Figure]:
    """The figures of one case, after a repeat that warms up."""
    outcomes = trio.run(repeat, case.endswith("/lagging"), num_repeats + 1)[1:]
    flops = 2 * num_params(SMALL)  # its head is its embedding: each weight is used once
    values: dict[str, Sequence[float]] = {
        "sampled_tokens_per_cpu_s": [o.sampled_tokens / o.spent.cpu_s for o in outcomes],
        "matmul_frac": [
            flops * (o.prefilled_tokens + o.sampled_tokens) / o.spent.cpu_s / 1e9 / o.matmul_rate for o in outcomes
        ],
        "prefill_saved_frac": [1 - o.prefilled_tokens / o.prompt_tokens for o in outcomes],
        "num_late_compiles": [o.num_compiles for o in outcomes],
    }
    for metric, found in values.items():
        unit = "tokens/s" if metric.startswith("sampled") else ""
        yield summarise(found, benchmark=NAME, case=case, metric=metric, unit=unit)


async def repeat(has_lagging: bool, num_repeats: int) -> list[Outcome]:
    """Play all sessions so many times on the same engines."""
    outcomes = []
    async with AsyncExitStack() as stack:
        engines = [
            await stack.enter_async_context(
                open_local_engine(model=SMALL, config=ENGINE, weights=init_params(SMALL, 0), version=0, name=name)
            )
            for name in (("current-0", "lagging-0") if has_lagging else ("current-0",))
        ]
        for number in range(num_repeats):
            rate = matmul_gflops_per_cpu_s()
            before = [engine.statistics() for engine in engines]
            with counted_compiles() as compiles, stopwatch() as spent:
                await play_all(engines, seed=number)
            after = [engine.statistics() for engine in engines]
            outcomes.append(
                Outcome(
                    spent=spent,
                    prompt_tokens=grown("prompt_tokens", before, after),
                    prefilled_tokens=grown("prefilled_tokens", before, after),
                    sampled_tokens=grown("sampled_tokens", before, after),
                    num_compiles=len(compiles),
                    matmul_rate=rate,
                )
            )
    return outcomes


async def play_all(engines: list[LocalEngine], seed: int) -> None:
    """Two waves of sessions; publishes only where there is a lagging engine."""
    prompts = np.random.default_rng(seed).integers(0, SMALL.vocab_size, (WAVES * SESSIONS // GROUP, PROMPT_TOKENS))
    weights, turns = init_params(SMALL, seed), itertools.count(1)

    async def play(number: int) -> None:
        group, ids = number // GROUP, as_ids(prompts[number // GROUP])
        replies = np.random.default_rng([seed, number]).integers(0, SMALL.vocab_size, (TURNS, ENV_TOKENS))
        for turn, reply in enumerate(replies):
            is_lagging = len(engines) > 1 and (7 * number + 3 * turn + group) % LAGGING_EVERY == 0
            sampling = SamplingParams(
                temperature=1.0, max_new_tokens=NEW_TOKENS, seed=TURNS * number + turn, stop_ids=(SMALL.vocab_size,)
            )
            completion = await engines[is_lagging].generate(ids, sampling, session=str(number))
            ids = as_ids([*ids, *completion.ids, *reply])
            if len(engines) > 1 and next(turns) % PUBLISH_EVERY == SESSIONS * TURNS // 2:
                await engines[0].publish(weights, engines[0].version + 1)
        for engine in engines:
            await engine.end_session(str(number))

    for wave in range(WAVES):
        async with trio.open_nursery() as nursery:
            for number in range(SESSIONS):
                nursery.start_soon(play, wave * SESSIONS + number)


def grown(counter: str, before: list[EngineStatistics], after: list[EngineStatistics]) -> int:
    """By how much a counter has grown, over all engines."""
    return sum(getattr(b, counter) - getattr(a, counter) for a, b in zip(before, after, strict=True))


@contextmanager
def counted_compiles() -> Iterator[list[str]]:
    """What JAX compiles in the block, as the names of its events."""
    compiled: list[str] = []

    def listen(event: str, duration_secs: float, **kwargs: str | int) -> None:
        if "backend_compile" in event:
            compiled.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        yield compiled
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)


if __name__ == "__main__":
    main(sys.argv[1:])
