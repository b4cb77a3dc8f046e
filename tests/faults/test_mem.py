"""MEM: what a long run keeps. Rows of the fault list that the controller decides."""

import gc
import tracemalloc
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio
from trio.testing import MockClock

from agentrl_jax.controller.config import RolloutConfig
from agentrl_jax.controller.curriculum import CurriculumConfig
from agentrl_jax.controller.group import AdmittedGroup
from agentrl_jax.controller.loop import train_loop
from agentrl_jax.controller.monitor import LoopMonitor
from agentrl_jax.controller.ports import StepRecord
from agentrl_jax.controller.statistics import as_record
from agentrl_jax.controller.watch import Watch
from agentrl_jax.report.display import Progress
from agentrl_jax.report.progress import step_record, throughput
from agentrl_jax.runlog import RunLog
from agentrl_jax.testing.engine import FakeEngine
from agentrl_jax.testing.envs import EnvScript
from agentrl_jax.testing.simulation import Books, Simulation
from agentrl_jax.testing.virtual import run_virtual
from agentrl_jax.types import Completion, Group, Task, VersionSpan
from tests.faults.invariants import check_invariants


@pytest.mark.parametrize("max_staleness", [1])
async def test_mem_09_a_thousand_groups_with_a_failed_member_leave_nothing(
    max_staleness: int, autojump_clock: MockClock
) -> None:
    numbers = iter(range(10**6))

    def script(task: Task) -> EnvScript:
        return EnvScript(fault="error" if next(numbers) % 8 == 7 else "none", fault_at=1)

    run = Simulation(
        config=RolloutConfig(
            group_size=8, min_groups_per_batch=20, max_groups_per_batch=20, max_staleness=max_staleness
        ),
        script=script,
        engine=FakeEngine(script=lambda prompt, sampling: []),
    )
    result = await run.run(50)
    check_invariants(run, result)
    assert result.ledger.num_consumed == 1000
    assert (result.ledger.num_live, result.ledger.num_complete, result.admission.num_held) == (0, 0, 0)
    assert all(len(record.open_tasks) <= run.config.num_permits for record in run.records)
    assert run.engine.sessions == frozenset()
    assert trio.current_time() == 0.0


class Forgetful(Simulation):
    """Keeps nothing of what it is told, but how many objects there were after some steps."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.num_objects: list[int] = []

    async def run_one_group(self, admitted: AdmittedGroup) -> Group:
        group = await super().run_one_group(admitted)
        self.groups.clear()
        self.started_ids.clear()
        return group

    async def on_step(self, record: StepRecord) -> None:
        self.learner.calls.clear()
        self.books = Books()
        if record.step % 20 == 19:
            gc.collect()
            self.num_objects.append(len(gc.get_objects()))


def test_mem_03_a_long_run_keeps_no_history() -> None:
    def script(task: Task) -> EnvScript:
        return EnvScript(rewards=(0.0, 1.0), fault="error" if task.index == 1 else "none", fault_at=task.index % 3)

    run = Forgetful(
        config=RolloutConfig(
            group_size=8,
            min_groups_per_batch=1,
            max_groups_per_batch=1,
            curriculum=CurriculumConfig(high=0.9),
            max_consecutive_failures=1000,
        ),
        script=script,
        weights={"a": 1.0, "b": 1.0},
        engine=FakeEngine(script=lambda prompt, sampling: []),
        num_places=2,
    )
    run_virtual(lambda: train_loop_of(run, 320))
    # What is in flight varies by some hundred objects. One that each of the 1,920 episodes in between kept would show.
    assert min(run.num_objects[-4:]) - min(run.num_objects[:4]) < 1200


@pytest.mark.slow
async def test_mem_03_ten_thousand_logged_steps_keep_nothing(tmp_path: Path, autojump_clock: MockClock) -> None:
    """Neither the log, nor a display, nor what watches for warnings keeps what it was told."""
    run = Simulation(
        config=RolloutConfig(group_size=2, min_groups_per_batch=1, max_fruitless_steps=100),
        engine=FakeEngine(script=lambda prompt, sampling: []),
    )
    await run.run(1)
    (record,) = run.records
    monitor, watch, progress = LoopMonitor(window=100), Watch(), Progress(max_steps=10_000)
    written = step_record(record) | {"step_s": 1.0, "rl_s": 1.0, "throughput": throughput(record, 1.0)}

    def log(first: int, count: int, to: RunLog) -> None:
        for step in range(first, first + count):
            warnings = watch.observe(record.groups, record.dropped, record.cancelled)
            to.log_metrics(
                "step", written | {"step": step, "step_s": step + 0.5, "loop": as_record(monitor.statistics())}
            )
            for warning in warnings:
                to.log_metrics("warning", {"step": step, **asdict(warning)})
            to.log_episode(step, record.groups[0].trajectories[0], lambda ids: "")

    async with trio.open_nursery() as nursery:
        await nursery.start(monitor.run)
        await trio.sleep(60.0)
        nursery.cancel_scope.cancel()
    with RunLog(tmp_path / "run") as to:
        to.add_observers([progress.observe])
        log(0, 9_000, to)  # by now all that has a bound has reached it
        tracemalloc.start()
        try:
            sizes = []
            for first in (9_000, 9_500):
                log(first, 500, to)
                gc.collect()
                sizes.append(tracemalloc.get_traced_memory()[0])
        finally:
            tracemalloc.stop()
    assert progress.last["step"] == 9_999
    assert sizes[1] - sizes[0] < 500 * 10  # one small object a step would be three times as much


async def train_loop_of(run: Simulation, num_steps: int) -> None:
    """Without the simulation's books, which keep everything on purpose."""
    await train_loop(
        sampler=run.task_sampler,
        config=run.config,
        run_one_group=run.run_one_group,
        learner=run.learner,
        publish=run.publish,
        max_steps=num_steps,
        on_step=run.on_step,
    )


def test_mem_05_a_million_tokens_take_less_than_ten_megabytes() -> None:
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        completions = [
            Completion(
                ids=np.arange(10_000, dtype=np.int32),
                logprobs=np.full(10_000, -0.5, np.float32),
                version_spans=(VersionSpan(version=0, start=0, end=10_000),),
                finish_reason="stop",
                engine="e",
                pool="current",
            )
            for _ in range(100)
        ]
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert sum(len(completion.ids) for completion in completions) == 10**6
    assert after - before < 10 * 10**6
