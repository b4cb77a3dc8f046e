"""How a run ends, one life of it after the other: each end is durable, and the next life goes on from there."""

import os
import shutil
import signal
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest

from agentrl_jax import checkpoint, pipeline
from agentrl_jax.checkpoint import CheckpointError
from agentrl_jax.errors import NoProgressError
from agentrl_jax.models.load import load_pretrained
from agentrl_jax.packing import PackedBatch, build_batch
from agentrl_jax.runlog import RunLog, read_records, surviving_steps
from agentrl_jax.types import Group
from launch.audit import main as audit
from launch.runs import INTERRUPTED
from launch.train import main
from tests.launch.engine_process import write_policy
from tests.launch.tiny_run import tiny_from

FLAGS = (
    "--save-every=1000",
    "--evaluation.num-tasks=0",
    "--episode.max-new-tokens=8",
    "--max-context-tokens=1024",
    *("--engine.prefill-shapes", "8", "64"),
    "--row-buckets=1",
    "--pool.lagging-prob=0",
    "--advantages.task-normalisation=paper",  # a policy that knows nothing has no group with a signal
    "--rollout.max-fruitless-steps=1000",
)


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    folder = tmp_path / "policy"
    folder.mkdir()
    write_policy(folder, tmp_path / "tokenizer")
    return folder


def signal_after(monkeypatch: pytest.MonkeyPatch, num_steps: int, numbers: Sequence[int]) -> None:
    """Send this process signals as soon as a run has logged so many steps."""
    log, num_logged = RunLog.log_metrics, 0

    def logged(self: RunLog, kind: str, values: Any) -> None:
        nonlocal num_logged
        log(self, kind, values)
        num_logged += kind == "step"
        if kind == "step" and num_logged == num_steps:
            for number in numbers:
                os.kill(os.getpid(), number)

    monkeypatch.setattr(RunLog, "log_metrics", logged)


def signals_within(monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    """Send this process two signals while it learns; the step goes on once the run has been cancelled."""
    is_cancelled = threading.Event()
    watch, learn = pipeline.watch_signals, pipeline._Training._learn

    async def watched(*arguments: Any, **more: Any) -> None:
        await watch(*arguments, **more)
        is_cancelled.set()

    def learned(self: Any, *arguments: Any) -> Any:
        if self.num_learned + 1 == step:
            os.kill(os.getpid(), signal.SIGTERM)
            os.kill(os.getpid(), signal.SIGINT)
            assert is_cancelled.wait(60)
        return learn(self, *arguments)

    monkeypatch.setattr(pipeline, "watch_signals", watched)
    monkeypatch.setattr(pipeline._Training, "_learn", learned)


def last_step(run_dir: Path) -> int:
    """The last step taken, which must be the newest checkpoint's and follow all those before."""
    steps = [int(record["step"]) for record in surviving_steps(run_dir / "metrics.jsonl")]
    assert steps == list(range(1, len(steps) + 1))
    assert max(int(path.name.removeprefix("step-")) for path in (run_dir / "checkpoints").iterdir()) == len(steps)
    assert audit([str(run_dir)]) == 0
    return len(steps)


@pytest.mark.slow
def test_every_end_is_durable(
    policy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run_dir = tmp_path / "run"
    resume = f"--resume={run_dir}"

    # SIGTERM is a request, as Ctrl-C is: what was learned is saved, though no save was due.
    with monkeypatch.context() as patch:
        signal_after(patch, 3, [signal.SIGTERM])
        assert main(tiny_from(policy, run_dir, *FLAGS, "--max-steps=100000")) == 0
    taken = last_step(run_dir)
    assert 3 <= taken < 100000
    assert f"stopped after {taken} steps; go on with --resume" in capsys.readouterr().out

    # A run of fewer steps than lie between two saves keeps them all the same.
    assert main([resume, f"--max-steps={taken + 2}"]) == 0
    assert last_step(run_dir) == taken + 2

    # A second signal stops at once; steps that were finished are not lost.
    with monkeypatch.context() as patch:
        signal_after(patch, 2, [signal.SIGTERM, signal.SIGINT])
        assert main([resume, "--max-steps=100000"]) == INTERRUPTED
    assert last_step(run_dir) >= taken + 3
    taken = last_step(run_dir)

    # Nor is the one that runs, once its params are learnt: they could not be saved as those of the step before.
    with monkeypatch.context() as patch:
        signals_within(patch, taken + 3)
        assert main([resume, "--max-steps=100000"]) == INTERRUPTED
    assert last_step(run_dir) == taken + 3
    taken += 3

    # No step that is counted before the time is up is lost, whenever that is.
    assert main([resume, "--max-steps=100000", "--max-minutes=0.02"]) == 0
    assert taken < last_step(run_dir) < 100000

    versions = [r["version"] for r in read_records(run_dir / "metrics.jsonl") if r["kind"] == "resume"]
    assert versions == sorted(set(versions))


@pytest.mark.slow
def test_a_full_disk_ends_the_run_and_spares_what_was_saved(
    policy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir = tmp_path / "run"
    with monkeypatch.context() as patch:
        num_asked = 0

        def disk_usage(path: Path) -> Any:
            nonlocal num_asked
            num_asked += 1
            return shutil.disk_usage(path) if num_asked == 1 else SimpleNamespace(free=0)

        patch.setattr(checkpoint, "shutil", SimpleNamespace(disk_usage=disk_usage, rmtree=shutil.rmtree))
        with pytest.raises(CheckpointError, match=r"no room for a checkpoint .* of steps \[0\] are untouched"):
            main(tiny_from(policy, run_dir, *FLAGS, "--save-every=2", "--max-steps=100000"))
    assert num_asked > 1
    assert main([f"--resume={run_dir}", "--max-steps=3"]) == 0
    assert last_step(run_dir) == 3


@pytest.mark.slow
def test_steps_that_are_not_finite_are_skipped_counted_and_then_end_the_run(
    policy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir = tmp_path / "run"
    num_built = 0

    def build(groups: Sequence[Group], **options: Any) -> PackedBatch:
        nonlocal num_built
        num_built += 1
        packed = build_batch(groups, **options)
        if num_built == 1:
            return packed
        parts = [
            part._replace(advantages=np.where(part.loss_mask, np.float32(np.nan), part.advantages))
            for part in packed.micro_batches
        ]
        return replace(packed, micro_batches=tuple(parts))

    monkeypatch.setattr(pipeline, "build_batch", build)
    with pytest.raises(NoProgressError, match="4 steps in a row taught nothing") as caught:
        main(tiny_from(policy, run_dir, *FLAGS, "--max-steps=100000", "--rollout.max-fruitless-steps=4"))
    assert "did not give a finite step" in str(caught.value)
    steps = list(surviving_steps(run_dir / "metrics.jsonl"))
    assert {step["is_applied"] for step in steps[1:]} == {False}
    assert [step["is_finite"] for step in steps[-3:]] == [False] * 3
    assert {step["version"] for step in steps[1:]} == {steps[-1]["version"]}
    _, params = load_pretrained(run_dir / "model")
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(params))
    last_step(run_dir)
