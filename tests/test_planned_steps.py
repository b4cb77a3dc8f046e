"""Plans of what processes that share a learner do: their contract, and two processes that follow them."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl_jax.algo.losses import make_loss
from agentrl_jax.checkpoint_reading import CheckpointReader
from agentrl_jax.errors import RecordError
from agentrl_jax.lead import Leader
from agentrl_jax.learner import Learner
from agentrl_jax.models.export import export_buckets
from agentrl_jax.models.load import load_pretrained
from agentrl_jax.models.params import init_params
from agentrl_jax.sharding import make_mesh, parse_mesh
from agentrl_jax.step_plan import StepPlan
from tests.learner.small import MODEL, flat
from tests.planned_steps import CONFIG, MESH, NUM_STEPS, SAVE_AT, lead_steps

HERE = Path(__file__).parent


def test_a_plan_has_a_shape_exactly_if_it_trains() -> None:
    assert StepPlan(train=True, num_micro_batches=2, row_tokens=64, publish=True).row_tokens == 64
    assert StepPlan(stop=True).stop
    for train, num_micro_batches, row_tokens in ((True, 0, 64), (True, 2, 0), (False, 2, 64), (False, 0, 64)):
        with pytest.raises(RecordError, match=f"train={train}, {num_micro_batches} and {row_tokens}"):
            StepPlan(train=train, num_micro_batches=num_micro_batches, row_tokens=row_tokens)


@pytest.mark.parametrize("plan", [{"step": 3}, {"step": -1, "save": True}])
def test_only_a_plan_that_saves_has_a_step(plan: dict[str, Any]) -> None:
    with pytest.raises(RecordError, match=f"save={plan.get('save', False)} and {plan['step']}"):
        StepPlan(**plan)


@given(st.booleans(), st.integers(1, 1000), st.integers(1, 2**30), st.booleans(), st.integers(0, 2**30))
def test_numbers_say_the_whole_plan(trains: bool, num: int, tokens: int, saves: bool, step: int) -> None:
    shape: dict[str, Any] = {"train": True, "num_micro_batches": num, "row_tokens": tokens} if trains else {}
    plan = StepPlan(**shape, save=saves, step=step if saves else 0, lag=not saves, stop=trains)
    assert StepPlan.from_numbers(plan.to_numbers()) == plan
    assert plan.to_numbers().shape == StepPlan().to_numbers().shape


def test_numbers_of_another_kind_are_no_plan() -> None:
    with pytest.raises(RecordError, match=r"a plan is 12 numbers, got 2"):
        StepPlan.from_numbers(np.zeros(2, np.int32))


def test_a_leader_alone_says_nothing() -> None:
    lead = Leader()
    assert lead.is_alone
    lead(StepPlan(stop=True))
    lead.end()
    loss, mesh = make_loss(CONFIG.loss), make_mesh(parse_mesh("1"))
    assert type(lead.make_learner(MODEL, CONFIG.learner, loss, mesh, init_params(MODEL, 0))) is Learner


def run_both(script: str, *arguments: str) -> list[dict[str, Any]]:
    """What two processes that share a mesh print last."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    processes = [
        subprocess.Popen(
            [sys.executable, str(HERE / script), *arguments, f"localhost:{port}", str(process_id)],
            cwd=HERE.parent, env={**os.environ, "JAX_PLATFORMS": "cpu"}, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True,
        )
        for process_id in range(2)
    ]  # fmt: skip
    try:
        outputs = [process.communicate(timeout=400) for process in processes]
    finally:
        for process in processes:
            process.kill()
    for process, (_, errors) in zip(processes, outputs, strict=True):
        assert process.returncode == 0, errors
    return [json.loads(output.splitlines()[-1]) for output, _ in outputs]


@pytest.mark.slow
def test_two_processes_take_planned_steps_as_one(tmp_path: Path) -> None:
    together, by_itself = tmp_path / "together", tmp_path / "alone"
    together.mkdir()
    led, followed = run_both("planned_steps.py", str(together))
    mesh = make_mesh(parse_mesh(MESH))
    alone = lead_steps(by_itself, mesh, Leader())

    assert followed["num_steps"] == len(led["losses"]) == NUM_STEPS
    for ours, theirs in zip(led["losses"], alone["losses"], strict=True):
        assert ours == pytest.approx(theirs, rel=1e-5, abs=1e-5)
        assert ours["num_late_compiles"] == 0
    assert led["scores"] == pytest.approx(alone["scores"], rel=1e-5)
    assert led["norm"] == pytest.approx(alone["norm"], rel=1e-6)
    assert led["stops"][0] == 2
    assert alone["stops"] == []

    learner = Learner(MODEL, CONFIG.learner, make_loss(CONFIG.loss), mesh, init_params(MODEL, 5))
    saved = [
        CheckpointReader(folder / "checkpoints").restore(SAVE_AT, learner.abstract_state())
        for folder in (together, by_itself)
    ]
    assert [int(restored.state.step) for restored in saved] == [SAVE_AT, SAVE_AT]
    assert saved[0].loop_state == {"stood": "here"}
    np.testing.assert_allclose(flat(saved[0].state), flat(saved[1].state), atol=1e-5)
    exported = [load_pretrained(folder / "model")[1] for folder in (together, by_itself)]
    np.testing.assert_allclose(flat(exported[0]), flat(exported[1]), atol=1e-5)
    assert flat(jax.tree.map(np.abs, exported[0])).sum() == pytest.approx(led["norm"], rel=1e-6)

    buckets = export_buckets(init_params(MODEL, 3), MODEL, dtype="bfloat16", bucket_bytes=2_000)
    checksums = [tensor.checksum for bucket in buckets for tensor in bucket.tensors]
    assert led["checksums"] == followed["checksums"] == checksums
    assert led["failures"] == ["NotADirectoryError", "ProcessError"]
    assert followed["failures"] == ["ProcessError", "AgentRLError"]
