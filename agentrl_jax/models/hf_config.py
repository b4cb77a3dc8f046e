"""`config.json` of a Hugging Face checkpoint to `ModelConfig` and back. What we do not compute is refused by name."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agentrl_jax.errors import ConfigError
from agentrl_jax.models.config import TRAITS, ModelConfig, RopeScaling

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
_ROPE_SCALING = {
    "factor": "factor",
    "low_freq_factor": "low_freq_factor",
    "high_freq_factor": "high_freq_factor",
    "original_max_positions": "original_max_position_embeddings",
}
# What their files may leave out, and what it then means.
_DEFAULTS = {
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "max_position_embeddings": 32_768,
}
_FAMILY_DEFAULTS: dict[str, dict[str, Any]] = {
    "qwen3": {"head_dim": 128},
    "llama": {"max_position_embeddings": 2048},
    "glm": {"head_dim": 128, "rms_norm_eps": 1.5625e-7, "max_position_embeddings": 131_072, "attention_bias": True},
    "glm4": {"head_dim": 128, "rms_norm_eps": 1.5625e-7, "max_position_embeddings": 131_072, "attention_bias": True},
}
# Fields with one value that we compute; null means the same.
_REQUIRED = {
    "hidden_act": "silu",
    "mlp_bias": False,
    "use_sliding_window": False,
    "rope_interleaved": False,
    "attention_dropout": 0.0,
    "quantization_config": None,
}
# Fields that say nothing about what the layers compute, whatever their value.
_UNUSED = {
    *("architectures", "model_type", "torch_dtype", "dtype", "transformers_version", "use_cache", "initializer_range"),
    *("bos_token_id", "eos_token_id", "pad_token_id", "pretraining_tp", "max_window_layers", "sliding_window"),
    *("is_llama_config", "transformers.js_config", "attention_bias", "rope_theta", "rope_scaling", "rope_parameters"),
    *("partial_rotary_factor", "layer_types", "chunk_size_feed_forward", "problem_type", "id2label", "label2id"),
    *("return_dict", "output_attentions", "output_hidden_states", "unsloth_version", "unsloth_fixed"),
}
TOKEN_IDS = ("bos_token_id", "eos_token_id", "pad_token_id")
_ROPE_THETA, _GLM_ROTARY_FRAC = 10_000.0, 0.5  # where the file does not say


def read_json(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file of a checkpoint. Raises ConfigError if there is none."""
    try:
        data = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise ConfigError(f"expected a Hugging Face checkpoint, but there is no {path}") from None
    except ValueError as error:
        raise ConfigError(f"{path} must hold JSON: {error}") from error
    if not isinstance(data, dict):
        raise ConfigError(f"{path} must hold a JSON object, got {type(data).__name__}")
    return data


def to_hf_config(config: ModelConfig, *, dtype: str) -> dict[str, Any]:
    """Return the `config.json` with which transformers and SGLang load `config`.

    Rotary settings stand both where transformers 4 (and SGLang) and where transformers 5 read them.
    """
    shared = {theirs: getattr(config, ours) for ours, theirs in _NAMES.items()}
    rope: dict[str, Any] = {"rope_type": "default"}
    if config.rope_scaling is not None:
        scaling = config.rope_scaling
        rope = {"rope_type": "llama3"} | {theirs: getattr(scaling, ours) for ours, theirs in _ROPE_SCALING.items()}
    partial = {"partial_rotary_factor": config.rotary_frac} if config.traits.rotates_neighbours else {}
    data = {
        "architectures": [config.traits.architecture],
        "model_type": config.family,
        "dtype": dtype,
        "torch_dtype": dtype,
        **shared,
        "hidden_act": "silu",
        "attention_dropout": 0.0,
        "initializer_range": 0.02,
        "rope_theta": config.rope_theta,
        "rope_scaling": rope if config.rope_scaling else None,
        "rope_parameters": rope | {"rope_theta": config.rope_theta} | partial,
        **partial,
        "use_cache": True,
    }
    if config.family in ("qwen2", "qwen3"):
        data |= {"sliding_window": None, "use_sliding_window": False}
    if config.family != "qwen2":
        data["attention_bias"] = config.qkv_bias
    if config.family == "llama":
        data["mlp_bias"] = False
    return data


def from_hf_config(data: Mapping[str, Any], *, source: str) -> ModelConfig:
    """Return the architecture that a `config.json` describes; `source` names it in messages.

    Raises ConfigError if it is a decoder of none of our families, or has a field that we do not know, unless it is
    switched off (null, false, 0 or empty): it may change what the layers compute.
    """
    family = data.get("model_type")
    if family not in TRAITS:
        raise ConfigError(f"{source}: model_type must be one of {', '.join(TRAITS)}, got {family!r}")
    _check_fields(data, source)
    given = {name: value for name, value in data.items() if value is not None}
    values = _DEFAULTS | _FAMILY_DEFAULTS.get(family, {}) | given
    if values.get("num_attention_heads"):
        if family == "llama":
            values.setdefault("num_key_value_heads", values["num_attention_heads"])
        values.setdefault("head_dim", values.get("hidden_size", 0) // values["num_attention_heads"])
    missing = sorted(theirs for theirs in _NAMES.values() if theirs not in values)
    if missing:
        raise ConfigError(f"{source}: expected the fields {', '.join(missing)}, got none of them")
    qkv_bias = family == "qwen2" or bool(values.get("attention_bias", False))
    if qkv_bias not in TRAITS[family].qkv_biases:
        raise ConfigError(f"{source}: attention_bias must be false for {family}, got {values['attention_bias']!r}")
    return ModelConfig(
        family=family,
        qkv_bias=qkv_bias,
        **_rope(values, source),
        **{ours: values[theirs] for ours, theirs in _NAMES.items()},
    )


def _check_fields(data: Mapping[str, Any], source: str) -> None:
    for name, expected in _REQUIRED.items():
        value = data.get(name)
        if value is not None and value != expected:
            raise ConfigError(f"{source}: {name} must be {expected!r}, got {value!r}")
    strange = set(data.get("layer_types") or ()) - {"full_attention"}
    if strange:
        raise ConfigError(f"{source}: layer_types must all be 'full_attention', got {', '.join(sorted(strange))}")
    if data["model_type"] not in ("qwen2", "qwen3") and data.get("sliding_window"):
        raise ConfigError(f"{source}: sliding_window must be null, got {data['sliding_window']!r}")
    known = _UNUSED | set(_REQUIRED) | set(_NAMES.values())
    unknown = sorted(name for name, value in data.items() if value and name not in known and not name.startswith("_"))
    if unknown:
        raise ConfigError(f"{source}: we do not know what these fields ask for: {', '.join(unknown)}")


def _rope(values: Mapping[str, Any], source: str) -> dict[str, Any]:
    """Our rotary fields, from where transformers 5 (`rope_parameters`) or 4 (top level, `rope_scaling`) keep them."""
    newer, older = (dict(values.get(name) or {}) for name in ("rope_parameters", "rope_scaling"))
    older |= {name: values[name] for name in ("rope_theta", "partial_rotary_factor") if name in values}
    for settings in (newer, older):
        kind = settings.pop("type", None)
        settings["rope_type"] = settings.get("rope_type", kind) or "default"
    if not values.get("rope_scaling"):
        del older["rope_type"]
    twice = sorted(name for name in newer.keys() & older.keys() if newer[name] != older[name])
    if values.get("rope_parameters") and twice:
        raise ConfigError(
            f"{source}: stated twice and differently: "
            + ", ".join(f"{name} as {older[name]!r} and {newer[name]!r}" for name in twice)
        )
    rope = newer | older
    kind = rope.pop("rope_type")
    theta = float(rope.pop("rope_theta", _ROPE_THETA))
    default = _GLM_ROTARY_FRAC if TRAITS[values["model_type"]].rotates_neighbours else 1.0
    rotary_frac = float(rope.pop("partial_rotary_factor", default))
    scaling = None
    if kind == "llama3":
        rope.setdefault("original_max_position_embeddings", values["max_position_embeddings"])
        absent = sorted(set(_ROPE_SCALING.values()) - rope.keys())
        if absent:
            raise ConfigError(f"{source}: rope scaling needs {', '.join(absent)}")
        scaling = RopeScaling(**{ours: rope.pop(theirs) for ours, theirs in _ROPE_SCALING.items()})
    elif kind != "default":
        raise ConfigError(f"{source}: rope_type must be 'default' or 'llama3', got {kind!r}")
    if rope:
        raise ConfigError(f"{source}: rope settings that we do not know: {', '.join(sorted(rope))}")
    return {"rope_theta": theta, "rope_scaling": scaling, "rotary_frac": rotary_frac}
