"""The real part of benchmarks.async_vs_sync: runs of the joined pipeline, each in a process of its own.

The embedded engine computes on one core, everything else (learner, controller) on another, and environments answer
after a log-normal time, median 0.3 s, sigma 1, clipped to [0.01 s, 10 s]. All cases play the same policy.

What no scheduler can beat: a core gives one CPU-second in a second, so an episode takes at least the CPU-seconds that
the busier core spends on it. The least that any run of the repeat has spent counts, for each core on its own: what a
CPU-second does on a shared machine differs between repeats by more than between their runs. It is a bound for programs
that spend as much on an episode: a program that wasted as many CPU-seconds in every case would come as near to it. So
look at episodes/s too.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from agentrl_jax.errors import ConfigError
from agentrl_jax.runlog import surviving_steps
from benchmarks.async_real_run import ONE_THREAD, RunSettings
from benchmarks.figures import Figure, summarise

NAME = "async_vs_sync"
_REPOSITORY = Path(__file__).resolve().parents[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """num_steps: that count, of one run, after max_staleness + 2 that do not."""

    settings: RunSettings
    staleness: tuple[int, ...]
    num_steps: int
    repeats: int


def full_size() -> Size:
    """Twenty minutes on two cores."""
    return Size(settings=RunSettings(folder="", cores=two_cores()), staleness=(0, 1, 2, 4), num_steps=6, repeats=3)


def quick_size() -> Size:
    """A minute: shows that it works."""
    settings = RunSettings(folder="", cores=two_cores(), groups_per_batch=4, num_places=8, is_tiny=True)
    return Size(settings=settings, staleness=(0, 1), num_steps=1, repeats=1)


def two_cores() -> tuple[int, int]:
    """The first two that this process may use. Raises ConfigError if there is only one."""
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        raise ConfigError(
            "the real mode needs two cores, one for the engine and one for the learner; use --mode virtual"
        )
    return cores[0], cores[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """The measured steps of one run. Core seconds are CPU-seconds; ages cover the whole run."""

    seconds: float
    num_steps: int
    num_episodes: int
    num_tokens: int
    learner_core_s: float
    engine_core_s: float
    age_max: int
    lag_max: int

    @property
    def episodes_per_s(self) -> float:
        return self.num_episodes / self.seconds


def run_once(settings: RunSettings) -> None:
    """One run in a child process. Raises RuntimeError with its last words if it fails."""
    command = [sys.executable, "-m", "benchmarks.async_real_run", settings.to_json()]
    done = subprocess.run(
        command, cwd=_REPOSITORY, env=os.environ | ONE_THREAD, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"a run with max_staleness {settings.max_staleness} failed: {done.stderr[-2000:]}")


def measure(settings: RunSettings, num_steps: int) -> Measurement:
    """One run from `settings.model`, recorded in `settings.folder`."""
    num_left_out = settings.max_staleness + 2  # the first one compiles; what rollouts stored up meanwhile follows it
    run_once(replace(settings, max_steps=num_left_out + num_steps))
    steps = surviving_steps(Path(settings.folder) / "metrics.jsonl")
    before, measured, last = steps[num_left_out - 1], steps[num_left_out:], steps[-1]
    played = [step["micro"] for step in measured]
    return Measurement(
        seconds=sum(step["step_s"] for step in measured),
        num_steps=len(measured),
        num_episodes=round(sum(micro["num_episodes"] for micro in played)),
        num_tokens=round(sum(micro["num_episodes"] * micro["episode_tokens"] for micro in played)),
        learner_core_s=last["learner_core_s"] - before["learner_core_s"],
        engine_core_s=last["engine_core_s"] - before["engine_core_s"],
        age_max=max(step["age_max"] for step in steps),
        lag_max=max(int(step["metrics"]["token_staleness_max"]) for step in steps),
    )


def bound_episodes_per_s(runs: Sequence[Measurement]) -> float:
    """See the module."""
    learner_s = min(run.learner_core_s / run.num_episodes for run in runs)
    engine_s = min(run.engine_core_s / run.num_episodes for run in runs)
    return 1 / max(learner_s, engine_s)


def figures(repeats: Sequence[Mapping[int, Measurement]]) -> Iterator[Figure]:
    """The figures of all cases. Raises RuntimeError if a group or a token was older than its bound."""
    limits = [bound_episodes_per_s(list(runs.values())) for runs in repeats]
    for k in repeats[0]:
        runs = [found[k] for found in repeats]
        oldest = max(max(run.age_max, run.lag_max) for run in runs)
        if oldest > k:
            raise RuntimeError(f"max_staleness {k} was broken: a group or a token was {oldest} versions old")
        speeds = [run.episodes_per_s for run in runs]
        values: dict[str, tuple[str, Sequence[float]]] = {
            "episodes_per_s": ("1/s", speeds),
            "tokens_per_s": ("1/s", [run.num_tokens / run.seconds for run in runs]),
            "step_s": ("s", [run.seconds / run.num_steps for run in runs]),
            "over_sync": (
                "",
                [run.episodes_per_s / found[0].episodes_per_s for run, found in zip(runs, repeats, strict=True)],
            ),
            "fraction_of_bound": ("", [speed / limit for speed, limit in zip(speeds, limits, strict=True)]),
            "learner_core_busy_frac": ("", [run.learner_core_s / run.seconds for run in runs]),
            "engine_core_busy_frac": ("", [run.engine_core_s / run.seconds for run in runs]),
            "group_age_max": ("versions", [run.age_max for run in runs]),
            "token_staleness_max": ("versions", [run.lag_max for run in runs]),
        }
        for metric, (unit, found) in values.items():
            yield summarise(found, benchmark=NAME, case=f"real kg max_staleness={k}", metric=metric, unit=unit)


def real_figures(size: Size, model: Path | None) -> Iterator[Figure]:
    """The cases by turns, in the opposite order every other repeat."""
    with tempfile.TemporaryDirectory(prefix="async_vs_sync-") as name:
        root = Path(name)
        if model is None:
            run_once(replace(size.settings, folder=str(root / "warm")))
            model = root / "warm" / "model"
        repeats = []
        for number in range(size.repeats):
            runs: dict[int, Measurement] = {}
            for k in size.staleness[:: -1 if number % 2 else 1]:
                print(f"{NAME}: repeat {number + 1} of {size.repeats}, max_staleness {k}", file=sys.stderr, flush=True)
                folder = str(root / f"{number}-{k}")
                settings = replace(size.settings, folder=folder, model=str(model), max_staleness=k)
                runs[k] = measure(settings, size.num_steps)
            repeats.append({k: runs[k] for k in size.staleness})
    yield from figures(repeats)
