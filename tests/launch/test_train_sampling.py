"""What a run draws: weights, a limit and a curriculum from the command line, and the warnings that it keeps."""

import json
from collections import Counter
from pathlib import Path

import pytest

from agentrl_jax.runlog import read_records, surviving_steps
from launch.audit import main as audit
from launch.train import main
from tests.launch.tiny_run import tiny

FLAGS = ("--tasks=kg,alfworld", "--rollout.task-weights", "kg", "3", "alfworld", "1", "--limit=5", "--max-turns=2")
SMALL = ("--rollout.max-groups-per-batch=2", "--engine.num-slots=2", "--evaluation.num-tasks=0", "--max-steps=4")


@pytest.mark.slow
def test_weights_limit_and_curriculum_hold_over_a_resume(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_dir = tmp_path / "run"
    curriculum = ("--rollout.curriculum.low=0.5", "--rollout.curriculum.min-trials=1")
    assert main(tiny(run_dir, *FLAGS, *SMALL, *curriculum)) == 0
    assert "of which at most 5 are used" in capsys.readouterr().out
    assert main([f"--resume={run_dir}", "--max-steps=8"]) == 0
    capsys.readouterr()
    assert audit([str(run_dir)]) == 0
    steps = surviving_steps(run_dir / "metrics.jsonl")
    tasks = steps[-1]["tasks"]
    assert [tasks[env]["num_tasks"] for env in ("kg", "alfworld")] == [5, 5]
    assert [tasks[env]["share"] for env in ("kg", "alfworld")] == [0.75, 0.25]
    num_drawn = {env: tasks[env]["num_drawn"] for env in tasks}
    assert abs(num_drawn["kg"] - 0.75 * sum(num_drawn.values())) < 1
    assert tasks["kg"]["num_outside"] > 0  # a policy that learnt so little solves hardly anything
    episodes = [json.loads(line) for line in (run_dir / "episodes.jsonl").read_text().splitlines()]
    indices = Counter(episode["index"] for episode in episodes if "index" in episode)
    assert set(indices) <= set(range(5))
    warnings = [record for record in read_records(run_dir / "metrics.jsonl") if record["kind"] == "warning"]
    # The policy that learnt so little may also get the same reward from every member, step after step.
    assert {warning["name"] for warning in warnings} <= {"constant_rewards"}
