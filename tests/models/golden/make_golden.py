"""Writes this folder's checkpoints and logits with transformers, which is the reference. Needs torch.

    python tests/models/golden/make_golden.py

Tiny random models of every family (grouped queries, biases that are not 0, norms that are not 1), and their logits on
two unpadded sequences. One is kept in bfloat16, one is spread over several files.
"""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import (
    Glm4Config,
    Glm4ForCausalLM,
    GlmConfig,
    GlmForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

HERE = Path(__file__).resolve().parent
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
PARTIAL = {"rope_type": "default", "rope_theta": 10_000.0, "partial_rotary_factor": 0.5}

MODELS: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "qwen2-untied": (Qwen2Config, Qwen2ForCausalLM, {}),
    "qwen2-tied": (Qwen2Config, Qwen2ForCausalLM, {"tie_word_embeddings": True}),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM, {"head_dim": 16}),
    "llama": (LlamaConfig, LlamaForCausalLM, {"tie_word_embeddings": True}),
    "llama3": (LlamaConfig, LlamaForCausalLM, {"rope_parameters": LLAMA3}),
    "glm": (GlmConfig, GlmForCausalLM, {"head_dim": 16, "rope_parameters": PARTIAL}),
    "glm4": (Glm4Config, Glm4ForCausalLM, {"head_dim": 8, "attention_bias": False, "rope_parameters": PARTIAL}),
    "glm4-biased": (Glm4Config, Glm4ForCausalLM, {"head_dim": 8, "attention_bias": True, "rope_parameters": PARTIAL}),
}
BFLOAT16, SHARDED = "llama", "qwen3"


def make_model(name: str, seed: int) -> Any:
    torch.manual_seed(seed)
    make_config, make, changes = MODELS[name]
    shared: dict[str, Any] = {
        "vocab_size": 64,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 48,
        "max_position_embeddings": 512,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0},
        "rms_norm_eps": 1e-6,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
        "tie_word_embeddings": False,
    }
    model = make(make_config(**shared | changes)).eval()
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            noise = torch.randn_like(parameter)
            parameter.copy_(1 + 0.3 * noise if "norm" in parameter_name else 0.3 * noise)
    return model


def main() -> None:
    ids = np.random.default_rng(0).integers(0, 64, (2, 24))
    for seed, name in enumerate(MODELS):
        folder = HERE / name
        shutil.rmtree(folder, ignore_errors=True)
        model = make_model(name, seed)
        if name == BFLOAT16:
            # Stored in bfloat16, computed in float32: the logits are those of the rounded weights.
            model.to(torch.bfloat16).save_pretrained(folder)
            model = type(model).from_pretrained(folder, dtype=torch.float32).eval()
        else:
            model.save_pretrained(folder, max_shard_size=40_000 if name == SHARDED else "5GB")
        with torch.no_grad():
            logits = model(torch.tensor(ids)).logits.numpy()
        np.savez_compressed(folder / "logits.npz", ids=ids.astype(np.int32), logits=logits.astype(np.float32))


if __name__ == "__main__":
    main()
