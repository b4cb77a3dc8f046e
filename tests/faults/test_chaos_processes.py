"""The chaos matrix with real processes: the controller is killed by SIGKILL, at any moment, and goes on."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from random import Random

import pytest

from agentrl_jax.controller.journal import read_history
from tests.faults.chaos_child import load
from tests.launch.test_resume import FLAGS, NUM_STEPS, check_history, kill_at
from tests.launch.tiny_run import tiny

ROOT = Path(__file__).parents[2]


def start(folder: Path, num_steps: int) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "tests.faults.chaos_child", str(folder), str(num_steps)]
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    return subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def kill_after_steps(folder: Path, num_steps: int, pause_s: float) -> None:
    """Kill a controller `pause_s` after it has taken so many steps in its life."""
    with start(folder, 100_000) as process:
        assert process.stdout is not None
        for _ in range(num_steps):
            if not process.stdout.readline():
                pytest.fail(f"the controller ended by itself: {process.communicate()[1].decode()}")
        deadline = time.monotonic() + pause_s
        while time.monotonic() < deadline and process.poll() is None:
            process.stdout.readline()
        process.send_signal(signal.SIGKILL)
        process.communicate()
    assert process.returncode == -signal.SIGKILL


@pytest.mark.slow
def test_chaos_09_a_controller_killed_six_times_loses_no_prompt_and_trains_none_twice(tmp_path: Path) -> None:
    rng = Random(0)
    for _ in range(6):
        kill_after_steps(tmp_path, rng.randint(0, 12), rng.uniform(0.0, 0.3))
    last = load(tmp_path)["step"] + 6
    with start(tmp_path, last) as process:
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors.decode()
    history, num_cut = read_history(tmp_path / "ledger")
    assert history.problems == []
    assert num_cut == 0
    saved = load(tmp_path)
    ids = [group_id for group_id, _ in saved["trained"]]
    assert saved["step"] == last
    assert len(ids) == len(set(ids)) == history.totals["trained"] > 3 * 6
    assert history.totals["lives"] == 7
    assert history.totals["no_signal"] > 0
    # Every admitted group is trained, or is in the books with what became of it.
    open_groups = sum(entry.state != "consumed" for entry in history.groups.values())
    endings = sum(history.totals[how] for how in ("trained", "dropped", "no_signal", "cancelled", "reissued"))
    assert history.totals["admitted"] == endings + open_groups


@pytest.mark.slow
def test_res_14_an_evaluation_that_a_kill_cut_short_is_carried_out_again(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    printed = kill_at(tiny(run_dir, *FLAGS), "before ")  # one mode is told, the other still runs
    assert "greedy" not in printed
    with subprocess.Popen(
        [sys.executable, "-m", "launch.train", f"--resume={run_dir}"],
        cwd=ROOT,
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
        stdout=subprocess.DEVNULL,
    ) as process:
        assert process.wait(timeout=300) == 0
    check_history(run_dir, num_steps=NUM_STEPS)
