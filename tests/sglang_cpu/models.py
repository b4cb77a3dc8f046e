"""Checkpoints that a server on a CPU answers from at once."""

from dataclasses import replace
from pathlib import Path

from agentrl_jax.models.config import ModelConfig
from agentrl_jax.models.params import init_params
from agentrl_jax.models.save import save_pretrained
from agentrl_jax.testing.tokenizers import toy_tokenizer, write_toy_tokenizer
from tests.engines.tiny_engine import MODEL, random_weights

IDS_MODEL = replace(MODEL, tie_embeddings=False, max_positions=4096)
"""Nineteen ids, Qwen2's biases; large weights, so that no part can be left out unnoticed."""

CHAT_MODEL = ModelConfig(
    family="qwen3", vocab_size=toy_tokenizer("qwen2_5").vocab_size, width=64, num_layers=2, num_heads=4, num_kv_heads=2,
    head_dim=16, mlp_width=128, qkv_bias=False, tie_embeddings=False, max_positions=4096,
)  # fmt: skip


def write_ids_policy(folder: Path, seed: int) -> Path:
    """Weights of IDS_MODEL, which only takes and gives ids: serve it with --skip-tokenizer-init."""
    save_pretrained(random_weights(seed, IDS_MODEL), IDS_MODEL, folder, dtype="float32")
    return folder


def write_chat_policy(folder: Path, seed: int) -> Path:
    """Weights of CHAT_MODEL with a toy tokenizer and Qwen2.5's template."""
    write_toy_tokenizer(folder, "qwen2_5")
    save_pretrained(init_params(CHAT_MODEL, seed), CHAT_MODEL, folder, dtype="float32", source=folder)
    return folder
