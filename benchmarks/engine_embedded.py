"""The embedded engine as a process of its own: `python -m benchmarks.engine_embedded FOLDER LOAD DTYPE`.

Plays the sessions of every seed that comes in on a line, and answers with a line of JSON; see `engine_race`.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

import trio

from agentrl_jax.engines.local.config import LocalEngineConfig
from agentrl_jax.engines.local.engine import open_local_engine
from agentrl_jax.models.config import ModelConfig
from agentrl_jax.models.load import load_pretrained
from agentrl_jax.models.params import num_params
from benchmarks.compiles import counted_compiles
from benchmarks.engine_load import Load
from benchmarks.engine_sessions import play_sessions
from benchmarks.step_cases import matmul_gflops_per_cpu_s


def main(folder: Path, load: Load, dtype: str) -> None:
    model, weights = load_pretrained(folder)
    config = LocalEngineConfig(
        num_slots=load.sessions,
        cache_tokens=load.longest,
        decode_block=8,
        dtype=dtype,  # type: ignore[arg-type]
    )
    trio.run(serve, model, config, weights, load)


async def serve(model: ModelConfig, config: LocalEngineConfig, weights: Any, load: Load) -> None:
    async with open_local_engine(model=model, config=config, weights=weights, version=0) as engine:
        print("{}", flush=True)
        while line := await trio.to_thread.run_sync(sys.stdin.readline):
            rate, before = matmul_gflops_per_cpu_s(), engine.statistics()
            with counted_compiles() as compiles:
                cpu_s, wall_s = time.process_time(), time.perf_counter()
                await play_sessions(load, [engine], seed=int(line), vocab_size=model.vocab_size)
                cpu_s, wall_s = time.process_time() - cpu_s, time.perf_counter() - wall_s
            after = engine.statistics()
            prefilled = after.prefilled_tokens - before.prefilled_tokens
            sampled = after.sampled_tokens - before.sampled_tokens
            gflops = required_gflop(model, load, prefilled=prefilled, sampled=sampled) / cpu_s
            answer = {
                "cpu_s": cpu_s,
                "wall_s": wall_s,
                "sampled_tokens": sampled,
                "asked_tokens": after.prompt_tokens - before.prompt_tokens,
                "matmul_frac": gflops / rate,
                "prefill_saved_frac": 1 - prefilled / (after.prompt_tokens - before.prompt_tokens),
                "num_late_compiles": len(compiles),
            }
            print(json.dumps(answer), flush=True)


def required_gflop(model: ModelConfig, load: Load, *, prefilled: int, sampled: int) -> float:
    """Multiplications and additions of weights: of the layers for each id that is fed, of the head for each draw.

    The last id of a turn is fed by the next turn, if at all. Attention and what is computed for nobody do not count.
    """
    head = model.vocab_size * model.width
    layers = num_params(model) - head * (1 if model.tie_embeddings else 2)
    fed = prefilled + sampled - load.sessions * load.turns
    return 2 * (layers * fed + head * sampled) / 1e9


if __name__ == "__main__":
    main(Path(sys.argv[1]), Load.from_json(sys.argv[2]), sys.argv[3])
