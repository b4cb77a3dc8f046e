"""Killed runs go on: nothing lost, nothing trained twice, versions that never repeat, metrics that continue."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

from agentrl_jax.config import TrainConfig
from agentrl_jax.runlog import RunLog, read_records, surviving_steps
from launch.audit import main as audit
from launch.train import main
from tests.launch.tiny_run import tiny

NUM_STEPS = 6
FLAGS = (f"--max-steps={NUM_STEPS}", "--save-every=2", "--evaluation.num-tasks=2", "--pool.lagging-period=2")


def start(arguments: list[str]) -> subprocess.Popen[str]:
    command = [sys.executable, "-u", "-m", "launch.train", *arguments]
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment)


def kill_at(arguments: list[str], line_start: str) -> str:
    """Start a run, kill it with SIGKILL as soon as it prints a line that starts so, and return what it printed."""
    with start(arguments) as process:
        assert process.stdout is not None
        printed = []
        for line in process.stdout:
            printed.append(line)
            if line.startswith(line_start):
                process.kill()
                break
    return "".join(printed)


def check_history(run_dir: Path, *, num_steps: int = NUM_STEPS) -> None:
    assert audit([str(run_dir)]) == 0
    metrics = run_dir / "metrics.jsonl"
    assert [step["step"] for step in surviving_steps(metrics)] == list(range(1, num_steps + 1))
    served = [
        record["version"] + record["is_applied"]
        for record in read_records(metrics)
        if record["kind"] == "step" and record["is_applied"]
    ]
    restarts = [record["version"] for record in read_records(metrics) if record["kind"] == "resume"]
    assert len(set(served + restarts)) == len(served + restarts)
    evaluated = [(e["when"], e["mode"]) for e in read_records(metrics) if e["kind"] == "evaluation"]
    assert set(evaluated) == {(when, mode) for when in ("before", "after") for mode in ("sampled", "greedy")}


@pytest.mark.slow
def test_a_run_killed_twice_is_whole_in_the_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_dir = tmp_path / "run"
    printed = kill_at(tiny(run_dir, *FLAGS), "step 3/")
    assert "step 3/" in printed
    printed = kill_at([f"--resume={run_dir}"], "step 5/")
    assert "resumed at step 2" in printed or "resumed at step 0" in printed
    assert main([f"--resume={run_dir}"]) == 0
    assert "resumed at step" in capsys.readouterr().out
    check_history(run_dir)


def test_a_finished_run_resumes_to_more_steps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_dir = tmp_path / "run"
    assert main(tiny(run_dir, "--max-steps=2", *FLAGS[1:])) == 0
    # Flags change that run's settings, not the defaults (a lower bound of 16 groups would refuse an upper one of 8).
    changes = ("--rollout.max-groups-per-batch=8", "--pool.lagging-prob=0", "--pool.lagging-period=8")
    assert main([f"--resume={run_dir}", f"--max-steps={NUM_STEPS}", *changes]) == 0
    printed = capsys.readouterr().out
    assert "resumed at step 2 as version" in printed
    assert "changed: max_steps 2 → 6" in printed
    check_history(run_dir)
    with pytest.raises(SystemExit) as caught:
        main([f"--resume={run_dir}"])
    assert caught.value.code == 2
    assert "6 of --max-steps 6 steps are taken: name more" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--resume={run}", "--run-dir=elsewhere"], "leave --run-dir out"),
        (["--resume={run}", "--tasks=alfworld"], "it began with tasks = kg, which cannot change now"),
        (["--resume={run}", "--network.width=64"], "cannot change now"),
        (["--resume={run}", "--data=."], "it began with data = None"),
        (["--resume={missing}"], "has no config.json"),
    ],
)
def test_what_cannot_be_resumed_is_refused(
    flags: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    run.mkdir()
    with RunLog(run) as log:
        log.write_config(TrainConfig(run_dir=run).to_json())
    with pytest.raises(SystemExit) as caught:
        main([flag.format(run=run, missing=tmp_path / "missing") for flag in flags])
    assert caught.value.code == 2
    assert message in " ".join(capsys.readouterr().err.split())


@pytest.mark.slow
def test_eight_kills_at_random_moments_lose_nothing(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    rng = Random(0)
    # Enough warm-up that some groups differ in their rewards, and so many steps that no machine gets to the end.
    learns = ("--warm-up.copy-steps=50", "--warm-up.steps=150", "--rollout.max-fruitless-steps=1000")
    arguments = tiny(run_dir, *FLAGS, *learns, "--max-steps=1000000")
    for _ in range(8):
        with start(arguments) as process:
            try:
                output, _ = process.communicate(timeout=rng.uniform(8.0, 20.0))
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGKILL)
                process.communicate()
            else:
                pytest.fail(f"the run ended before it was killed: {output}")
        if (run_dir / "config.json").is_file():
            arguments = [f"--resume={run_dir}"]
    taken = surviving_steps(run_dir / "metrics.jsonl")  # none, on a machine so busy that no run got that far
    last = (taken[-1]["step"] if taken else 0) + 2
    assert main([f"--resume={run_dir}", f"--max-steps={last}"]) == 0
    check_history(run_dir, num_steps=last)
