"""Is the embedded engine faster than its peers on many short agent sessions, and what does prefix reuse save it?

    python -m benchmarks.engine [--json] [--quick] [--dtype bfloat16]

64 sessions at a time of 4 turns each, in groups of 8 that share their prompt, on the same model folder: `tiny` has 0.6
million weights, `135M` the shape of SmolLM2-135M. The peers are transformers' `generate` (all sessions as one batch, in
lockstep; for `tiny` its continuous batching too, which takes ten times as long) and an SGLang server; they need
tools/install_sglang.sh, and `is_present` is 0 where they are absent. All run on one core, which they share with their
clients, warm and alternating; each keeps its prefixes; and each must sample exactly as many ids as the others. The
embedded engine and SGLang also say how likely every id was, `generate` does not.

`savings` and `savings/lagging` are two waves of sessions of the embedded engine alone, the latter with a lagging engine
that samples every fourth turn, and a publish after every 8 turns of each session.

A good answer: `ratio_to_best_peer`, of tokens per CPU-second, is at least 2 for `tiny` and 1 for `135M`
(`ratio_to_best_peer_by_wall` is the same by the clock, which means little on a machine that others use);
`matmul_frac` of `135M` is at least 0.4: the share of this core's own rate on one large product, measured in the same
run, counting one multiplication and addition for each weight and each id that it must be applied to;
`prefill_saved_frac` is at least 0.6, and 0.4 with the lagging engine; `num_late_compiles` is 0.
"""

import os
import statistics
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

from agentrl_jax.models.config import ModelConfig
from agentrl_jax.models.params import init_params
from agentrl_jax.models.save import save_pretrained
from benchmarks.engine_load import Load
from benchmarks.engine_race import (
    Contestant,
    Played,
    Race,
    bound_to_core,
    continuous,
    embedded,
    has_peers,
    lockstep,
    play_in_turns,
    sglang,
)
from benchmarks.engine_savings import measure_savings
from benchmarks.figures import Figure, json_lines, summarise, table
from launch.config import parse

NAME = "engine"
PEERS: dict[str, Contestant] = {
    "transformers": lockstep,
    "transformers-continuous": continuous,
    "sglang": sglang,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A model, what is played on it, and against whom."""

    model: ModelConfig
    load: Load
    peers: tuple[str, ...]


CASES = {
    "tiny": Case(
        model=ModelConfig(
            family="qwen3", vocab_size=1024, width=128, num_layers=2, num_heads=4, num_kv_heads=2, head_dim=32,
            mlp_width=256, qkv_bias=False, tie_embeddings=False,
        ),
        load=Load(prompt_tokens=96, new_tokens=32, env_tokens=24),
        peers=tuple(PEERS),
    ),
    "135M": Case(
        model=ModelConfig(
            family="llama", vocab_size=49_152, width=576, num_layers=30, num_heads=9, num_kv_heads=3, head_dim=64,
            mlp_width=1536, qkv_bias=False, rope_theta=100_000.0, norm_eps=1e-5,
        ),
        load=Load(prompt_tokens=64, new_tokens=16, env_tokens=16),
        peers=("transformers", "sglang"),
    ),
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The embedded engine beside transformers and SGLang, and its savings by prefix reuse."""

    json: bool = False
    """One JSON line per figure instead of a table"""
    quick: bool = False
    """One repeat, and no 135M"""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Of all engines of the race"""
    core: int | None = None
    """The one they run on (default: the last that this process may use)"""

    @property
    def repeats(self) -> int:
        return 1 if self.quick else 3


def main(arguments: list[str] | None = None) -> None:
    """Measure and print."""
    options = parse(Options, arguments, program=f"benchmarks.{NAME}")
    figures = list(measure(options))
    print("\n".join(json_lines(figures)) if options.json else table(figures), flush=True)


def measure(options: Options) -> Iterator[Figure]:
    """All figures, case by case."""
    for name in ("tiny",) if options.quick else CASES:
        yield from race(name, options)
    for has_lagging in (False, True):
        case = "savings/lagging" if has_lagging else "savings"
        yield from measure_savings(NAME, case, has_lagging=has_lagging, num_repeats=options.repeats)


def race(name: str, options: Options) -> Iterator[Figure]:
    """The figures of one case."""
    case = CASES[name]
    contestants: dict[str, Contestant] = {"embedded": embedded}
    if has_peers():
        contestants |= {peer: PEERS[peer] for peer in case.peers}
    core = max(os.sched_getaffinity(0)) if options.core is None else options.core
    with TemporaryDirectory() as folder, bound_to_core(core):
        save_pretrained(init_params(case.model, 0), case.model, Path(folder), dtype=options.dtype)
        asked = Race(folder=Path(folder), vocab_size=case.model.vocab_size, load=case.load, dtype=options.dtype)
        outcomes = play_in_turns(asked, contestants, options.repeats)
    for peer in case.peers:
        yield _figure(f"{name}/{peer}", "is_present", [float(peer in outcomes)])
    for contestant, played in outcomes.items():
        for metric, against in (("tokens_per_cpu_s", "cpu_s"), ("tokens_per_s", "wall_s")):
            values = [one["sampled_tokens"] / one[against] for one in played]
            yield _figure(f"{name}/{contestant}", metric, values, "tokens/s")
    yield from compare(name, outcomes)


def compare(name: str, outcomes: Mapping[str, list[Played]]) -> Iterator[Figure]:
    """The embedded engine's own figures, and how many times as fast as the fastest peer it is."""
    own = outcomes["embedded"]
    for metric in ("matmul_frac", "prefill_saved_frac", "num_late_compiles"):
        yield _figure(name, metric, [played[metric] for played in own])
    for metric, spent in (("ratio_to_best_peer", "cpu_s"), ("ratio_to_best_peer_by_wall", "wall_s")):
        medians = {
            peer: statistics.median(one[spent] for one in played)
            for peer, played in outcomes.items()
            if peer != "embedded"
        }
        if medians:
            best = outcomes[min(medians, key=lambda peer: medians[peer])]
            ratios = [theirs[spent] / ours[spent] for theirs, ours in zip(best, own, strict=True)]
            yield _figure(name, metric, ratios)


def _figure(case: str, metric: str, values: list[float], unit: str = "") -> Figure:
    return summarise(values, benchmark=NAME, case=case, metric=metric, unit=unit)


if __name__ == "__main__":
    main(sys.argv[1:])
