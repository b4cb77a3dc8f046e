"""The decoder against logits that transformers computed, and what packing must not change."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agentrl_jax.models import decoder
from agentrl_jax.models.config import ModelConfig
from agentrl_jax.models.decoder import head_matrix
from agentrl_jax.models.load import load_pretrained
from agentrl_jax.models.params import init_params

GOLDEN = Path(__file__).with_name("golden")
CONFIG = ModelConfig(vocab_size=17, width=16, num_layers=2, num_heads=4, num_kv_heads=2, head_dim=4, mlp_width=24)
PARAMS = init_params(CONFIG, 0)

hidden_states = jax.jit(decoder.hidden_states, static_argnums=0, static_argnames=("dtype", "remat"))


def unpacked(ids):
    return np.asarray(ids), np.tile(np.arange(np.shape(ids)[1]), (len(ids), 1)), np.ones(np.shape(ids), np.int32)


@pytest.mark.parametrize("name", sorted(path.parent.name for path in GOLDEN.glob("*/logits.npz")))
def test_logits_are_those_of_transformers(name):
    config, params = load_pretrained(GOLDEN / name)
    params = jax.tree.map(lambda leaf: leaf.astype(np.float32), params)
    with np.load(GOLDEN / name / "logits.npz") as golden:
        ids, expected = golden["ids"], golden["logits"]
    logits = hidden_states(config, params, *unpacked(ids)) @ head_matrix(params)
    assert np.abs(expected).max() > 3
    np.testing.assert_allclose(logits, expected, atol=1e-4)


@pytest.mark.parametrize("name", ["llama3", "glm4-biased"])
def test_the_rotation_depends_on_distances_alone(name):
    config, params = load_pretrained(GOLDEN / name)
    ids, positions, segment_ids = unpacked(np.random.default_rng(2).integers(0, 64, (1, 9)))
    here = hidden_states(config, params, ids, positions, segment_ids)
    further = hidden_states(config, params, ids, positions + 300, segment_ids)
    np.testing.assert_allclose(here, further, atol=1e-4)
    stretched = hidden_states(config, params, ids, positions * 2, segment_ids)
    assert np.abs(stretched - here).max() > 0.1


def test_packed_segments_are_what_they_are_alone():
    rng = np.random.default_rng(1)
    places = (((0, slice(0, 7)), 1), ((0, slice(7, 16)), 2), ((1, slice(0, 9)), 1))
    ids, positions, segment_ids = np.zeros((3, 2, 24), np.int32)
    for where, number in places:
        size = ids[where].size
        ids[where], positions[where], segment_ids[where] = rng.integers(0, 17, size), np.arange(size), number
    packed = hidden_states(CONFIG, PARAMS, ids, positions, segment_ids)
    for where, _ in places:
        alone = hidden_states(CONFIG, PARAMS, *unpacked(np.pad(ids[where], (0, 24 - ids[where].size))[None]))[0]
        np.testing.assert_allclose(packed[where], alone[: ids[where].size], atol=2e-6)


def test_half_precision_stays_close_and_params_stay_whole():
    args = unpacked(np.random.default_rng(3).integers(0, 17, (2, 9)))
    whole = hidden_states(CONFIG, PARAMS, *args)
    half = hidden_states(CONFIG, PARAMS, *args, dtype=jnp.bfloat16)
    assert half.dtype == jnp.bfloat16
    np.testing.assert_allclose(np.asarray(half, np.float32), whole, atol=0.15)

    def total(params):
        return hidden_states(CONFIG, params, *args, dtype=jnp.bfloat16).astype(jnp.float32).sum()

    grads = jax.eval_shape(jax.grad(total), PARAMS)
    assert {leaf.dtype for leaf in jax.tree.leaves(grads)} == {jnp.dtype(jnp.float32)}


def test_compiled_size_does_not_grow_with_depth():
    def size(num_layers):
        config = ModelConfig(
            vocab_size=17, width=16, num_layers=num_layers, num_heads=4, num_kv_heads=2, head_dim=4, mlp_width=24
        )
        args = unpacked(np.zeros((1, 8), np.int32))
        return len(str(jax.make_jaxpr(lambda p: hidden_states(config, p, *args))(init_params(config, 0))))

    assert size(16) < 1.05 * size(2)
