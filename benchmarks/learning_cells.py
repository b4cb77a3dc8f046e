"""The cells of benchmarks.learning: what is trained and evaluated, each kept as one line once it is finished.

    OUT/settings.json       what all cells share: whoever goes on must mean the same
    OUT/cells.jsonl         one line per finished cell, flushed to the disk
    OUT/policy-S/           the warm policy of seed S, from which every arm of that seed begins
    OUT/ARM-S/              a training run (launch.train), and its evaluation/ (launch.evaluate)
    OUT/mixtures/           the evaluation of two policies, alone and mixed

A cell that was cut short goes on from its run's checkpoint. Cells may be run by several threads at a time: each is a
process of its own that computes on one core, which on small networks takes far less from its neighbour than two cores
give to one process.
"""

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from agentrl_jax.config import TrainConfig
from agentrl_jax.errors import ConfigError
from agentrl_jax.runlog import read_records, to_json, write_atomically
from agentrl_jax.saved_config import read_config
from benchmarks.async_real_run import ONE_THREAD

ARMS: Mapping[str, tuple[str, ...]] = {
    "full": (),
    "no-cross-policy": ("--pool.lagging-prob=0",),
    "no-task-normalisation": ("--advantages.task-normalisation=off",),
    "synchronous": ("--rollout.max-staleness=0",),
}
"""What each arm changes. `specialist-ENV` is the full arm on one environment alone."""

SPECIALIST = "specialist-"
_STDERR = 2


def batch_flags(num_groups: int) -> tuple[str, ...]:
    """Batches of exactly so many groups: without an upper limit those of asynchronous arms would be the larger ones."""
    return (f"--rollout.min-groups-per-batch={num_groups}", f"--rollout.max-groups-per-batch={num_groups}")


Launch = Callable[[Sequence[str]], None]
"""Run `python -m` with these arguments to its end. Raises RuntimeError if it fails."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What all cells share. eval_every: steps between points of the curves. samples: of each task in evaluations;
    mixture_samples: in that of the mixtures. flags: of every training run; warm_flags: of warm-ups besides."""

    tasks: tuple[str, ...] = ("kg", "alfworld")
    max_steps: int = 48
    eval_every: int = 12
    num_tasks: int = 64
    samples: int = 4
    mixture_samples: int = 16
    flags: tuple[str, ...] = batch_flags(20)
    warm_flags: tuple[str, ...] = ()


def launch(arguments: Sequence[str]) -> None:
    """See `Launch`. What the child says goes to stderr."""
    environment = ONE_THREAD | os.environ
    done = subprocess.run([sys.executable, "-m", *arguments], env=environment, stdout=_STDERR, check=False)
    if done.returncode:
        raise RuntimeError(f"python -m {' '.join(arguments)} ended with exit code {done.returncode}")


class Cells:
    """The folder of one experiment. finished: each cell's line, by its name. stopping: set it, and cells end early."""

    def __init__(self, folder: Path, settings: Settings, run: Launch = launch) -> None:
        """Begin an experiment, or go on with the one that is there. Raises ConfigError if that is another one."""
        self.folder, self.settings, self._run = folder, settings, run
        self._writing = threading.Lock()
        self.stopping = threading.Event()
        folder.mkdir(parents=True, exist_ok=True)
        path, wanted = folder / "settings.json", json.loads(to_json(asdict(settings)))
        if path.is_file() and (saved := json.loads(path.read_text())) != wanted:
            raise ConfigError(f"--out {folder} holds an experiment with other settings: {saved}, now {wanted}")
        write_atomically(path, json.dumps(wanted, indent=2) + "\n")
        self._path = folder / "cells.jsonl"
        self.finished: dict[str, dict[str, Any]] = {}
        if self._path.is_file():
            _cut_torn_line(self._path)
            self.finished = {record["cell"]: record for record in read_records(self._path)}

    def arm(self, arm: str, seed: int) -> None:
        """Train and evaluate one arm, from the warm policy of its seed."""
        name = f"{arm}-{seed}"
        if name in self.finished:
            return
        begun = time.monotonic()
        policy = self.policy(seed)
        run_dir = self.folder / name
        is_specialist = arm.startswith(SPECIALIST)
        tasks = (arm.removeprefix(SPECIALIST),) if is_specialist else self.settings.tasks
        self._train(
            run_dir,
            *self.settings.flags,
            *(() if is_specialist else ARMS[arm]),
            f"--tasks={','.join(tasks)}",
            f"--model={policy / 'model'}",
            f"--seed={seed}",
            f"--max-steps={self.settings.max_steps}",
            f"--eval-every={self.settings.eval_every}",
            f"--evaluation.num-tasks={self.settings.num_tasks}",
        )
        if not is_over(run_dir):
            raise RuntimeError(f"{run_dir} was stopped before its end; the same command goes on")
        results = self._evaluate(run_dir / "evaluation", [run_dir], policy, self.settings.samples)
        self._finish(
            name,
            begun,
            arm=arm,
            seed=seed,
            success={found["env"]: _counts(found) for found in results["scores"]},
            curve=list(curve(run_dir / "metrics.jsonl")),
        )

    def policy(self, seed: int) -> Path:
        """The run directory of the warm policy of this seed, made if it is not there yet."""
        name = f"policy-{seed}"
        run_dir = self.folder / name
        if name not in self.finished:
            begun = time.monotonic()
            flags = (*self.settings.flags, *self.settings.warm_flags, f"--tasks={','.join(self.settings.tasks)}")
            self._train(run_dir, *flags, f"--seed={seed}", "--max-steps=0", "--evaluation.num-tasks=0")
            self._finish(name, begun, seed=seed)
        return run_dir

    def mixtures(self, first: str, second: str) -> None:
        """Evaluate the policies of two finished cells of one seed, alone, by turns and by episodes."""
        if "mixtures" in self.finished:
            return
        begun = time.monotonic()
        runs = [self.folder / first, self.folder / second]
        names = ("--name", first, second, "--mix", "single", "turn", "episode")
        policy = self.policy(int(first.rpartition("-")[2]))
        results = self._evaluate(self.folder / "mixtures", runs, policy, self.settings.mixture_samples, *names)
        curves = [{name: found[name] for name in ("mixture", "env", "pass_at_k")} for found in results["scores"]]
        self._finish("mixtures", begun, curves=curves)

    def _train(self, run_dir: Path, *flags: str) -> None:
        if is_over(run_dir):  # cut short in its evaluation
            return
        is_begun = (run_dir / "config.json").is_file()
        new = [f"--run-dir={run_dir}", "--no-record-batches", *flags]
        self._launch(["launch.train", *([f"--resume={run_dir}"] if is_begun else new)])

    def _launch(self, arguments: Sequence[str]) -> None:
        self._run(arguments)
        if self.stopping.is_set():  # training that is asked to stop saves, and ends well
            raise RuntimeError("stopped; the same command goes on")

    def _evaluate(self, out: Path, runs: Sequence[Path], policy: Path, samples: int, *flags: str) -> dict[str, Any]:
        """On all tasks, in a context that is long enough for them: a specialist's own is that of its task alone."""
        models = [f"--model={run}" for run in runs]
        tasks = [f"--tasks={','.join(self.settings.tasks)}", f"--num-tasks={self.settings.num_tasks}"]
        context = read_config(TrainConfig, policy).max_context_tokens
        settings = [f"--max-context-tokens={context}", f"--samples={samples}", "--seed=0", f"--out={out}"]
        self._launch(["launch.evaluate", *models, *flags, *tasks, *settings])
        results: dict[str, Any] = json.loads((out / "results.json").read_text(encoding="utf-8"))
        return results

    def _finish(self, name: str, begun: float, **found: Any) -> None:
        # Of this sitting: a cell that was cut short began in an earlier one, so that no figure is made of it.
        record = {"cell": name, "seconds": round(time.monotonic() - begun, 1), **found}
        with self._writing, self._path.open("a", encoding="ascii") as file:
            file.write(to_json(record) + "\n")
            file.flush()
            os.fsync(file.fileno())
        self.finished[name] = json.loads(to_json(record))


def is_over(run_dir: Path) -> bool:
    """Whether a training run has said what it gained, which it does at its end."""
    path = run_dir / "metrics.jsonl"
    return path.is_file() and any(record["kind"] == "gain" for record in read_records(path))


def _cut_torn_line(path: Path) -> None:
    """Whoever is killed while writing leaves half a line, which the next one must not be written behind."""
    with path.open("r+b") as file:
        file.truncate(file.read().rfind(b"\n") + 1)


def _counts(found: Mapping[str, Any]) -> dict[str, int]:
    return {name: found[name] for name in ("num_valid", "num_successes")}


def curve(metrics: Path) -> Iterator[dict[str, Any]]:
    """Sampled success of each environment at each step that was evaluated, in order."""
    for record in read_records(metrics):
        if record["kind"] == "evaluation" and record["mode"] == "sampled" and record["num_valid"]:
            success = record["num_successes"] / record["num_valid"]
            yield {"step": record["step"], "env": record["env"], "success": success}
