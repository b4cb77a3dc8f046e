"""What does an episode cost the controller, with 10,000 of them live in one process?

    python -m benchmarks.controller [--json] [--quick] [--wall] [--only CASE …]

The controller's own code runs as in training (loop, ledger, permits, groups, episodes, engine pool, chat template and
tokenizer, records); policy and environments are scripted. Each turn samples 200 ids that end with a tool call, and the
environment's reply is rendered as 200 ids. Three turns an episode, groups of 8. Every case has a process of its own.

10000-episodes: all live at a time, from the first start to the last of 60,000 turns, so starting and ending an episode
  is part of a turn's cost. Engines answer after 6 to 18 s, so that the loop is idle about half of the time. Sessions
  need no thread, as on remote workers. The loop's lag is how late a task wakes that asks ten times a second. Time is
  processor time, idle time skipped (benchmarks/processor_clock.py): lag and turns_per_s are those of a core that
  nobody else uses. With --wall it is the clock on the wall, and what other programs do counts as lag.
1000-thread-sessions: 1,000 episodes whose environments are called in worker threads, as in training on one machine;
  always on the wall's clock.
live-episode: memory of an episode after three turns that waits for an engine. python_kb_per_episode is what tracemalloc
  sees, without the data of arrays (ids, log-probabilities, masks); resident_kb_per_episode is all of it, as the growth
  of resident memory.
memory-slope: resident memory over 20,000 further episodes, after 6,000, by least squares.
2000-remote: 2,000 sessions on a worker of another process, played by clients of a third, all over HTTP: the controller
  answers each turn's request and makes one of its own. Sessions start and end among the turns. On the wall's clock: a
  machine whose cores are taken shows it as lag.
process-per-episode: the same work with one operating system process per episode, of which a few are run one after the
  other; most of it is starting an interpreter. cpu_ratio: its cpu_ms_per_turn over that of 10000-episodes.

A good answer: 10000-episodes cpu_ms_per_turn <= 0.5 and lag_p99_ms <= 50; python_kb_per_episode <= 60; slope < 0.1 MB;
2000-remote cpu_ms_per_turn <= 1.5 and lag_p99_ms <= 100.
Other programs on the machine make processor times larger too, by the caches that they share.
"""

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from agentrl_jax.errors import ConfigError
from benchmarks.figures import Figure, json_lines, summarise, table
from launch.config import parse

NAME = "controller"
UNITS = {
    "cpu_ms_per_turn": "ms",
    "turns_per_s": "1/s",
    "lag_p50_ms": "ms",
    "lag_p99_ms": "ms",
    "lag_max_ms": "ms",
    "peak_episodes": "",
    "python_kb_per_episode": "kB",
    "resident_kb_per_episode": "kB",
    "rss_mb_per_1000_episodes": "MB",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Processor time, memory and lag of the controller with thousands of live episodes."""

    json: bool = False
    """One JSON line per figure instead of a table"""
    quick: bool = False
    """A tenth of the episodes, once: half a minute"""
    wall: bool = False
    """Measure 10000-episodes on the wall's clock: for a machine with a core to spare"""
    only: tuple[str, ...] = ()
    """Cases to measure, such as 2000-remote (default: all)"""

    def __post_init__(self) -> None:
        names = (QUICK if self.quick else FULL).cases(wall=self.wall)
        if unknown := [name for name in self.only if name not in names]:
            raise ConfigError(f"--only {' '.join(unknown)}: no such case; there are {', '.join(names)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How much each case does: see `benchmarks.controller_cases`."""

    num_episodes: int
    num_turns: int
    latency_s: float
    num_threaded: int
    threaded_turns: int
    num_live: int
    num_warm: int
    num_slope: int
    num_processes: int
    num_remote: int
    remote_turns: int
    think_s: float
    repeats: int

    def cases(self, *, wall: bool) -> Mapping[str, Sequence[Sequence[object]]]:
        """Case to the calls (function and arguments) that measure it."""
        many = ["concurrent", self.num_episodes, self.num_turns, self.latency_s, False, wall]
        threaded = ["concurrent", self.num_threaded, self.threaded_turns, 2.0, True, True]
        return {
            f"{self.num_episodes}-episodes": [many],
            f"{self.num_threaded}-thread-sessions": [threaded],
            "live-episode": [["live_memory", self.num_live, True], ["live_memory", self.num_live, False]],
            "memory-slope": [["slope", self.num_warm, self.num_slope]],
            f"{self.num_remote}-remote": [["remote", self.num_remote, self.remote_turns, self.think_s]],
            "process-per-episode": [["process_each", self.num_processes]],
        }


FULL = Size(
    num_episodes=10_000,
    num_turns=60_000,
    latency_s=12.0,
    num_threaded=1_000,
    threaded_turns=10_000,
    num_live=10_000,
    num_warm=6_000,
    num_slope=20_000,
    num_processes=8,
    num_remote=2_000,
    remote_turns=8_000,
    think_s=6.0,
    repeats=3,
)
QUICK = Size(
    num_episodes=1_000,
    num_turns=6_000,
    latency_s=1.5,
    num_threaded=200,
    threaded_turns=1_000,
    num_live=1_000,
    num_warm=2_000,
    num_slope=4_000,
    num_processes=2,
    num_remote=200,
    remote_turns=1_000,
    think_s=1.0,
    repeats=1,
)


def measure(size: Size, *, wall: bool = False, only: Sequence[str] = ()) -> Iterator[Figure]:
    """All figures of the cases `only` (none named: of all); the cases take turns within each repeat."""
    values: dict[tuple[str, str], list[float]] = {}
    cases = size.cases(wall=wall)
    cases = {case: calls for case, calls in cases.items() if not only or case in only}
    for number in range(size.repeats):
        for case, calls in cases.items():
            print(f"{NAME}: repeat {number + 1} of {size.repeats}, {case}", file=sys.stderr, flush=True)
            for call in calls:
                for metric, value in run_case(call).items():
                    values.setdefault((case, metric), []).append(value)
    for (case, metric), found in values.items():
        yield summarise(found, benchmark=NAME, case=case, metric=metric, unit=UNITS[metric])
    if not {next(iter(size.cases(wall=wall))), "process-per-episode"} <= set(cases):
        return
    ours, theirs = (values[case, "cpu_ms_per_turn"] for case in (next(iter(cases)), "process-per-episode"))
    ratios = [their / our for our, their in zip(ours, theirs, strict=True)]
    yield summarise(ratios, benchmark=NAME, case="process-per-episode", metric="cpu_ratio", unit="")


def run_case(call: Sequence[object]) -> dict[str, float]:
    """Metric to value of one function of `benchmarks.controller_cases`, run in a process of its own."""
    name, *arguments = call
    command = [sys.executable, "-m", "benchmarks.controller_cases", str(name), *map(json.dumps, arguments)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the figures."""
    options = parse(Options, arguments, program=f"benchmarks.{NAME}")
    found = list(measure(QUICK if options.quick else FULL, wall=options.wall, only=options.only))
    print("\n".join(json_lines(found)) if options.json else table(found))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
