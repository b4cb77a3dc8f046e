"""`config.json` of a Hugging Face checkpoint to `ModelConfig` and back. What we do not compute is refused."""

from collections.abc import Mapping
from typing import Any

from agentrl_jax.errors import ConfigError
from agentrl_jax.models.config import ModelConfig

# Their name of each of our fields that both sides state outright.
_NAMES = {
    "vocab_size": "vocab_size",
    "width": "hidden_size",
    "num_layers": "num_hidden_layers",
    "num_heads": "num_attention_heads",
    "num_kv_heads": "num_key_value_heads",
    "head_dim": "head_dim",
    "mlp_width": "intermediate_size",
    "norm_eps": "rms_norm_eps",
    "tie_embeddings": "tie_word_embeddings",
    "max_positions": "max_position_embeddings",
}
# What their files may leave out, and what it then means.
_DEFAULTS = {"rms_norm_eps": 1e-6, "tie_word_embeddings": False, "max_position_embeddings": 32_768}
_ROPE_THETA = 10_000.0


def to_hf_config(config: ModelConfig, *, dtype: str) -> dict[str, Any]:
    """Return the `config.json` with which transformers and SGLang load `config` as Qwen2.

    `rope_theta` stands both where transformers 4 (and SGLang) and where transformers 5 read it.
    """
    shared = {theirs: getattr(config, ours) for ours, theirs in _NAMES.items()}
    return {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "dtype": dtype,
        "torch_dtype": dtype,
        **shared,
        "hidden_act": "silu",
        "attention_dropout": 0.0,
        "initializer_range": 0.02,
        "rope_theta": config.rope_theta,
        "rope_parameters": {"rope_type": "default", "rope_theta": config.rope_theta},
        "sliding_window": None,
        "use_sliding_window": False,
        "use_cache": True,
    }


def from_hf_config(data: Mapping[str, Any], *, source: str) -> ModelConfig:
    """Return the architecture that a `config.json` describes; `source` names it in messages.

    Raises ConfigError if it is not a Qwen2 decoder, or uses something that we do not compute.
    """
    rope = data.get("rope_parameters") or data.get("rope_scaling") or {}
    found = {
        "model_type": data.get("model_type"),
        "hidden_act": data.get("hidden_act", "silu"),
        "use_sliding_window": data.get("use_sliding_window", False),
        "rope_type": rope.get("rope_type", rope.get("type", "default")),
        "quantization_config": data.get("quantization_config"),
    }
    supported = {
        "model_type": "qwen2",
        "hidden_act": "silu",
        "use_sliding_window": False,
        "rope_type": "default",
        "quantization_config": None,
    }
    for name, value in found.items():
        if value != supported[name]:
            raise ConfigError(f"{source}: {name} must be {supported[name]!r}, got {value!r}")
    values = _DEFAULTS | {name: value for name, value in data.items() if value is not None}
    if "head_dim" not in values and values.get("num_attention_heads"):
        values["head_dim"] = values.get("hidden_size", 0) // values["num_attention_heads"]
    missing = sorted(theirs for theirs in _NAMES.values() if theirs not in values)
    if missing:
        raise ConfigError(f"{source}: expected the fields {', '.join(missing)}, got none of them")
    theta: Any = rope.get("rope_theta", values.get("rope_theta", _ROPE_THETA))
    return ModelConfig(rope_theta=float(theta), **{ours: values[theirs] for ours, theirs in _NAMES.items()})
