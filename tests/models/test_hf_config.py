"""config.json there and back: published ones are read, and what we do not compute is refused by name."""

import pytest

from agentrl_jax.errors import ConfigError
from agentrl_jax.models.config import TRAITS, ModelConfig, RopeScaling
from agentrl_jax.models.hf_config import from_hf_config, to_hf_config
from agentrl_jax.models.published import PUBLISHED

CONFIG = ModelConfig(vocab_size=13, width=8, num_layers=2, num_heads=4, num_kv_heads=2, head_dim=6, mlp_width=10)

_COMMON = {"attention_dropout": 0.0, "hidden_act": "silu", "initializer_range": 0.02, "use_cache": True}
# As the models' authors wrote them.
FILES = {
    "Qwen2.5-7B-Instruct": {
        **_COMMON,
        "architectures": ["Qwen2ForCausalLM"],
        "bos_token_id": 151643,
        "eos_token_id": 151645,
        "hidden_size": 3584,
        "intermediate_size": 18944,
        "max_position_embeddings": 32768,
        "max_window_layers": 28,
        "model_type": "qwen2",
        "num_attention_heads": 28,
        "num_hidden_layers": 28,
        "num_key_value_heads": 4,
        "rms_norm_eps": 1e-06,
        "rope_theta": 1000000.0,
        "sliding_window": 131072,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "transformers_version": "4.43.1",
        "use_sliding_window": False,
        "vocab_size": 152064,
    },
    "Qwen3-0.6B": {
        **_COMMON,
        "architectures": ["Qwen3ForCausalLM"],
        "attention_bias": False,
        "bos_token_id": 151643,
        "eos_token_id": 151645,
        "head_dim": 128,
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "max_position_embeddings": 40960,
        "max_window_layers": 28,
        "model_type": "qwen3",
        "num_attention_heads": 16,
        "num_hidden_layers": 28,
        "num_key_value_heads": 8,
        "rms_norm_eps": 1e-06,
        "rope_scaling": None,
        "rope_theta": 1000000,
        "sliding_window": None,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "transformers_version": "4.51.0",
        "use_sliding_window": False,
        "vocab_size": 151936,
    },
    "SmolLM2-135M-Instruct": {
        **_COMMON,
        "architectures": ["LlamaForCausalLM"],
        "attention_bias": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "hidden_size": 576,
        "initializer_range": 0.041666666666666664,
        "intermediate_size": 1536,
        "is_llama_config": True,
        "max_position_embeddings": 8192,
        "mlp_bias": False,
        "model_type": "llama",
        "num_attention_heads": 9,
        "num_hidden_layers": 30,
        "num_key_value_heads": 3,
        "pad_token_id": 2,
        "pretraining_tp": 1,
        "rms_norm_eps": 1e-05,
        "rope_interleaved": False,
        "rope_scaling": None,
        "rope_theta": 100000,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "transformers.js_config": {"kv_cache_dtype": {"q4f16": "float16"}},
        "transformers_version": "4.42.3",
        "vocab_size": 49152,
    },
    "Llama-3.2-1B-Instruct": {
        **_COMMON,
        "architectures": ["LlamaForCausalLM"],
        "attention_bias": False,
        "bos_token_id": 128000,
        "eos_token_id": [128001, 128008, 128009],
        "head_dim": 64,
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "max_position_embeddings": 131072,
        "mlp_bias": False,
        "model_type": "llama",
        "num_attention_heads": 32,
        "num_hidden_layers": 16,
        "num_key_value_heads": 8,
        "pretraining_tp": 1,
        "rms_norm_eps": 1e-05,
        "rope_scaling": {
            "factor": 32.0,
            "high_freq_factor": 4.0,
            "low_freq_factor": 1.0,
            "original_max_position_embeddings": 8192,
            "rope_type": "llama3",
        },
        "rope_theta": 500000.0,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "transformers_version": "4.45.0.dev0",
        "vocab_size": 128256,
    },
    "GLM-4-9B-0414": {
        **_COMMON,
        "architectures": ["Glm4ForCausalLM"],
        "attention_bias": True,
        "eos_token_id": [151329, 151336, 151338],
        "head_dim": 128,
        "hidden_size": 4096,
        "intermediate_size": 13696,
        "max_position_embeddings": 32768,
        "model_type": "glm4",
        "num_attention_heads": 32,
        "num_hidden_layers": 40,
        "num_key_value_heads": 2,
        "pad_token_id": 151329,
        "partial_rotary_factor": 0.5,
        "rms_norm_eps": 1e-05,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "transformers_version": "4.52.0.dev0",
        "vocab_size": 151552,
    },
}


@pytest.mark.parametrize("name", FILES)
def test_published_files_are_read(name):
    assert from_hf_config(FILES[name], source="x") == PUBLISHED[name]


@pytest.mark.parametrize("name", PUBLISHED)
def test_there_and_back(name):
    assert from_hf_config(to_hf_config(PUBLISHED[name], dtype="bfloat16"), source="x") == PUBLISHED[name]


def test_both_generations_of_readers_find_the_rotary_settings():
    data = to_hf_config(PUBLISHED["Llama-3.2-1B-Instruct"], dtype="bfloat16")
    scaling = FILES["Llama-3.2-1B-Instruct"]["rope_scaling"]
    assert (data["rope_theta"], data["rope_scaling"]) == (500_000.0, scaling)
    assert data["rope_parameters"] == scaling | {"rope_theta": 500_000.0}
    glm = to_hf_config(PUBLISHED["GLM-4-9B-0414"], dtype="bfloat16")
    assert glm["partial_rotary_factor"] == glm["rope_parameters"]["partial_rotary_factor"] == 0.5
    for older in ("rope_scaling", "rope_theta", "partial_rotary_factor"):
        newer = {key: value for key, value in data.items() if key != older}
        assert from_hf_config(newer, source="x") == PUBLISHED["Llama-3.2-1B-Instruct"]


def test_older_files_say_less():
    old = {
        "model_type": "qwen2",
        "vocab_size": 13,
        "hidden_size": 8,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 10,
        "rope_theta": 1e6,
        "sliding_window": 99,
        "use_sliding_window": False,
    }
    config = from_hf_config(old, source="x")
    assert (config.head_dim, config.rope_theta, config.tie_embeddings) == (2, 1e6, False)
    assert from_hf_config(old | {"rope_theta": None}, source="x").rope_theta == 10_000.0
    glm = from_hf_config(old | {"model_type": "glm", "sliding_window": None}, source="x")
    assert (glm.head_dim, glm.rotary_frac, glm.qkv_bias, glm.norm_eps) == (128, 0.5, True, 1.5625e-7)
    llama = {key: value for key, value in old.items() if key != "num_key_value_heads"}
    assert from_hf_config(llama | {"model_type": "llama", "sliding_window": None}, source="x").num_kv_heads == 4
    new = old | {"rope_theta": None, "rope_parameters": {"rope_theta": 5.0}}
    assert from_hf_config(new, source="x").rope_theta == 5.0


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("Qwen2.5-7B-Instruct", {"model_type": "mixtral"}, "model_type must be one of qwen2, .*got 'mixtral'"),
        ("Qwen2.5-7B-Instruct", {"hidden_act": "gelu"}, "hidden_act must be 'silu', got 'gelu'"),
        ("Qwen2.5-7B-Instruct", {"use_sliding_window": True}, "use_sliding_window must be False"),
        ("Llama-3.2-1B-Instruct", {"sliding_window": 4096}, "sliding_window must be null, got 4096"),
        ("Qwen3-0.6B", {"layer_types": ["full_attention", "sliding_attention"]}, "got sliding_attention"),
        ("Qwen2.5-7B-Instruct", {"rope_scaling": {"type": "yarn", "factor": 4.0}}, "rope_type .*got 'yarn'"),
        ("Qwen2.5-7B-Instruct", {"rope_parameters": {"rope_type": "linear"}}, "rope_type .*got 'linear'"),
        ("Qwen2.5-7B-Instruct", {"rope_parameters": {"rope_theta": 1e4}}, "as 1000000.0 and 10000.0"),
        ("Llama-3.2-1B-Instruct", {"rope_parameters": {"rope_type": "default"}}, "'llama3' and 'default'"),
        ("Llama-3.2-1B-Instruct", {"rope_scaling": {"rope_type": "llama3"}}, "needs factor, high_freq_factor, low"),
        (
            "Llama-3.2-1B-Instruct",
            {"rope_parameters": {"rope_type": "llama3", "mrope_section": [1]}},
            "do not know: mrope_section",
        ),
        ("Qwen3-0.6B", {"attention_bias": True}, "attention_bias must be false for qwen3"),
        ("Llama-3.2-1B-Instruct", {"attention_bias": True}, "attention_bias must be false for llama"),
        ("Llama-3.2-1B-Instruct", {"mlp_bias": True}, "mlp_bias must be False"),
        ("SmolLM2-135M-Instruct", {"rope_interleaved": True}, "rope_interleaved must be False"),
        ("SmolLM2-135M-Instruct", {"partial_rotary_factor": 0.5}, "rotary_frac must be 1 for llama"),
        ("Qwen3-0.6B", {"quantization_config": {"bits": 4}}, "quantization_config must be None"),
        ("Qwen3-0.6B", {"num_experts": 8, "logit_scale": 2.0}, "fields ask for: logit_scale, num_experts"),
        ("Qwen3-0.6B", {"vocab_size": None}, "expected the fields vocab_size"),
    ],
)
def test_what_we_do_not_compute_is_refused(name, changes, message):
    with pytest.raises(ConfigError, match=message):
        from_hf_config(FILES[name] | changes, source="the file")


def test_a_feature_that_is_off_asks_for_nothing():
    assert from_hf_config(FILES["Qwen3-0.6B"] | {"logit_scale": None, "num_experts": 0}, source="x").family == "qwen3"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"family": "gemma"}, "family must be one of"),
        ({"family": "qwen3"}, "qkv_bias must be False for qwen3, got True"),
        ({"qkv_bias": False}, "qkv_bias must be True for qwen2"),
        ({"rotary_frac": 0.5}, "rotary_frac must be 1 for qwen2"),
        ({"family": "glm", "rotary_frac": 0.5}, "even part of each head, got 3"),
        ({"family": "glm", "rotary_frac": 0.0}, r"rotary_frac must be in \(0, 1\]"),
        ({"head_dim": 5}, "even part of each head, got 5"),
        ({"num_kv_heads": 3}, "num_heads must be a multiple"),
        ({"num_layers": 0}, "num_layers must be >= 1"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(changes, message):
    settings = {name: getattr(CONFIG, name) for name in ModelConfig.__slots__}
    with pytest.raises(ConfigError, match=message):
        ModelConfig(**(settings | changes))


def test_every_family_has_its_traits():
    assert set(TRAITS) == {"qwen2", "qwen3", "llama", "glm", "glm4"}
    assert RopeScaling(factor=1.0, low_freq_factor=1.0, high_freq_factor=2.0, original_max_positions=1).factor == 1.0
