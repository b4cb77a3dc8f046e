"""Live against transformers with torch: the golden files say the same for the two models that they hold."""

import jax
import numpy as np
import pytest

from agentrl_jax.models.config import ModelConfig
from agentrl_jax.models.decoder import head_matrix, hidden_states
from agentrl_jax.models.load import load_pretrained
from agentrl_jax.models.params import init_params
from agentrl_jax.models.save import save_pretrained

pytestmark = pytest.mark.torch


@pytest.mark.parametrize("tie_embeddings", [True, False])
@pytest.mark.parametrize(("num_heads", "num_kv_heads"), [(4, 4), (6, 2), (4, 1)])
def test_our_checkpoint_gives_the_same_logits_in_transformers(tmp_path, tie_embeddings, num_heads, num_kv_heads):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    config = ModelConfig(
        vocab_size=99,
        width=48,
        num_layers=3,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=8,
        mlp_width=64,
        rope_theta=1e6,
        tie_embeddings=tie_embeddings,
    )
    rng = np.random.default_rng(0)
    params = jax.tree.map(
        lambda leaf: (leaf + 0.2 * rng.standard_normal(leaf.shape)).astype(np.float32), init_params(config, 0)
    )
    save_pretrained(params, config, tmp_path)
    theirs, info = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    ids = rng.integers(0, 99, (2, 100)).astype(np.int32)
    with torch.no_grad():
        expected = theirs.eval()(torch.tensor(ids, dtype=torch.long)).logits.numpy()
    positions = np.tile(np.arange(100), (2, 1))
    logits = hidden_states(config, params, ids, positions, np.ones_like(ids)) @ head_matrix(params)
    np.testing.assert_allclose(logits, expected, atol=1e-4 * np.abs(expected).max())

    theirs.save_pretrained(tmp_path / "theirs")
    loaded_config, loaded = load_pretrained(tmp_path / "theirs")
    assert loaded_config == config
    jax.tree.map(np.testing.assert_array_equal, loaded, params)
