"""Flags of a training run that takes seconds: every phase, at the smallest sizes."""

from pathlib import Path

FROM_NOTHING = (
    "--network.width=32",
    "--network.num-layers=1",
    "--network.num-heads=2",
    "--network.num-kv-heads=1",
    "--network.mlp-width=64",
    "--warm-up.demonstrations=64",
    "--warm-up.copy-steps=2",
    "--warm-up.steps=6",
    "--warm-up.batch-size=8",
)
LOOP = (
    "--rollout.group-size=2",
    "--rollout.min-groups-per-batch=2",
    "--evaluation.num-tasks=4",
    "--engine.num-slots=8",
    "--max-steps=2",
)


def tiny(run_dir: Path, *flags: str) -> list[str]:
    """A run from nothing."""
    return [*FROM_NOTHING, *LOOP, f"--run-dir={run_dir}", *flags]


def tiny_from(model: Path, run_dir: Path, *flags: str) -> list[str]:
    """A run from the weights in `model`."""
    return [*LOOP, f"--model={model}", f"--run-dir={run_dir}", *flags]
