"""A whole training run whose learner two processes share, and what one process makes of its directory."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from agentrl_jax.runlog import read_records
from launch.audit import main as audit
from launch.replay import main as replay
from tests.launch.tiny_run import tiny

SHARED = (
    "--mesh=2",
    "--rows-per-device=1",
    "--save-every=2",
    "--pool.lagging-period=2",
    "--evaluation.num-tasks=0",
    "--advantages.task-normalisation=paper",  # a policy that knows nothing has no group with a signal
    "--loss.kl-coefficient=0.1",
    "--learner.weight-decay=0.1",
)


@contextmanager
def both(arguments: list[str]) -> Iterator[list[subprocess.Popen[str]]]:
    """The two processes of a run, the first one first."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    group = [f"--coordinator-address=localhost:{port}", "--num-processes=2"]
    command = [sys.executable, "-u", "-m", "launch.train", *arguments, *group]
    processes = [
        subprocess.Popen(
            [*command, f"--process-id={number}"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            env={**os.environ, "JAX_PLATFORMS": "cpu"},
        )
        for number in range(2)
    ]  # fmt: skip
    try:
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def ends(processes: list[subprocess.Popen[str]], said: str = "") -> list[str]:
    """What the processes print until they end well; `said`: what was read of the first one's before."""
    printed = [process.communicate(timeout=500)[0] for process in processes]
    for process, text in zip(processes, printed, strict=True):
        assert process.returncode == 0, said + text
    return printed


def steps(run_dir: Path) -> list[tuple[int, int, bool]]:
    found = [record for record in read_records(run_dir / "metrics.jsonl") if record["kind"] == "step"]
    return [(record["step"], record["version"], record["is_applied"]) for record in found]


@pytest.mark.slow
def test_two_processes_train_stop_and_go_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_dir = tmp_path / "run"
    with both(tiny(run_dir, *SHARED, "--max-steps=500")) as processes:
        first, second = processes
        assert first.stdout is not None
        said = []
        for line in first.stdout:
            said.append(line)
            if re.match(r"step +2/", line):
                second.send_signal(signal.SIGTERM)  # of the machine that process 0 is not on
                break
        led, followed = ends(processes, "".join(said))
    taken = len(steps(run_dir))
    assert f"stopped after {taken} steps; go on with --resume" in led
    assert "stopping: saving" in followed
    assert 2 <= taken < 500
    assert steps(run_dir) == [(number + 1, number, True) for number in range(taken)]

    with both([f"--resume={run_dir}", f"--max-steps={taken + 2}"]) as processes:
        led, followed = ends(processes)
    assert f"resumed at step {taken}" in led
    assert "followed process 0 for 2 steps" in followed
    assert json.loads((run_dir / "config.json").read_text())["runtime"]["num_processes"] == 2

    assert [step for step, _, _ in steps(run_dir)] == list(range(1, taken + 3))
    assert audit([str(run_dir)]) == 0
    capsys.readouterr()
    # One process alone, on a mesh of its own, recovers the params that the two had.
    assert replay([str(run_dir), f"--steps={taken + 2}", "--mesh=1", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    for name in ("loss", "grad_norm"):
        assert found["replayed"][name] == pytest.approx(found["recorded"][name], rel=1e-3, abs=1e-6)
