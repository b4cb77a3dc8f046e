"""One learner step as a log line and as JSON: the same numbers in both, under flat names."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from agentrl_jax.controller.admission import Admission
from agentrl_jax.controller.config import RolloutConfig
from agentrl_jax.controller.ledger import Ledger
from agentrl_jax.controller.ports import StepRecord, StepTimings
from agentrl_jax.report.progress import step_line, step_record, task_lines, throughput
from agentrl_jax.runlog import RunLog, read_records
from agentrl_jax.types import Group
from tests.algo.record_builders import make_group, make_segment, make_turn


def record_of(groups: list[Group], dropped: list[Group] | None = None) -> StepRecord:
    return StepRecord(
        step=3,
        version=5,
        is_finite=True,
        is_applied=True,
        groups=tuple(groups),
        ages=tuple(1 for _ in groups),
        dropped=tuple(dropped or []),
        cancelled=(),
        num_no_signal=len(dropped or []),
        ends={},
        metrics={"packing_efficiency": 0.99, "pack_s": 0.01},
        timings=StepTimings(collect_s=0.0, learn_s=0.0, publish_s=0.0, straggler_wait_s={}),
        open_tasks=(),
        tasks={},
        warnings=(),
        ledger=Ledger(RolloutConfig(group_size=2, min_groups_per_batch=4)).statistics(),
        admission=Admission(8).statistics(),
    )


def two_envs() -> list[Group]:
    old = [[make_segment(make_turn(1, 2, version=2, pool="lagging"))], [make_segment(make_turn(1, 4, version=5))]]
    return [make_group([1.0, 0.0], env="kg", segments=old), make_group([0.5, 0.5], group_id=1, env="house")]


def test_micro_macro_and_each_env_stand_in_the_record() -> None:
    found = step_record(record_of(two_envs()))
    assert (found["envs"]["kg"]["margin"], found["envs"]["house"]["margin"]) == (0.5, 0.0)
    assert (found["micro"]["success_rate"], found["macro"]["success_rate"]) == (0.25, 0.25)
    assert found["envs"]["kg"]["staleness_lagging_lag_3_tokens"] == 2
    assert found["micro"]["staleness_current_tokens"] == 4 + 6
    assert found["envs"]["house"]["zero_variance_frac"] == 1.0
    assert found["metrics"]["pack_s"] == 0.01
    for section in (found["micro"], found["macro"], *found["envs"].values()):
        assert all(isinstance(value, float) for value in section.values())


def test_met_05_the_terminal_and_the_log_show_one_mean() -> None:
    record = record_of(two_envs(), dropped=[make_group([1.0, 1.0, 1.0, 1.0], group_id=2, env="kg")])
    logged = step_record(record)
    assert logged["micro"]["success_rate"] == pytest.approx(5 / 8)
    assert "success 62.5 %" in step_line(record, max_steps=10, step_s=1.0)
    (kg,) = (line for line in task_lines(record) if "kg" in line)
    assert f"success {100 * logged['envs']['kg']['success_rate']:.1f} %" in kg


def test_a_step_of_a_loss_without_a_clip_claims_no_clipped_share() -> None:
    record = record_of(two_envs())
    assert "clip" not in step_line(record, max_steps=10, step_s=1.0)
    clipped = replace(record, metrics={"clip_low_frac": 0.01, "clip_high_frac": 0.02})
    assert "clip 3.0 %" in step_line(clipped, max_steps=10, step_s=1.0)


def test_what_was_not_measured_is_null_in_the_file(tmp_path: Path) -> None:
    with RunLog(tmp_path / "run") as log:
        log.log_metrics("step", step_record(replace(record_of(two_envs()[1:]), metrics={})))
    (found,) = read_records(tmp_path / "run" / "metrics.jsonl")
    assert found["micro"]["staleness_lagging_mean"] is None
    assert found["micro"]["call_error_frac"] is None
    assert found["macro"]["zero_variance_frac"] == 1.0
    json.dumps(found, allow_nan=False)


def test_met_04_throughput_is_of_the_whole_run_and_of_all_that_ended() -> None:
    """Counts of consumed, dropped and cancelled groups / the step's seconds, whatever devices took part."""
    dropped = [make_group([1.0, 1.0], group_id=2, env="kg")]
    record = record_of(two_envs(), dropped=dropped)
    found = throughput(record, 4.0)
    assert found["episodes_per_s"] == 6 / 4.0
    trajectories = [t for group in (*record.groups, *record.dropped) for t in group.trajectories]
    assert found["tokens_per_s"] == sum(t.num_tokens for t in trajectories) / 4.0
    assert found["loss_tokens_per_s"] == sum(t.num_loss_tokens for t in trajectories) / 4.0
    assert throughput(replace(record, groups=(), cancelled=record.groups), 4.0) == found
