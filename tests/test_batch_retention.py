"""Which recorded batches of a run stay: the newest, and each tenth of the older ones."""

from dataclasses import replace
from pathlib import Path

import pytest

from agentrl_jax.batch_files import recorded_batches, thin_batches
from agentrl_jax.config import TrainConfig
from agentrl_jax.errors import ConfigError


def record(folder: Path, steps: range, *, keep: int) -> list[int]:
    """The steps whose batches are left after a run has recorded `steps`, one after the other."""
    folder.mkdir(exist_ok=True)
    for step in steps:
        (folder / f"step-{step:06d}.npz").touch()
        thin_batches(folder, step, keep=keep)
    return list(recorded_batches(folder))


def test_old_batches_are_thinned_to_each_tenth(tmp_path: Path) -> None:
    assert record(tmp_path, range(1, 36), keep=4) == [10, 20, 30, 32, 33, 34, 35]


def test_a_resumed_run_that_keeps_fewer_deletes_what_is_left_over(tmp_path: Path) -> None:
    assert record(tmp_path, range(1, 8), keep=9) == [1, 2, 3, 4, 5, 6, 7]
    assert record(tmp_path, range(8, 9), keep=2) == [7, 8]


def test_other_files_are_left_alone(tmp_path: Path) -> None:
    strangers = ["step-000001.npz.partial", "notes.txt", "step-1.npz"]
    for name in strangers:
        (tmp_path / name).touch()
    record(tmp_path, range(1, 4), keep=1)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*strangers, "step-000003.npz"])
    assert recorded_batches(tmp_path / "nowhere") == {}


def test_numbers_that_keep_nothing_are_refused() -> None:
    with pytest.raises(ConfigError, match="--keep-batches must be >= 1, got 0; --no-record-batches keeps none"):
        TrainConfig(keep_batches=0)
    with pytest.raises(ConfigError, match="no effect with --no-record-batches"):
        replace(TrainConfig(), record_batches=False, keep_batches=5)
