"""`--eval-every`: evaluations beside training, each of one policy version, which training does not notice."""

import json
from pathlib import Path

import pytest

from agentrl_jax.config import TrainConfig
from agentrl_jax.errors import ConfigError
from agentrl_jax.evaluation import Evaluation, EvaluationConfig
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


@pytest.mark.slow
def test_a_run_stops_at_the_success_that_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # So small a policy succeeds at nothing: let it count as a success to fail at all.
    monkeypatch.setattr(Evaluation, "success", 0.5)
    flags = ("--eval-every=1", "--stop-at=0.5", "--max-steps=1000", "--max-minutes=5", "--engine-devices=1")
    assert main(tiny(tmp_path / "run", *flags)) == 0
    assert "mean success 50.0% after step 1: --stop-at 0.5 is reached" in capsys.readouterr().out
    metrics = records(tmp_path / "run", "metrics.jsonl")
    assert sum(record["kind"] == "step" for record in metrics) < 100
    assert {r["when"] for r in metrics if r["kind"] == "evaluation"} == {"before", "during", "after"}


@pytest.mark.parametrize(("goal", "every"), [(0.0, 5), (1.1, 5), (float("nan"), 5), (0.5, None)])
def test_a_goal_that_cannot_be_is_refused(goal: float, every: int | None) -> None:
    with pytest.raises(ConfigError, match=r"--stop-at must be in \(0, 1\], and goes with --eval-every"):
        TrainConfig(stop_at=goal, eval_every=every)


@pytest.mark.parametrize(("every", "num_tasks"), [(0, 4), (-1, 4), (2, 0)])
def test_an_evaluation_that_cannot_be_is_refused(every: int, num_tasks: int) -> None:
    with pytest.raises(ConfigError, match=f"--eval-every must be >= 1.*got {every} and {num_tasks}"):
        TrainConfig(eval_every=every, evaluation=EvaluationConfig(num_tasks=num_tasks))
