"""The figures of a report, by hand: columns by step, totals, and what was never measured."""

from pathlib import Path

import pytest

from agentrl_jax.report.episode_table import EpisodeTable, _Line
from agentrl_jax.report.figures import (
    end_counts,
    episode_times,
    error_counts,
    histogram,
    run_figures,
    staleness_totals,
    step_columns,
    success_rates,
    surviving_records,
)
from agentrl_jax.runlog import RunLog

STEP = {
    "kind": "step",
    "step": 1,
    "version": 0,
    "collect_s": 2.0,
    "learn_s": 1.0,
    "publish_s": 0.5,
    "step_s": 4.0,
    "metrics": {"loss": 0.123456789},
    "micro": {"reward_mean": 0.5, "staleness_current_lag_5_8_tokens": 3.0, "staleness_lagging_lag_0_tokens": None},
    "envs": {"kg": {"success_rate": 0.25}},
    "throughput": {"tokens_per_s": 100.0},
    "rollouts": {"slots": {"num_slots": 8, "running": {"kg": 2, "os": 2}}},
}


def table_of(*lines: _Line) -> EpisodeTable:
    table = EpisodeTable(Path("none"))
    for line in lines:
        table.add(0, line)
    return table


def test_the_time_of_a_step_adds_up() -> None:
    columns = step_columns([STEP])
    parts = [columns[name][0] for name in ("collect_s", "learn_s", "publish_s", "other_s")]
    assert parts == [2.0, 1.0, 0.5, 0.5]
    assert sum(parts) == columns["step_s"][0]
    assert columns["learner_busy_frac"] == [0.25]
    assert columns["slots_busy_frac"] == [0.5]
    assert columns["tokens_per_s"] == [100.0]
    assert columns["loss"] == [0.12346]


def test_what_was_not_measured_is_none_and_not_zero() -> None:
    columns = step_columns([{"step": 1, "metrics": {}, "rollouts": {"slots": None}}])
    assert columns["step"] == [1]
    assert {name for name, values in columns.items() if values != [None]} == {"step"}


def test_an_env_without_episodes_in_a_step_has_a_gap() -> None:
    steps = [STEP, {**STEP, "envs": {"os": {"success_rate": 1.0}}}]
    assert success_rates(steps) == {"kg": [0.25, None], "os": [None, 1.0]}


def test_staleness_adds_up_over_steps() -> None:
    assert staleness_totals([STEP, STEP]) == {"current": {"5_8": 6.0}}


def test_ends_times_and_errors_are_those_of_the_episodes() -> None:
    table = table_of(
        _Line(step=1, env="kg", end="completed", wall_s=5.0, engine_s=3.0, env_s=1.0),
        _Line(step=1, env="kg", end="env_error", wall_s=2.0, engine_s=0.5, env_s=0.5, error="broken"),
        _Line(step=4, env="os", end="env_error", wall_s=1.0, engine_s=1.0, env_s=0.5, error="broken"),
    )
    assert end_counts(table) == {"kg": {"completed": 1, "env_error": 1}, "os": {"env_error": 1}}
    assert episode_times(table) == {"step": [1, 4], "engine_s": [3.5, 1.0], "env_s": [1.5, 0.5], "other_s": [2.0, 0.0]}
    assert error_counts(table)[0] == {"env": "kg", "end": "env_error", "text": "broken", "count": 1}
    assert len(error_counts(table)) == 2


@pytest.mark.parametrize(("high", "width"), [(0, 1), (23, 1), (24, 2), (1000, 42)])
def test_every_episode_stands_in_one_bar(high: int, width: int) -> None:
    table = table_of(*(_Line(step=1, env="kg", tokens=value) for value in range(high + 1)))
    found = histogram(table, "tokens")
    assert found["edges"][1] - found["edges"][0] == width
    assert len(found["edges"]) == len(found["counts"]["kg"]) + 1 <= 25
    assert sum(found["counts"]["kg"]) == high + 1
    assert found["counts"]["kg"][0] == min(width, high + 1)


def test_undone_steps_evaluations_and_warnings_are_left_out(tmp_path: Path) -> None:
    with RunLog(tmp_path / "run") as log:
        log.log_metrics("warm_up", {"phase": "sft", "step": 400, "loss": 1.0})
        for step in (1, 2, 3):
            log.log_metrics("step", {"step": step})
            log.log_metrics("warning", {"step": step, "name": "a", "env": "", "text": "b"})
            log.log_metrics("evaluation", {"when": "during", "step": step, "env": "kg", "mode": "greedy"})
        log.log_resume(1, 9)
        log.log_metrics("step", {"step": 2})
    records = surviving_records(tmp_path / "run" / "metrics.jsonl")
    found = run_figures(records, table_of())
    assert found["steps"]["step"] == [1, 2]
    assert [one["step"] for one in found["evaluations"]] == [1]
    assert [one["step"] for one in found["warnings"]] == [1]
    assert found["warmUp"] == [{"phase": "sft", "step": 400, "loss": 1.0}]
    assert found["resumes"] == [1]


def test_a_supervised_run_has_a_loss_and_nothing_else() -> None:
    records = [
        {"kind": "step", "step": 1, "metrics": {"loss": 2.0}, "sft_s": 1.0},
        {"kind": "validation", "step": 1, "mean_loss": 2.5, "accuracy": 0.5, "num_tokens": 9},
    ]
    found = run_figures(records, table_of())
    assert found["steps"]["loss"] == [2.0]
    assert found["validation"] == [{"step": 1, "mean_loss": 2.5}]
    assert found["envs"] == []
