"""The smollm2 recipe: pretrained weights of 135M out of a package, two steps on published ALFWorld games."""

import json
import os
from pathlib import Path

import pytest

from agentrl_jax.policy import open_policy
from agentrl_jax.rendering.templates import TEMPLATES
from launch.audit import main as audit
from launch.train import main as train

REPOSITORY = Path(__file__).parents[2]


@pytest.mark.soak
def test_two_steps_on_published_games(data_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not (REPOSITORY / ".cache" / "pretrained").is_dir() and not os.environ.get("CI"):
        pytest.skip("tools/install_pretrained.sh has not been run")
    monkeypatch.chdir(REPOSITORY)
    flags = ("--recipe=smollm2", "--tasks=alfworld", f"--data={data_folder}", "--max-steps=2")
    assert train([*flags, f"--run-dir={tmp_path / 'run'}"]) == 0
    run = tmp_path / "run"
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    steps = [record["metrics"] for record in records if record["kind"] == "step"]
    assert len(steps) == 2
    assert any(metrics["is_applied"] for metrics in steps)
    assert (run / "episodes.jsonl").stat().st_size > 0
    assert {path.name for path in run.iterdir()} >= {"config.json", "checkpoints", "ledger", "model"}
    assert audit([str(run)]) == 0
    policy = open_policy(run / "model")
    assert policy.tokenizer.encode("Hello world") == [19556, 905]
    assert policy.tokenizer.chat_template == TEMPLATES["hermes"]
