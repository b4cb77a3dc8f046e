"""Runs killed in the middle of each thing they do: resumed, nothing is lost, trained twice, too old, or left behind."""

import os
import select
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from random import Random

import pytest

from agentrl_jax.runlog import read_records, surviving_steps
from launch.audit import main as audit
from tests.launch.engine_process import write_policy
from tests.launch.killed_run import MOMENTS
from tests.launch.tiny_run import tiny_from

MARK = "AGENTRL_TEST_RUN"
FLAGS = (
    "--max-steps=1000000",
    "--save-every=2",
    "--eval-every=2",
    "--engine-devices=1",
    "--evaluation.num-tasks=2",
    "--episode.max-new-tokens=8",
    "--max-context-tokens=1024",
    "--pool.lagging-period=2",
    *("--engine.prefill-shapes", "8", "64"),
    "--row-buckets=1",
    "--session-kind=process",
    "--advantages.task-normalisation=paper",  # a policy that knows nothing has no group with a signal
    "--rollout.max-fruitless-steps=1000000",
    "--rollout.max-staleness=1",
)
# Longer than each of them takes at these sizes, so that some kills come right after.
LONGEST_S = {"collecting": 0.3, "training": 0.1, "publishing": 0.05, "saving": 0.3, "evaluating": 0.4}


def processes_of(run_dir: Path) -> list[int]:
    """Process file descriptors (pidfd) of everything that still runs for `run_dir`."""
    mark = f"{MARK}={run_dir}".encode()
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if mark in (folder / "environ").read_bytes().split(b"\0"):
                found.append(os.pidfd_open(int(folder.name)))
        except OSError:  # it has ended, or is not ours
            continue
    return found


def check_nothing_is_left(run_dir: Path) -> None:
    for process in processes_of(run_dir):
        is_over, _, _ = select.select([process], [], [], 20.0)
        os.close(process)
        assert is_over, "a process of the run outlived it by 20 seconds"


def live(run_dir: Path, module: str, arguments: Sequence[str]) -> tuple[int, str]:
    """Run a module to its end; return its exit status and what it printed."""
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", MARK: str(run_dir)}
    done = subprocess.run(
        [sys.executable, "-u", "-m", module, *arguments],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment, check=False, timeout=280,
    )  # fmt: skip
    check_nothing_is_left(run_dir)
    return done.returncode, done.stdout


def check_history(run_dir: Path, num_steps: int) -> None:
    assert audit([str(run_dir)]) == 0
    metrics = run_dir / "metrics.jsonl"
    assert [step["step"] for step in surviving_steps(metrics)] == list(range(1, num_steps + 1))
    records = list(read_records(metrics))
    steps = [record for record in records if record["kind"] == "step"]
    versions = [step["version"] + 1 for step in steps if step["is_applied"]]
    versions += [record["version"] for record in records if record["kind"] == "resume"]
    assert len(set(versions)) == len(versions)


def survive(folder: Path, moments: Sequence[str], seed: int) -> None:
    """Live through a kill at each of `moments`, then take two more steps, and check the whole history."""
    rng, run_dir = Random(seed), folder / "run"
    (folder / "policy").mkdir()
    write_policy(folder / "policy", folder / "tokenizer")
    arguments = tiny_from(folder / "policy", run_dir, *FLAGS)
    for moment in moments:
        when = [moment, str(rng.randint(1, 4)), f"{rng.uniform(0.0, LONGEST_S[moment]):.3f}"]
        status, said = live(run_dir, "tests.launch.killed_run", [*when, *arguments])
        assert status == -signal.SIGKILL, f"{when}: {said}"
        assert f"killed while {moment}" in said
        if (run_dir / "config.json").is_file():
            arguments = [f"--resume={run_dir}"]
    taken = surviving_steps(run_dir / "metrics.jsonl")
    last = (taken[-1]["step"] if taken else 0) + 2
    status, said = live(run_dir, "launch.train", [f"--resume={run_dir}", f"--max-steps={last}"])
    assert status == 0, said
    check_history(run_dir, last)


@pytest.mark.slow
def test_three_kills_cost_nothing_but_time(tmp_path: Path) -> None:
    survive(tmp_path, Random(7).sample(sorted(MOMENTS), 3), 7)


@pytest.mark.soak
def test_ten_kills_cost_nothing_but_time(tmp_path: Path) -> None:
    survive(tmp_path, [*MOMENTS, *reversed(MOMENTS)], 3)
