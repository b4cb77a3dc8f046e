"""Writes this folder's checkpoints and logits with transformers, which is the reference. Needs torch.

    python tests/models/golden/make_golden.py

Tiny random Qwen2 models (grouped queries, biases that are not 0, norms that are not 1), tied and untied, and their
logits on two unpadded sequences.
"""

import shutil
from pathlib import Path

import numpy as np
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

HERE = Path(__file__).resolve().parent


def make_model(*, tie_embeddings: bool, seed: int) -> Qwen2ForCausalLM:
    torch.manual_seed(seed)
    config = Qwen2Config(
        vocab_size=64,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=48,
        max_position_embeddings=512,
        rope_parameters={"rope_type": "default", "rope_theta": 10_000.0},
        rms_norm_eps=1e-6,
        tie_word_embeddings=tie_embeddings,
    )
    model = Qwen2ForCausalLM(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn_like(parameter)
            if "norm" in name:
                parameter.copy_(1 + 0.3 * noise)
            else:
                parameter.copy_(0.3 * noise)
    return model


def main() -> None:
    ids = np.random.default_rng(0).integers(0, 64, (2, 24))
    for name, tie_embeddings in (("tied", True), ("untied", False)):
        folder = HERE / name
        shutil.rmtree(folder, ignore_errors=True)
        model = make_model(tie_embeddings=tie_embeddings, seed=int(tie_embeddings))
        model.save_pretrained(folder)
        (folder / "generation_config.json").unlink()
        with torch.no_grad():
            logits = model(torch.tensor(ids)).logits.numpy()
        np.savez_compressed(folder / "logits.npz", ids=ids.astype(np.int32), logits=logits.astype(np.float32))


if __name__ == "__main__":
    main()
