"""Architectures of published models as values: to plan memory, to test and to measure with, without their weights."""

from dataclasses import replace

from agentrl_jax.models.config import ModelConfig, RopeScaling

_QWEN2_5 = ModelConfig(
    vocab_size=151_936, width=896, num_layers=24, num_heads=14, num_kv_heads=2, head_dim=64, mlp_width=4864
)
_QWEN2_5_LARGE = replace(_QWEN2_5, vocab_size=152_064, head_dim=128, tie_embeddings=False)
_QWEN3 = ModelConfig(
    family="qwen3",
    vocab_size=151_936,
    width=1024,
    num_layers=28,
    num_heads=16,
    num_kv_heads=8,
    head_dim=128,
    mlp_width=3072,
    qkv_bias=False,
    max_positions=40_960,
)
_LLAMA_3_2 = ModelConfig(
    family="llama",
    vocab_size=128_256,
    width=2048,
    num_layers=16,
    num_heads=32,
    num_kv_heads=8,
    head_dim=64,
    mlp_width=8192,
    qkv_bias=False,
    rope_theta=500_000.0,
    rope_scaling=RopeScaling(factor=32.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_positions=8192),
    norm_eps=1e-5,
    max_positions=131_072,
)
_GLM_4_9B = ModelConfig(
    family="glm4",
    vocab_size=151_552,
    width=4096,
    num_layers=40,
    num_heads=32,
    num_kv_heads=2,
    head_dim=128,
    mlp_width=13_696,
    rope_theta=10_000.0,
    rotary_frac=0.5,
    norm_eps=1e-5,
    tie_embeddings=False,
)

PUBLISHED: dict[str, ModelConfig] = {
    "Qwen2.5-0.5B-Instruct": _QWEN2_5,
    "Qwen2.5-1.5B-Instruct": replace(_QWEN2_5, width=1536, num_layers=28, num_heads=12, head_dim=128, mlp_width=8960),
    "Qwen2.5-3B-Instruct": replace(_QWEN2_5, width=2048, num_layers=36, num_heads=16, head_dim=128, mlp_width=11_008),
    "Qwen2.5-7B-Instruct": replace(
        _QWEN2_5_LARGE, width=3584, num_layers=28, num_heads=28, num_kv_heads=4, mlp_width=18_944
    ),
    "Qwen2.5-14B-Instruct": replace(
        _QWEN2_5_LARGE, width=5120, num_layers=48, num_heads=40, num_kv_heads=8, mlp_width=13_824
    ),
    "Qwen2.5-32B-Instruct": replace(
        _QWEN2_5_LARGE, width=5120, num_layers=64, num_heads=40, num_kv_heads=8, mlp_width=27_648
    ),
    "Qwen2.5-72B-Instruct": replace(
        _QWEN2_5_LARGE, width=8192, num_layers=80, num_heads=64, num_kv_heads=8, mlp_width=29_568
    ),
    "Qwen3-0.6B": _QWEN3,
    "Qwen3-8B": replace(_QWEN3, width=4096, num_layers=36, num_heads=32, mlp_width=12_288, tie_embeddings=False),
    "SmolLM2-135M-Instruct": replace(
        _LLAMA_3_2,
        vocab_size=49_152,
        width=576,
        num_layers=30,
        num_heads=9,
        num_kv_heads=3,
        mlp_width=1536,
        rope_theta=100_000.0,
        rope_scaling=None,
        max_positions=8192,
    ),
    "Llama-3.2-1B-Instruct": _LLAMA_3_2,
    "GLM-4-9B-0414": _GLM_4_9B,
}
