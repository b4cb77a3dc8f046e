"""The default run learns: from a weak warm-up to a good agent, on tasks that it has never seen."""

import json
from pathlib import Path
from typing import Any

import pytest

from launch.train import main


def evaluations(run_dir: Path) -> dict[tuple[str, str], dict[str, Any]]:
    lines = (run_dir / "metrics.jsonl").read_text(encoding="ascii").splitlines()
    found = [json.loads(line) for line in lines]
    return {(e["when"], e["mode"]): e for e in found if e["kind"] == "evaluation"}


@pytest.mark.slow
def test_thirty_steps_lift_success_by_a_quarter(tmp_path: Path) -> None:
    assert main([f"--run-dir={tmp_path / 'run'}", "--max-steps=30", "--evaluation.num-tasks=64"]) == 0
    found = evaluations(tmp_path / "run")
    before, after = found["before", "sampled"], found["after", "sampled"]
    assert after["success_rate"] - before["success_rate"] >= 0.25
    assert after["success_low"] > before["success_high"]
    assert after["success_rate"] >= 0.6


@pytest.mark.soak
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_default_run_keeps_its_promise(tmp_path: Path, seed: int) -> None:
    assert main([f"--run-dir={tmp_path / 'run'}", f"--seed={seed}", "--max-minutes=6"]) == 0
    found = evaluations(tmp_path / "run")
    before, after = found["before", "sampled"], found["after", "sampled"]
    assert before["num_valid"] == after["num_valid"] == 128
    assert before["success_rate"] >= 0.20
    assert after["success_rate"] >= 0.80
    assert after["success_rate"] - before["success_rate"] >= 0.25
    assert found["after", "greedy"]["success_rate"] >= found["before", "greedy"]["success_rate"] - 0.03
