"""The layer's functions by hand: what must stay in float32, and which epsilon a norm takes."""

import jax.numpy as jnp
import numpy as np
import pytest

from agentrl_jax.models.config import ModelConfig
from agentrl_jax.models.layers import project, rms_norm, rope_of
from agentrl_jax.models.params import init_params


def test_norm_by_hand():
    out = rms_norm(jnp.array([[3.0, 4.0]]), jnp.array([1.0, 2.0]), eps=0.0)
    np.testing.assert_allclose(out, [[3 / 12.5**0.5, 8 / 12.5**0.5]], rtol=1e-6)


def test_a_norm_of_half_precision_is_computed_in_float32():
    x = jnp.asarray(np.random.default_rng(0).standard_normal((4, 4096)) * 30, jnp.bfloat16)
    exact = np.asarray(x, np.float64)
    exact = exact / np.sqrt((exact**2).mean(-1, keepdims=True) + 1e-6)
    out = rms_norm(x, jnp.ones(4096), eps=1e-6)
    assert out.dtype == jnp.bfloat16
    # Nothing but the result is rounded: to 8 bits, so by at most 2⁻⁸ of it.
    np.testing.assert_allclose(np.asarray(out, np.float64), exact, rtol=2**-8 * 1.001)


@pytest.mark.parametrize("eps", [1e-6, 0.5])
def test_norms_of_heads_take_the_models_epsilon(eps):
    sizes = {"vocab_size": 8, "width": 8, "num_layers": 1, "num_heads": 2, "num_kv_heads": 1, "head_dim": 4}
    config = ModelConfig(family="qwen3", mlp_width=8, norm_eps=eps, qkv_bias=False, **sizes)
    layer = {name: node for name, node in init_params(config, 0)["layers"].items() if name != "mlp"}
    layer = {
        "input_norm": {"scale": layer["input_norm"]["scale"][0]},
        "attention": {
            name: {leaf: array[0] for leaf, array in node.items()} for name, node in layer["attention"].items()
        },
    }
    x = np.random.default_rng(1).standard_normal((3, 8)).astype(np.float32)
    normed = x / np.sqrt((x**2).mean(-1, keepdims=True) + eps)
    found = project(layer, jnp.asarray(x), rope_of(config, jnp.zeros(3, jnp.int32)), config)  # position 0: no rotation
    for name, part in zip("qkv", found, strict=True):
        kernel = layer["attention"][name]["kernel"]
        heads = np.einsum("bd,dhe->bhe", normed, kernel)
        expected = heads if name == "v" else heads / np.sqrt((heads**2).mean(-1, keepdims=True) + eps)
        np.testing.assert_allclose(part, expected, atol=1e-5)
