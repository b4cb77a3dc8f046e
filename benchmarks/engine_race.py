"""Engines that play the same sessions of the same model folder, one after the other, each a process of its own.

All of them, and the client of those that are servers, run on one core: the one that this process is bound to. What an
engine costs is its processes' CPU-seconds; only the embedded engine's include its client.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import trio

from agentrl_jax.engines.protocol import EngineStatistics
from agentrl_jax.engines.sglang import open_sglang_engine
from agentrl_jax.engines.weight_folder import tensor_shapes
from benchmarks.engine_load import Load
from benchmarks.engine_sessions import play_sessions
from tests.sglang_cpu.servers import PYTHON as PEERS_PYTHON
from tests.sglang_cpu.servers import running_server

Played = Mapping[str, float]
"""cpu_s, wall_s, sampled_tokens, and whatever else the engine says."""
Play = Callable[[int], Played]

_REPOSITORY = Path(__file__).resolve().parents[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Race:
    """A model folder, what is played on it, and in which precision."""

    folder: Path
    vocab_size: int
    load: Load
    dtype: str


Contestant = Callable[[Race], AbstractContextManager[Play]]


def has_peers() -> bool:
    """Whether the environment with torch, transformers and SGLang is there (tools/install_sglang.sh)."""
    return (PEERS_PYTHON.parents[1] / ".installed").is_file()


@contextmanager
def bound_to_core(core: int) -> Iterator[None]:
    """This process and all that it starts in the block compute on `core` only."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def play_in_turns(race: Race, contestants: Mapping[str, Contestant], num_repeats: int) -> dict[str, list[Played]]:
    """Each contestant's repeats, after one of other prompts that warms it up; they alternate.

    Raises RuntimeError if one samples more or fewer ids than the others.
    """
    outcomes: dict[str, list[Played]] = {name: [] for name in contestants}
    with ExitStack() as stack:
        plays = {name: stack.enter_context(start(race)) for name, start in contestants.items()}
        for seed in range(num_repeats + 1):
            for name, play in plays.items():
                played = play(seed)
                for counted in ("sampled_tokens", "asked_tokens"):
                    expected = getattr(race.load, counted)
                    if played.get(counted, expected) != expected:
                        raise RuntimeError(f"{name}: expected {expected} {counted}, got {played[counted]:g}")
                outcomes[name].append(played)
    return {name: played[1:] for name, played in outcomes.items()}


@contextmanager
def embedded(race: Race) -> Iterator[Play]:
    """The embedded engine."""
    with _child(sys.executable, "benchmarks.engine_embedded", race) as play:
        yield play


@contextmanager
def lockstep(race: Race) -> Iterator[Play]:
    """transformers' `generate` on one static batch."""
    with _child(str(PEERS_PYTHON), "benchmarks.engine_transformers", race, "lockstep") as play:
        yield play


@contextmanager
def continuous(race: Race) -> Iterator[Play]:
    """transformers' continuous batching."""
    with _child(str(PEERS_PYTHON), "benchmarks.engine_transformers", race, "continuous") as play:
        yield play


@contextmanager
def _child(python: str, module: str, race: Race, *more: str) -> Iterator[Play]:
    command = [python, "-W", "ignore", "-m", module, str(race.folder), race.load.to_json(), race.dtype, *more]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "JAX_PLATFORMS": "cpu", "HF_HUB_OFFLINE": "1"}
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=_REPOSITORY, env=environment, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        lines, stdin = process.stdout, process.stdin

        def answer() -> Played:
            for line in lines:
                if line.startswith("{"):
                    found: Played = json.loads(line)
                    return found
            raise RuntimeError(f"{module} ended early, with exit code {process.wait()}")

        def play(seed: int) -> Played:
            print(seed, file=stdin, flush=True)
            return answer()

        try:
            answer()
            yield play
        finally:
            process.kill()


@contextmanager
def sglang(race: Race) -> Iterator[Play]:
    """An SGLang server; log-probabilities are asked for, as training needs them."""
    (core,) = os.sched_getaffinity(0)
    flags = ["--skip-tokenizer-init", "--dtype", race.dtype, "--max-total-tokens", "32768"]
    flags += ["--max-running-requests", str(race.load.sessions)]
    tensors = tensor_shapes(race.folder)
    with running_server(race.folder, core=core, flags=flags) as server:

        async def play_once(seed: int) -> EngineStatistics:
            async with open_sglang_engine(server.url, tensors=tensors, name="sglang") as engine:
                await play_sessions(race.load, [engine], seed=seed, vocab_size=race.vocab_size)
                return engine.statistics()

        def play(seed: int) -> Played:
            cpu_s, wall_s = group_cpu_s(server.process.pid), time.perf_counter()
            counted = trio.run(play_once, seed)
            cpu_s, wall_s = group_cpu_s(server.process.pid) - cpu_s, time.perf_counter() - wall_s
            return {
                "cpu_s": cpu_s,
                "wall_s": wall_s,
                "sampled_tokens": counted.sampled_tokens,
                "asked_tokens": counted.prompt_tokens,
            }

        yield play


def group_cpu_s(group: int) -> float:
    """CPU-seconds that the living processes of a process group have used so far."""
    ticks = 0
    for file in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = file.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
            continue
        if int(fields[2]) == group:
            ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")
