"""The picture of a run: drawn from its directory, undone steps left out, empty runs refused politely."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agentrl_jax.report import curves
from agentrl_jax.report.curves import _smoothed, draw_curves
from agentrl_jax.runlog import RunLog


def log_step(log: RunLog, step: int, rate: float) -> None:
    times = {"collect_s": 0.5, "learn_s": 1.0, "publish_s": 0.1}
    envs = {"kg": {"success_rate": rate}, "house": {"success_rate": float("nan")}}
    log.log_metrics("step", {"step": step, "version": step - 1, "is_applied": True, "envs": envs, **times})


def log_evaluation(log: RunLog, when: str, mode: str, rate: float, step: int = 0) -> None:
    bounds = {"success_low": rate - 0.1, "success_high": rate + 0.1}
    values = {"when": when, "step": step, "mode": mode, "env": "kg", "success_rate": rate}
    log.log_metrics("evaluation", values | bounds)


def test_a_run_without_steps_of_reinforcement_learning_has_no_picture(tmp_path: Path) -> None:
    with RunLog(tmp_path / "run") as log:
        log.log_metrics("warm_up", {"loss": 1.0})
        log.log_metrics("step", {"step": 1, "metrics": {"loss": 1.0}, "sft_s": 1.0})
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


def test_what_a_resume_undid_is_left_out_and_evaluations_stand_at_their_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with RunLog(tmp_path / "run") as log:
        log_evaluation(log, "before", "greedy", 0.2)
        for step in (1, 2, 3):
            log_step(log, step, 0.1)
        log_evaluation(log, "after", "greedy", 0.3, 2)
        log_evaluation(log, "during", "greedy", 0.9, 3)
        log.log_resume(2, 7)
        log_step(log, 3, 0.9)
        log_step(log, 4, 0.9)
    drawn: list[tuple[list[float], list[float]]] = []

    def noting(do: Callable[..., Any]) -> Callable[..., Any]:
        def draw(axes: Any, xs: Any, ys: Any, **look: Any) -> Any:
            drawn.append((list(xs), list(ys)))
            return do(axes, xs, ys, **look)

        return draw

    for name in ("plot", "errorbar"):
        monkeypatch.setattr(curves.Axes, name, noting(getattr(curves.Axes, name)))
    draw_curves(tmp_path / "run")
    assert ([1, 2, 3, 4], [0.1, 0.1, 0.9, 0.9]) in drawn
    assert [(xs, ys) for xs, ys in drawn if len(xs) == 1] == [([0.5], [0.2]), ([2.5], [0.3])]


def test_smoothing_is_the_mean_of_the_last_five() -> None:
    assert _smoothed([1.0, 3.0, 5.0, 7.0, 9.0, 11.0]) == [1.0, 2.0, 3.0, 4.0, 5.0, 7.0]
