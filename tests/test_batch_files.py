"""Recorded batches come back exactly, and nothing else is taken for one."""

import re
from pathlib import Path

import numpy as np
import pytest

from agentrl_jax.algo.advantages import AdvantageConfig
from agentrl_jax.batch_files import load_batch, load_scores, save_batch
from agentrl_jax.errors import RecordError
from agentrl_jax.packing import PackingConfig, build_batch
from agentrl_jax.types import Group
from tests.packed_groups import ARRAYS, PLAIN, one_row, varied_groups


@pytest.mark.parametrize("groups", [varied_groups(), []], ids=["full", "empty"])
def test_a_recorded_batch_comes_back_exactly(tmp_path: Path, groups: list[Group]) -> None:
    packing = PackingConfig(row_tokens=(64,), rows_per_micro_batch=2)
    batch = build_batch(groups, advantages=AdvantageConfig(), packing=packing, learner_version=9)
    path = tmp_path / "step-000001.npz"
    save_batch(path, batch)
    loaded = load_batch(path)
    assert [p.name for p in tmp_path.iterdir()] == [path.name]
    for name in ("loss_weight", "num_loss_tokens", "num_tokens", "efficiency", "task_names", "stats"):
        assert getattr(loaded, name) == getattr(batch, name), name
    assert len(loaded.micro_batches) == len(batch.micro_batches)
    for before, after in zip(batch.micro_batches, loaded.micro_batches, strict=True):
        assert before.totals == after.totals
        for name in ARRAYS:
            x, y = getattr(before, name), getattr(after, name)
            assert (x.dtype, x.tobytes(), x.shape) == (y.dtype, y.tobytes(), y.shape), name
            assert not y.flags.writeable
    assert loaded.segment_order.tolist() == batch.segment_order.tolist()


def test_other_files_are_not_taken_for_batches(tmp_path: Path) -> None:
    other, pickled = tmp_path / "other.npz", tmp_path / "pickled.npz"
    np.savez(other, x=np.zeros(3))
    with pytest.raises(RecordError, match="not a recorded batch"):
        load_batch(other)
    np.savez(other, format=99)
    with pytest.raises(RecordError, match="format 99"):
        load_batch(other)
    np.savez(pickled, format=np.array([{}], object))
    text, empty, array, cut = (tmp_path / name for name in ("text.npz", "empty.npz", "array.npy", "cut.npz"))
    text.write_text("no batch", encoding="utf-8")
    empty.touch()
    np.save(array, np.zeros(3))
    save_batch(cut, build_batch(varied_groups(), advantages=PLAIN, packing=one_row(64), learner_version=9))
    cut.write_bytes(cut.read_bytes()[:-200])
    for path in (other, pickled, text, empty, array, cut):
        for load in (load_batch, load_scores):
            with pytest.raises(RecordError, match=re.escape(str(path))):
                load(path)
