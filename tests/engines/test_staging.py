"""Staged weights are a copy: the learner donates its buffers, whatever its mesh, and the engine must not notice."""

import jax
import numpy as np
import pytest
from jax.sharding import Mesh

from agentrl_jax.engines.local.weights import split_layers, stage_weights
from agentrl_jax.models.config import ModelConfig
from agentrl_jax.models.params import build_tree, init_params
from agentrl_jax.sharding import make_mesh, named_sharding, parse_mesh

MODEL = ModelConfig(vocab_size=24, width=8, num_layers=2, num_heads=2, num_kv_heads=1, head_dim=4, mlp_width=16)


def spread(mesh: Mesh) -> dict[str, object]:
    shardings = build_tree(MODEL, lambda spec: named_sharding(mesh, spec.axes, spec.shape))
    return jax.tree.map(jax.device_put, init_params(MODEL, seed=0), shardings)


@pytest.mark.parametrize("mesh", ["1", "3", "8", "data=2,fsdp=2,tensor=2"])
def test_staged_weights_outlive_the_learners_buffers(mesh: str) -> None:
    weights = spread(make_mesh(parse_mesh(mesh)))
    expected = jax.tree.map(np.array, weights)
    staged = stage_weights(MODEL, weights, "float32", jax.devices()[0])
    for leaf in jax.tree.leaves(weights):
        leaf.delete()
    assert all(leaf.sharding.device_set == {jax.devices()[0]} for leaf in jax.tree.leaves(staged))
    jax.tree.map(np.testing.assert_array_equal, staged, split_layers(expected))
