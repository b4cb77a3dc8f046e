"""MET rows about what a run shows of its steps, from the records of a simulated one."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
from trio.testing import MockClock

from agentrl_jax.controller.config import RolloutConfig
from agentrl_jax.controller.ports import StepRecord
from agentrl_jax.report.progress import step_line, step_record, task_lines, throughput
from agentrl_jax.report.sinks import figures
from agentrl_jax.runlog import RunLog, read_records
from agentrl_jax.testing.engine import FakeEngine
from agentrl_jax.testing.envs import EnvScript
from agentrl_jax.testing.simulation import Simulation
from agentrl_jax.types import Task


async def records_of(num_steps: int, **config: object) -> list[StepRecord]:
    """Steps on two envs of very different sizes, some of whose episodes fail; `b` is always solved."""
    numbers = iter(range(10**6))

    def script(task: Task) -> EnvScript:
        number = next(numbers)
        reward = 1.0 if task.env == "b" else float(number % 4 == 0)
        return EnvScript(rewards=(0.0, reward), fault="error" if number % 7 == 0 else "none", fault_at=1)

    run = Simulation(
        config=RolloutConfig(group_size=4, min_groups_per_batch=6, **config),  # type: ignore[arg-type]
        script=script,
        weights={"a": 5.0, "b": 1.0},
        engine=FakeEngine(script=lambda prompt, sampling: [5]),
    )
    await run.run(num_steps)
    return run.records


@pytest.mark.parametrize("dynamic_sampling", [False, True])
async def test_met_05_terminal_log_and_sinks_show_one_mean(
    dynamic_sampling: bool, tmp_path: Path, autojump_clock: MockClock
) -> None:
    """Also where groups without signal are dropped, which count as much as any other that was played."""
    sent: list[dict[str, float]] = []
    with RunLog(tmp_path / "run") as log:
        log.add_observers([lambda kind, record: sent.append(figures(kind, record))])
        records = await records_of(4, dynamic_sampling=dynamic_sampling)
        for record in records:
            log.log_metrics("step", step_record(record))
    assert any(record.dropped for record in records) == dynamic_sampling
    for record, logged, shown in zip(records, read_records(tmp_path / "run" / "metrics.jsonl"), sent, strict=True):
        played = [t for group in (*record.groups, *record.dropped) for t in group.trajectories if t.is_valid]
        mean = sum(t.reward for t in played) / len(played)  # type: ignore[misc]
        assert logged["micro"]["reward_mean"] == shown["step/micro/reward_mean"] == pytest.approx(mean)
        assert f"reward {mean:+.3f}" in step_line(record, max_steps=4, step_s=1.0)
        for env, metrics in logged["envs"].items():
            assert metrics["reward_mean"] == shown[f"step/envs/{env}/reward_mean"]
            (line,) = (line for line in task_lines(record) if re.match(rf" +{env}:", line))
            assert f"reward {metrics['reward_mean']:+.3f}" in line


async def test_met_04_throughput_is_of_all_that_was_played_and_divided_by_time_alone(autojump_clock: MockClock) -> None:
    """By no device's share, and whatever became of a group: an engine has worked for it."""
    (record,) = await records_of(1, dynamic_sampling=True)
    groups = (*record.groups, *record.dropped, *record.cancelled)
    played = [t for group in groups for t in group.trajectories]
    assert len(record.dropped) > 0
    expected = {
        "episodes_per_s": len(played) / 4.0,
        "tokens_per_s": sum(len(s.ids) for t in played for s in t.segments) / 4.0,
        "loss_tokens_per_s": sum(s.loss_mask.sum() for t in played for s in t.segments) / 4.0,
    }
    assert throughput(record, 4.0) == pytest.approx(expected)
    assert throughput(replace(record, groups=(), cancelled=record.groups), 4.0) == pytest.approx(expected)
