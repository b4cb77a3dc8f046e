"""Published architectures have the published numbers of parameters, and no memory is needed to know them."""

from math import prod

import jax
import jax.numpy as jnp
import pytest

from agentrl_jax.models.decoder import head_matrix, hidden_states
from agentrl_jax.models.export import export_bytes
from agentrl_jax.models.params import build_tree, num_params
from agentrl_jax.models.published import PUBLISHED

# As the models' pages state them.
NUM_PARAMS = {
    "Qwen2.5-0.5B-Instruct": 494_032_768,
    "Qwen2.5-1.5B-Instruct": 1_543_714_304,
    "Qwen2.5-3B-Instruct": 3_085_938_688,
    "Qwen2.5-7B-Instruct": 7_615_616_512,
    "Qwen2.5-14B-Instruct": 14_770_033_664,
    "Qwen2.5-32B-Instruct": 32_763_876_352,
    "Qwen2.5-72B-Instruct": 72_706_203_648,
    "Qwen3-0.6B": 596_049_920,
    "Qwen3-8B": 8_190_735_360,
    "SmolLM2-135M-Instruct": 134_515_008,
    "Llama-3.2-1B-Instruct": 1_235_814_400,
    "GLM-4-9B-0414": 9_400_279_040,
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_number_of_parameters_is_the_published_one(name):
    config = PUBLISHED[name]
    shapes = build_tree(config, lambda spec: jax.ShapeDtypeStruct(spec.shape, jnp.bfloat16))
    assert num_params(config) == NUM_PARAMS[name]
    assert sum(prod(leaf.shape) for leaf in jax.tree.leaves(shapes)) == NUM_PARAMS[name]
    assert export_bytes(config, dtype="bfloat16") == 2 * NUM_PARAMS[name]


@pytest.mark.parametrize("name", ["Qwen2.5-72B-Instruct", "Qwen3-8B", "Llama-3.2-1B-Instruct", "GLM-4-9B-0414"])
def test_the_shapes_fit_the_decoder(name):
    config = PUBLISHED[name]
    shapes = build_tree(config, lambda spec: jax.ShapeDtypeStruct(spec.shape, jnp.bfloat16))
    tokens = jax.ShapeDtypeStruct((2, 64), jnp.int32)

    def logits(params, *where):
        return hidden_states(config, params, *where, dtype=jnp.bfloat16) @ head_matrix(params)

    out = jax.eval_shape(logits, shapes, tokens, tokens, tokens)
    assert (out.shape, out.dtype) == ((2, 64, config.vocab_size), jnp.bfloat16)
