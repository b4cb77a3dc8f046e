"""`--eval-every`: evaluations beside training, each of one policy version, which training does not notice."""

import json
from pathlib import Path

import pytest

from agentrl_jax.config import TrainConfig
from agentrl_jax.errors import ConfigError
from agentrl_jax.evaluation import EvaluationConfig
from launch.train import main
from tests.launch.tiny_run import tiny


def records(run_dir: Path, name: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in (run_dir / name).read_text(encoding="ascii").split("\n") if line]


@pytest.mark.slow
def test_an_evaluation_beside_training_is_of_the_version_that_its_step_left(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        main(
            tiny(
                tmp_path / "run",
                "--eval-every=2",
                "--engine-devices=1",
                "--max-steps=5",
                "--evaluation.max-concurrent=3",
            )
        )
        == 0
    )
    metrics = records(tmp_path / "run", "metrics.jsonl")
    during = [record for record in metrics if record["kind"] == "evaluation" and record["when"] == "during"]
    left = {int(str(r["step"])): int(str(r["version"])) + bool(r["is_applied"]) for r in metrics if r["kind"] == "step"}
    assert sorted(left) == [1, 2, 3, 4, 5]
    num_left_out = capsys.readouterr().out.count("no evaluation at step 4")
    assert [(r["step"], r["mode"]) for r in during] == [
        (step, mode) for step in (2, 4)[: 2 - num_left_out] for mode in ("sampled", "greedy")
    ]
    for record in during:
        version = left[int(str(record["step"]))]
        assert record["versions"] == [version, version]
        assert record["num_episodes"] == 4
    turns = [turn for e in records(tmp_path / "run", "episodes.jsonl") for turn in e["turns"]]  # type: ignore[attr-defined]
    assert {turn["engine"] for turn in turns} <= {"current-0", "lagging-0"}


@pytest.mark.parametrize(("every", "num_tasks"), [(0, 4), (-1, 4), (2, 0)])
def test_an_evaluation_that_cannot_be_is_refused(every: int, num_tasks: int) -> None:
    with pytest.raises(ConfigError, match=f"--eval-every must be >= 1.*got {every} and {num_tasks}"):
        TrainConfig(eval_every=every, evaluation=EvaluationConfig(num_tasks=num_tasks))
