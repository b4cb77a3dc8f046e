"""Live against transformers with torch, at other sizes than the golden files, and with a real pretrained model."""

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file

from agentrl_jax.models.config import ModelConfig, RopeScaling
from agentrl_jax.models.decoder import head_matrix, hidden_states
from agentrl_jax.models.load import load_pretrained
from agentrl_jax.models.params import init_params
from agentrl_jax.models.save import save_pretrained

pytestmark = pytest.mark.torch

QWEN2 = ModelConfig(
    vocab_size=99, width=48, num_layers=3, num_heads=6, num_kv_heads=2, head_dim=8, mlp_width=64, rope_theta=1e6
)
SCALING = RopeScaling(factor=4.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_positions=64)
GLM = replace(QWEN2, family="glm", head_dim=16, rotary_frac=0.5, rope_theta=1e4, tie_embeddings=False)
CONFIGS = {
    "tied": QWEN2,
    "untied": replace(QWEN2, tie_embeddings=False),
    "ungrouped": replace(QWEN2, num_kv_heads=6),
    "one-kv-head": replace(QWEN2, num_kv_heads=1),
    "qwen3": replace(QWEN2, family="qwen3", qkv_bias=False, head_dim=16),
    "llama": replace(QWEN2, family="llama", qkv_bias=False),
    "llama3": replace(QWEN2, family="llama", qkv_bias=False, rope_theta=1e4, rope_scaling=SCALING),
    "glm": GLM,
    "glm-scaled": replace(GLM, rope_scaling=SCALING),
    "glm4": replace(GLM, family="glm4", qkv_bias=False),
    "glm4-biased": replace(GLM, family="glm4"),
}

PRETRAINED = Path(__file__).resolve().parents[2] / ".cache" / "pretrained" / "SmolLM2-135M-Instruct.Q4_1.gguf"


def noisy_params(config: ModelConfig, dtype: Any = np.float32) -> Any:
    rng = np.random.default_rng(0)
    return jax.tree.map(
        lambda leaf: (leaf + 0.2 * rng.standard_normal(leaf.shape)).astype(dtype), init_params(config, 0)
    )


def our_logits(config: ModelConfig, params: Any, ids: Any) -> Any:
    positions = np.tile(np.arange(ids.shape[1]), (len(ids), 1))
    return hidden_states(config, params, ids, positions, np.ones_like(ids)) @ head_matrix(params).astype(jnp.float32)


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_our_checkpoint_gives_the_same_logits_in_transformers(tmp_path, name, dtype):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    config = CONFIGS[name]
    params = noisy_params(config, {"float32": np.float32, "bfloat16": ml_dtypes.bfloat16}[dtype])
    save_pretrained(params, config, tmp_path, max_file_bytes=50_000)
    assert (tmp_path / "model.safetensors.index.json").is_file()
    theirs, info = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path, dtype=torch.float32, output_loading_info=True
    )
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    ids = np.random.default_rng(1).integers(0, 99, (2, 100)).astype(np.int32)
    with torch.no_grad():
        expected = theirs.eval()(torch.tensor(ids, dtype=torch.long)).logits.numpy()
    np.testing.assert_allclose(our_logits(config, params, ids), expected, atol=1e-4 * max(1, np.abs(expected).max()))

    theirs.to(getattr(torch, dtype)).save_pretrained(tmp_path / "theirs")
    loaded_config, loaded = load_pretrained(tmp_path / "theirs")
    assert loaded_config == config
    for ours, again in zip(jax.tree.leaves(params), jax.tree.leaves(loaded), strict=True):
        assert ours.dtype == again.dtype
        assert ours.tobytes() == again.tobytes()
    save_pretrained(loaded, loaded_config, tmp_path / "again", source=tmp_path / "theirs")
    written, reference = (load_file(tmp_path / part / "model.safetensors") for part in ("again", "theirs"))
    assert {key: value.tobytes() for key, value in written.items()} == {
        key: value.tobytes() for key, value in reference.items()
    }


def greedy(config: ModelConfig, params: Any, prompt: list[int], count: int) -> list[int]:
    """Continue `prompt` by `count` ids through whole forward passes of one fixed length."""
    length = len(prompt) + count
    where = np.arange(length)[None], np.ones((1, length), np.int32)

    @jax.jit
    def step(params, ids, index):
        hidden = hidden_states(config, params, ids, *where)[0, index - 1]
        return ids.at[0, index].set(jnp.argmax(hidden @ head_matrix(params)).astype(ids.dtype))

    placed = jax.device_put(params)
    ids = jnp.asarray([*prompt, *[0] * count], jnp.int32)[None]
    for index in range(len(prompt), length):
        ids = step(placed, ids, index)
    return np.asarray(ids)[0, len(prompt) :].tolist()


@pytest.mark.slow
def test_a_pretrained_model_goes_on_as_in_transformers(tmp_path):
    """AGENTRL_TEST_GGUF names a GGUF file; else it is the one that tools/install_pretrained.sh fetches."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    gguf = pytest.importorskip("gguf")
    file = Path(os.environ.get("AGENTRL_TEST_GGUF", PRETRAINED))
    if not file.is_file():
        pytest.skip(f"no GGUF file at {file}: run tools/install_pretrained.sh, or name one in AGENTRL_TEST_GGUF")
    (tmp_path / "gguf").mkdir()
    (tmp_path / "gguf" / file.name).symlink_to(file.resolve())
    config, params = load_pretrained(tmp_path / "gguf")
    save_pretrained(params, config, tmp_path / "hf")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "hf", dtype=torch.float32).eval()
    tokens = gguf.GGUFReader(file).fields["tokenizer.ggml.tokens"].contents()
    prompt = [tokens.index(token) for token in ("The", "Ġcapital", "Ġof", "ĠFrance", "Ġis")]
    ids = torch.tensor([prompt])
    with torch.no_grad():
        first = theirs(ids).logits.numpy()
        out = theirs.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=64,
            min_new_tokens=64,
            do_sample=False,
            pad_token_id=0,
        )
    np.testing.assert_allclose(our_logits(config, params, np.array([prompt], np.int32)), first, atol=2e-3)
    ours = greedy(config, params, prompt, 64)
    assert ours == out[0, len(prompt) :].tolist()
    assert "ĠParis" in [tokens[id_] for id_ in ours[:20]]  # a wrong order of heads or pairs knows nothing
    assert json.loads((tmp_path / "hf" / "config.json").read_text())["model_type"] == config.family
