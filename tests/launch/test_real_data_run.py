"""Asynchronous training on published tasks: houses, shells in sandboxes, and tables, by a network that is soon warm."""

import json
from collections import Counter
from pathlib import Path

import pytest

from agentrl_jax.policy import open_policy
from agentrl_jax.types import EpisodeEnd
from launch.audit import main as audit
from launch.train import main as train
from tests.envs.sandbox_world import bubblewrap_driver

TASKS = ("alfworld", "os_interaction", "dbbench")
NUM_STEPS = 20
FLAGS = (
    f"--tasks={','.join(TASKS)}",
    "--sandbox=bubblewrap",
    "--network.width=64",
    "--network.num-layers=2",
    "--network.num-heads=4",
    "--network.num-kv-heads=2",
    "--network.mlp-width=128",
    "--warm-up.demonstrations=192",
    "--warm-up.copy-steps=2",
    "--warm-up.steps=120",
    "--warm-up.batch-size=8",
    "--rollout.group-size=4",
    "--rollout.min-groups-per-batch=3",
    "--evaluation.num-tasks=2",
    "--engine.num-slots=24",
    f"--max-steps={NUM_STEPS}",
)


@pytest.mark.soak
def test_twenty_steps_on_published_tasks(data_folder: Path, tmp_path: Path) -> None:
    bubblewrap_driver().close()
    run = tmp_path / "run"
    assert train([*FLAGS, f"--data={data_folder}", f"--run-dir={run}"]) == 0
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    steps = [record["metrics"] for record in records if record["kind"] == "step"]
    assert len(steps) == NUM_STEPS
    assert sum(metrics["is_applied"] for metrics in steps) >= 1
    episodes = [json.loads(line) for line in (run / "episodes.jsonl").read_text(encoding="utf-8").splitlines()]
    assert {episode["env"] for episode in episodes} == set(TASKS)
    ends = Counter(EpisodeEnd(episode["end"]) for episode in episodes)
    assert not [end for end in ends if end.is_infrastructure and end is not EpisodeEnd.CANCELLED], ends
    files = {"config.json", "curves.png", "report.html", "checkpoints", "ledger", "batches", "model"}
    assert {path.name for path in run.iterdir()} >= files
    assert audit([str(run)]) == 0
    open_policy(run / "model")
