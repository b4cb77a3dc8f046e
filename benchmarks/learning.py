"""What does each part of the algorithm bring, on tasks that two cores can learn?

    python -m benchmarks.learning [--json] [--quick] [--full] [--out FOLDER]

Arms: `full`; `no-cross-policy` (no lagging policy); `no-task-normalisation`; `synchronous` (max_staleness 0);
`specialist-ENV` (trained on one environment alone, for as many steps, each as large). All arms of a seed begin with the
same warm policy, made by copying and demonstrations, take as many steps on as many groups each, and are evaluated on
the same held-out tasks.
At the end two policies (two specialists, or a trained policy and the warm one) are evaluated alone and mixed by turns
(cross-policy sampling) and by episodes: pass@k by k.

By default two arms with two seeds and 24 steps; with --full all arms with five seeds and 48 steps. As many cells run at
a time as there are cores. All may be stopped at any time: the same command goes on. Each finished cell is a line of
OUT/cells.jsonl, and figures are made of the lines that are there.

A good answer is the one that comes out. Differences count where `gain_low` and `gain_high` have one sign.
"""

import os
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from agentrl_jax.errors import ConfigError
from benchmarks.figures import json_lines, table
from benchmarks.learning_cells import ARMS, SPECIALIST, Cells, Launch, Settings, batch_flags, launch
from benchmarks.learning_figures import NAME, learning_figures
from launch.command import parse, refuse

TINY_POLICY = (
    "--network.width=32",
    "--network.num-layers=1",
    "--network.num-heads=2",
    "--network.num-kv-heads=1",
    "--network.mlp-width=64",
    "--warm-up.demonstrations=64",
    "--warm-up.copy-steps=2",
    "--warm-up.steps=6",
    "--warm-up.batch-size=8",
)
"""Of a policy that is made in seconds, and too small to learn."""

_TINY_STEPS = ("--rollout.group-size=2", *batch_flags(2))


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Ablations of the algorithm, on small policies."""

    json: bool = False
    """One JSON line per figure instead of a table"""
    quick: bool = False
    """One step of a network too small to learn, in a minute: shows that it works"""
    full: bool = False
    """All arms, five seeds each: hours"""
    out: Path | None = None
    """Folder of the experiment, to go on with (default: runs/learning, with -full or -quick)"""

    def __post_init__(self) -> None:
        if self.quick and self.full:
            raise ConfigError("--quick and --full contradict each other: choose one")

    @property
    def folder(self) -> Path:
        suffix = "-full" if self.full else "-quick" if self.quick else ""
        return self.out or Path("runs") / f"learning{suffix}"

    def settings(self) -> Settings:
        """What all cells share."""
        if self.quick:
            return Settings(
                tasks=("kg",),
                max_steps=1,
                eval_every=1,
                num_tasks=2,
                samples=1,
                mixture_samples=2,
                flags=_TINY_STEPS,
                warm_flags=TINY_POLICY,
            )
        return Settings() if self.full else Settings(max_steps=24)

    def arms(self, settings: Settings) -> tuple[str, ...]:
        """Those that are run."""
        if not self.full:
            return ("full",) if self.quick else ("full", "no-task-normalisation")
        return (*ARMS, *(SPECIALIST + env for env in settings.tasks))

    @property
    def seeds(self) -> range:
        return range(5 if self.full else 1 if self.quick else 2)


def run_all(cells: Cells, arms: Sequence[str], seeds: Sequence[int], num_workers: int = 1) -> None:
    """Finish every cell: seed by seed, so that what is there when it is stopped can be compared.

    Raises what the first cell raised that failed; those under way end first, and no other is begun.
    """
    at_once([partial(cells.policy, seed) for seed in seeds], num_workers, cells.stopping)
    at_once([partial(cells.arm, arm, seed) for seed in seeds for arm in arms], num_workers, cells.stopping)
    specialists = [arm for arm in arms if arm.startswith(SPECIALIST)]
    # Two policies that know different things; without specialists what a run would mix: its newest and an old one.
    first, second = specialists[:2] if len(specialists) >= 2 else (arms[0], "policy")
    cells.mixtures(f"{first}-{seeds[0]}", f"{second}-{seeds[0]}")


def at_once(jobs: Sequence[Callable[[], object]], num_workers: int, stopping: threading.Event) -> None:
    """Do them all, in their order, so many at a time; see `run_all` for those that fail. stopping: begin no more."""
    failures: list[BaseException] = []

    def work(job: Callable[[], object]) -> None:
        if stopping.is_set():
            return
        try:
            job()
        except BaseException as error:
            failures.append(error)  # before others are stopped for it, and fail too
            stopping.set()
            raise

    with ThreadPoolExecutor(num_workers) as pool:
        futures = [pool.submit(work, job) for job in jobs]
        try:
            wait(futures)
        except KeyboardInterrupt:
            stopping.set()
            raise
    if failures:
        raise failures[0]


def main(arguments: Sequence[str] | None = None, run: Launch = launch) -> int:
    """Finish the experiment and print its figures."""
    options = parse(Options, arguments, program=f"benchmarks.{NAME}")
    settings = options.settings()
    try:
        cells = Cells(options.folder, settings, run)
    except ConfigError as error:
        refuse(error, program=f"benchmarks.{NAME}")
    try:
        run_all(cells, options.arms(settings), options.seeds, len(os.sched_getaffinity(0)))
    except KeyboardInterrupt:
        print(f"stopped; the same command goes on with {options.folder}", file=sys.stderr)
        return 130
    found = list(learning_figures(list(cells.finished.values())))
    print("\n".join(json_lines(found)) if options.json else table(found))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
