"""The picture of a run: drawn from its directory, undone steps left out, empty runs refused politely."""

from pathlib import Path

from agentrl_jax.report.curves import _smoothed, draw_curves
from agentrl_jax.runlog import RunLog, surviving_steps


def log_step(log: RunLog, step: int, rate: float) -> None:
    times = {"collect_s": 0.5, "learn_s": 1.0, "publish_s": 0.1}
    envs = {"kg": {"success_rate": rate}, "house": {"success_rate": float("nan")}}
    log.log_metrics("step", {"step": step, "version": step - 1, "is_applied": True, "envs": envs, **times})


def log_evaluation(log: RunLog, when: str, mode: str, rate: float, step: int = 0) -> None:
    bounds = {"success_low": rate - 0.1, "success_high": rate + 0.1}
    values = {"when": when, "step": step, "mode": mode, "env": "kg", "success_rate": rate}
    log.log_metrics("evaluation", values | bounds)


def test_a_run_without_steps_has_no_picture(tmp_path: Path) -> None:
    with RunLog(tmp_path / "run") as log:
        log.log_metrics("warm_up", {"loss": 1.0})
    assert draw_curves(tmp_path / "run") is None
    assert not (tmp_path / "run" / "curves.png").exists()


def test_the_picture_is_drawn_whatever_is_missing(tmp_path: Path) -> None:
    with RunLog(tmp_path / "run") as log:
        log_evaluation(log, "before", "sampled", 0.3)
        for step in range(1, 4):
            log_step(log, step, step / 4)
            log_evaluation(log, "during", "greedy", step / 5, step)
        log_evaluation(log, "after", "greedy", 0.8)
    path = draw_curves(tmp_path / "run")
    assert path == tmp_path / "run" / "curves.png"
    assert path.read_bytes().startswith(b"\x89PNG")


def test_steps_that_a_resume_undid_are_left_out(tmp_path: Path) -> None:
    with RunLog(tmp_path / "run") as log:
        for step in (1, 2, 3):
            log_step(log, step, 0.1)
        log.log_resume(1, 7)
        log_step(log, 2, 0.9)
    steps = surviving_steps(tmp_path / "run" / "metrics.jsonl")
    assert [(step["step"], step["envs"]["kg"]["success_rate"]) for step in steps] == [(1, 0.1), (2, 0.9)]


def test_smoothing_is_the_mean_of_the_last_five() -> None:
    assert _smoothed([1.0, 3.0, 5.0, 7.0, 9.0, 11.0]) == [1.0, 2.0, 3.0, 4.0, 5.0, 7.0]
