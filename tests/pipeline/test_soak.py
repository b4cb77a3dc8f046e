"""Long runs: what they hold at the end is what they held at the beginning."""

import gc
import os
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import pytest
from trio.testing import MockClock

from agentrl_jax.controller.ports import StepRecord
from agentrl_jax.runlog import RunLog
from launch.train import main
from tests.launch.engine_process import write_policy
from tests.launch.tiny_run import tiny_from
from tests.pipeline.speeches import Speeches, simulation

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
NUM_STEPS = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """What this process holds at one moment."""

    resident_bytes: int
    num_descriptors: int
    num_threads: int
    num_buffers: int
    buffer_bytes: int


def held() -> Held:
    gc.collect()
    arrays = jax.live_arrays()  # type: ignore[no-untyped-call]
    return Held(
        resident_bytes=int(Path("/proc/self/statm").read_text().split()[1]) * PAGE_BYTES,
        num_descriptors=len(os.listdir("/proc/self/fd")),
        num_threads=threading.active_count(),
        num_buffers=len(arrays),
        buffer_bytes=sum(array.nbytes for array in arrays),
    )


@dataclass(kw_only=True)
class Watched(Speeches):
    """Notes what is held after some steps; to collect garbage after each would take longer than the steps."""

    after: dict[int, Held] = field(default_factory=dict)

    async def on_step(self, record: StepRecord) -> None:
        await super().on_step(record)
        if record.step % 20 == 19:
            self.after[record.step + 1] = held()


@pytest.mark.slow
async def test_sixty_steps_hold_no_more_than_twenty(autojump_clock: MockClock) -> None:
    run = simulation(max_staleness=1, kind=Watched)
    await run.run(60)
    assert isinstance(run, Watched)
    warm, last = run.after[20], run.after[60]
    # What tests before this one have left in this process (idle threads) may go meanwhile.
    for name in ("num_buffers", "buffer_bytes", "num_descriptors", "num_threads"):
        assert getattr(last, name) <= getattr(warm, name), name


@pytest.mark.soak
def test_five_hundred_steps_of_a_whole_run_are_flat(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Engine, learner, publishing, checkpoints and evaluations are the real ones, at the smallest sizes."""
    seen: list[Held] = []
    log = RunLog.log_metrics

    def watched(self: RunLog, kind: str, values: Any) -> None:
        log(self, kind, values)
        if kind == "step":
            seen.append(held())

    monkeypatch.setattr(RunLog, "log_metrics", watched)
    (tmp_path / "policy").mkdir()
    write_policy(tmp_path / "policy", tmp_path / "tokenizer")
    flags = (
        f"--max-steps={NUM_STEPS}",
        "--save-every=20",
        "--eval-every=50",
        "--engine-devices=1",
        "--evaluation.num-tasks=2",
        "--episode.max-new-tokens=8",
        "--max-context-tokens=1024",
        *("--engine.prefill-shapes", "8", "64"),
        "--row-buckets=1",
        "--keep-batches=5",
        "--advantages.task-normalisation=paper",
        "--rollout.max-fruitless-steps=1000000",
    )
    assert main(tiny_from(tmp_path / "policy", tmp_path / "run", *flags)) == 0
    assert len(seen) == NUM_STEPS
    # Of every window the least: what is in flight (a save, an evaluation, a publish) comes and goes.
    windows = [seen[start : start + 100] for start in range(100, NUM_STEPS, 100)]
    for name in ("num_descriptors", "num_threads", "num_buffers", "buffer_bytes", "resident_bytes"):
        print(name, [min(getattr(moment, name) for moment in window) for window in windows])
    for name in ("num_descriptors", "num_threads", "num_buffers", "buffer_bytes"):
        first, last = (min(getattr(moment, name) for moment in window) for window in (windows[0], windows[-1]))
        assert last <= first, name
    resident = [min(moment.resident_bytes for moment in window) for window in windows]
    assert resident[-1] - resident[0] < 30 * 2**20  # the allocator's own ups and downs
