"""Ten steps on every mesh: equal losses, shardings that stay, one compile, no involuntary rematerialisation."""

from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from agentrl_jax.learner.gradients import gradient_programs
from agentrl_jax.learner.trained import Trained
from agentrl_jax.models.decoder import head_matrix, hidden_states
from agentrl_jax.models.logprobs import token_logprobs
from agentrl_jax.models.params import build_tree
from agentrl_jax.sharding import AXES, named_sharding
from tests.learner.small import CONFIG, MODEL, PARAMS, SFT, make_batch, make_learner

STEPS = 10


def losses_on(mesh: str) -> tuple[list[float], Any]:
    learner = make_learner(mesh)
    before = jax.tree.map(lambda leaf: (leaf.sharding, leaf.dtype), learner.state)
    losses = []
    for seed in range(STEPS):
        metrics = learner.step(make_batch(seed, rows=16))
        assert metrics.is_applied
        losses.append(metrics.loss)
        if seed == 0:
            num_compiles = learner.num_compiles
    assert learner.num_compiles == num_compiles
    assert jax.tree.map(lambda leaf: (leaf.sharding, leaf.dtype), learner.state) == before
    return losses, learner


@pytest.fixture(scope="module")
def on_one_device() -> list[float]:
    return losses_on("1")[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    "mesh",
    ["2", "tensor=2", "8", "data=2,fsdp=2,tensor=2", "16", "data=4,fsdp=2,tensor=2"],
)
def test_ten_steps_are_the_same_on_every_mesh(
    mesh: str, on_one_device: list[float], capfd: pytest.CaptureFixture[str]
) -> None:
    losses, learner = losses_on(mesh)
    np.testing.assert_allclose(losses, on_one_device, atol=1e-5)
    shape = learner.mesh.shape
    kernel = learner.params["layers"]["mlp"]["up"]["kernel"]
    assert kernel.sharding.is_fully_replicated == (shape["fsdp"] * shape["tensor"] == 1)
    assert "rematerialization" not in capfd.readouterr().err


def test_gradient_sums_lie_as_the_params_do() -> None:
    """A sum that the compiler placed itself could lie whole on every device, which no result would show."""
    learner = make_learner("2")
    programs, params = gradient_programs(Trained(MODEL, None), CONFIG, SFT, learner.mesh), learner.state.params
    batch = make_batch(rows=2).micro_batches[0]
    where = jax.tree.map(lambda leaf: leaf.sharding, params)
    assert not where["layers"]["mlp"]["up"]["kernel"].is_fully_replicated
    with jax.set_mesh(learner.mesh):
        zeros = programs.zeros(params, {}, batch)
        assert jax.tree.map(lambda leaf: leaf.sharding, zeros.grads) == where
        sums, _ = programs.accumulate(params, {}, zeros, batch)
        assert jax.tree.map(lambda leaf: leaf.sharding, sums.grads) == where


def test_forward_and_loss_on_a_mesh_of_explicit_axes() -> None:
    """A caller whose mesh has explicit axes hands the forward pass over to the compiler, and keeps the rest."""
    batch = make_batch(rows=8).micro_batches[0]
    where = (batch.ids, batch.positions, batch.segment_ids)

    def logprobs(params: Any, *where: Any) -> Any:
        hidden = hidden_states(MODEL, params, *where)
        return token_logprobs(hidden, head_matrix(params), *where, temperature=0.8, chunk_tokens=6)[0]

    def loss(params: Any, batch: Any, forward: Any) -> Any:
        total = SFT(forward(params, batch.ids, batch.positions, batch.segment_ids), batch).loss
        return total.total / total.weight

    expected, gradients = jax.jit(jax.value_and_grad(lambda params: loss(params, batch, logprobs)))(PARAMS)

    mesh = jax.make_mesh((2, 2, 2), AXES, axis_types=(AxisType.Explicit,) * 3)
    with jax.set_mesh(mesh):
        shardings = build_tree(MODEL, lambda spec: named_sharding(mesh, spec.axes, spec.shape))
        params = jax.tree.map(jax.device_put, PARAMS, shardings)
        rows = P(("data", "fsdp"), None)
        placed = jax.tree.map(
            lambda leaf: jax.device_put(leaf, NamedSharding(mesh, rows if np.ndim(leaf) == 2 else P())), batch
        )
        forward = jax.sharding.auto_axes(logprobs, out_sharding=NamedSharding(mesh, rows))
        typed = jax.eval_shape(forward, params, *(placed.ids, placed.positions, placed.segment_ids))
        assert typed.sharding.spec == rows
        ours, our_gradients = jax.jit(jax.value_and_grad(lambda params, batch: loss(params, batch, forward)))(
            params, placed
        )
    assert where[0].shape[0] == 8
    assert float(ours) == pytest.approx(float(expected), abs=1e-5)
    for mine, theirs in zip(jax.tree.leaves(our_gradients), jax.tree.leaves(gradients), strict=True):
        np.testing.assert_allclose(mine, theirs, atol=2e-6)
    kernel = our_gradients["layers"]["mlp"]["up"]["kernel"]
    assert kernel.sharding.spec == shardings["layers"]["mlp"]["up"]["kernel"].spec
