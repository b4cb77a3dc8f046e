"""Flags of a training run that takes seconds: every phase, at the smallest sizes."""

from pathlib import Path

from benchmarks.learning import TINY_POLICY

LOOP = (
    "--rollout.group-size=2",
    "--rollout.min-groups-per-batch=2",
    "--evaluation.num-tasks=4",
    "--engine.num-slots=8",
    "--max-steps=2",
)


def tiny(run_dir: Path, *flags: str) -> list[str]:
    """A run from nothing."""
    return [*TINY_POLICY, *LOOP, f"--run-dir={run_dir}", *flags]


def tiny_from(model: Path, run_dir: Path, *flags: str) -> list[str]:
    """A run from the weights in `model`."""
    return [*LOOP, f"--model={model}", f"--run-dir={run_dir}", *flags]
