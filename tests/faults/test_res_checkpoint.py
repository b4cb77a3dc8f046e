"""RES: checkpoints that are half-written, deleted too early, or resumed at the wrong place."""

import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pytest

from agentrl_jax.algo.losses import LossConfig, make_loss
from agentrl_jax.checkpoint import CheckpointStore
from agentrl_jax.learner import Learner, LearnerConfig
from agentrl_jax.models.config import ModelConfig
from agentrl_jax.models.params import init_params
from agentrl_jax.packing import PackedBatch, PackingConfig, pack_demonstrations
from agentrl_jax.sft import Demonstration, shuffled
from agentrl_jax.sharding import make_mesh, parse_mesh
from tests.test_checkpoint import abstract, make_state, same

MODEL = ModelConfig(vocab_size=16, width=8, num_layers=1, num_heads=2, num_kv_heads=1, head_dim=4, mlp_width=16)
CONFIG = LearnerConfig(learning_rate=0.1, warmup_steps=5, temperature=1.0, logprob_chunk=8)


def test_res_05_the_old_checkpoint_outlives_the_saving_of_the_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[list[str]] = []
    rename = Path.rename

    def watched(self: Path, target: Path) -> Path:
        for moment in (self.parent, None):
            if moment is None:
                rename(self, target)
            seen.append(sorted(path.name for path in tmp_path.iterdir()))
        return target

    with CheckpointStore(tmp_path, keep=1) as store:
        store.save(1, make_state(1), {})
        store.wait()
        with monkeypatch.context() as patch:
            patch.setattr(Path, "rename", watched)
            store.save(2, make_state(2), {})
            store.wait()
    assert seen == [
        ["step-00000001", "step-00000002.partial"],
        ["step-00000001", "step-00000002"],
        ["step-00000001", "step-00000002"],
        ["step-00000001.removed", "step-00000002"],
    ]


def drawn(seed: int, count: int) -> list[Demonstration]:
    rng = np.random.default_rng(seed)
    return [(rng.integers(0, 16, 8).astype(np.int32), np.r_[False, np.ones(7, np.bool_)]) for _ in range(count)]


def batch(step: int, *, rows: int = 2) -> PackedBatch:
    return pack_demonstrations(drawn(step, rows), PackingConfig(row_tokens=(8,), rows_per_micro_batch=rows))


PACKING = PackingConfig(row_tokens=(8,), rows_per_micro_batch=2)
DEMONSTRATIONS = drawn(0, 12)


def test_res_07_a_resumed_learner_takes_the_very_same_steps(tmp_path: Path) -> None:
    loss, mesh = make_loss(LossConfig(name="sft")), make_mesh(parse_mesh("1"))
    unbroken = Learner(MODEL, CONFIG, loss, mesh, init_params(MODEL, 0))
    with CheckpointStore(tmp_path) as store:
        for step in range(1, 4):
            unbroken.step(batch(step))
        store.save(3, unbroken.state, {})
        store.wait()
        resumed = Learner(MODEL, CONFIG, loss, mesh, init_params(MODEL, 1))
        resumed.restore(store.restore(3, resumed.abstract_state()).state)
        for step in range(4, 8):
            expected, got = unbroken.step(batch(step)), resumed.step(batch(step))
            assert (got.step, got.learning_rate, got.loss) == (expected.step, expected.learning_rate, expected.loss)
    assert same(resumed.state, unbroken.state)
    assert len(jax.tree.leaves(resumed.state)) > len(jax.tree.leaves(resumed.params))


def batch_at(order: Iterator[list[int]]) -> PackedBatch:
    """The next batch of an endless run over twelve demonstrations."""
    return pack_demonstrations([DEMONSTRATIONS[number] for number in next(order)], PACKING)


def test_res_01_ten_learner_steps_are_five_and_five_more_bit_for_bit(tmp_path: Path) -> None:
    loss, mesh = make_loss(LossConfig(name="sft")), make_mesh(parse_mesh("1"))
    unbroken = Learner(MODEL, CONFIG, loss, mesh, init_params(MODEL, 0))
    order = shuffled(len(DEMONSTRATIONS), batch_size=5, seed=3)
    with CheckpointStore(tmp_path) as store:
        for _ in range(5):
            unbroken.step(batch_at(order))
        store.save(5, unbroken.state, {"num_taken": 5})
        expected = [unbroken.step(batch_at(order)).loss for _ in range(5)]
    with CheckpointStore(tmp_path) as store:
        resumed = Learner(MODEL, CONFIG, loss, mesh, init_params(MODEL, 1))
        restored = store.restore(5, resumed.abstract_state())
        resumed.restore(restored.state)
        order = shuffled(len(DEMONSTRATIONS), batch_size=5, seed=3, num_taken=restored.loop_state["num_taken"])
        assert [resumed.step(batch_at(order)).loss for _ in range(5)] == expected
    assert same(resumed.state, unbroken.state)


@pytest.mark.parametrize("mesh", ["2", pytest.param("data=2,fsdp=2,tensor=2", marks=pytest.mark.slow)])
def test_res_07_another_mesh_goes_on_from_the_same_bits(mesh: str, tmp_path: Path) -> None:
    config = replace(CONFIG, learning_rate=1e-2)
    first = Learner(MODEL, config, make_loss(LossConfig(name="sft")), make_mesh(parse_mesh("1")), init_params(MODEL, 0))
    for step in range(3):
        first.step(batch(step, rows=4))
    with CheckpointStore(tmp_path) as store:
        store.save(3, first.state, {})
        store.wait()
        other = Learner(
            MODEL, config, make_loss(LossConfig(name="sft")), make_mesh(parse_mesh(mesh)), init_params(MODEL, 1)
        )
        other.restore(store.restore(3, other.abstract_state()).state)
        assert same(other.state, first.state)
    for step in range(3, 8):
        expected, got = first.step(batch(step, rows=4)).loss, other.step(batch(step, rows=4)).loss
        assert got == pytest.approx(expected, rel=1e-5)


def test_res_16_the_last_save_is_durable_when_the_run_ends(tmp_path: Path) -> None:
    def stopped_run() -> None:
        with CheckpointStore(tmp_path) as store:
            store.save(1, make_state(1), {"version": 1})
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stopped_run()
    with CheckpointStore(tmp_path) as store:
        assert store.latest() == 1


CHILD = """
import sys
from pathlib import Path
from tests.test_checkpoint import make_state
from agentrl_jax.checkpoint import CheckpointStore
with CheckpointStore(Path(sys.argv[1]), keep=1) as store:
    step = store.latest() or 0
    while True:
        step += 1
        store.save(step, make_state(step), {"version": step})
        print(step, flush=True)
"""


def kill_while_saving(folder: Path, num_saves: int, delay_s: float) -> None:
    """Start a process that saves without end, and kill it `delay_s` after its save number `num_saves` began."""
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    with subprocess.Popen(
        [sys.executable, "-c", CHILD, str(folder)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd=Path(__file__).parents[2],
        env=environment,
        text=True,
    ) as child:
        assert child.stdout is not None
        for _ in range(num_saves):
            assert child.stdout.readline()
        time.sleep(delay_s)  # the moment of the kill, not a wait for a condition
        child.kill()


def check_after_kill(folder: Path, least: int) -> int:
    with CheckpointStore(folder, keep=1) as store:
        step = store.latest()
        assert step is not None
        assert step >= least
        restored = store.restore(step, abstract(make_state(0)))
        assert same(restored.state, make_state(step))
        assert restored.loop_state == {"version": step}
        assert {path.name for path in folder.iterdir()} <= {f"step-{s:08d}" for s in (step - 1, step)}
    return step


def kill_repeatedly(folder: Path, times: int, seed: int) -> None:
    rng = random.Random(seed)
    step = 0
    for _ in range(times):
        num_saves = rng.randint(2, 6)
        kill_while_saving(folder, num_saves, rng.uniform(0, 0.06))
        step = check_after_kill(folder, step + num_saves - 1)


def test_res_06_a_kill_leaves_a_loadable_checkpoint(tmp_path: Path) -> None:
    kill_repeatedly(tmp_path, times=1, seed=0)


@pytest.mark.slow
def test_res_06_kills_at_random_moments_always_leave_a_loadable_checkpoint(tmp_path: Path) -> None:
    kill_repeatedly(tmp_path, times=8, seed=1)


@pytest.mark.soak
def test_res_06_fifty_kills_at_random_moments_always_leave_a_loadable_checkpoint(tmp_path: Path) -> None:
    kill_repeatedly(tmp_path, times=50, seed=2)
