"""A GGUF file to host params, with the `gguf` package, for models that come in no other form.

Every tensor is dequantised to float32. The tokenizer inside the file is not read: put the model's tokenizer.json
and tokenizer_config.json, of its Hugging Face repository, beside it.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from agentrl_jax.errors import ConfigError
from agentrl_jax.models.config import Family, ModelConfig
from agentrl_jax.models.families import hf_entries
from agentrl_jax.models.params import Params, build_tree
from agentrl_jax.models.specs import HostArray, ParamSpec

if TYPE_CHECKING:
    from gguf import GGUFReader

# Their architecture -> ours, and whether llama.cpp stores the rows of q and k in its own order.
_FAMILIES: dict[str, tuple[Family, bool]] = {"llama": ("llama", True), "qwen2": ("qwen2", False)}

# Hugging Face's module -> theirs.
_MODULES = {
    "model.embed_tokens": "token_embd",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "model.norm": "output_norm",
    "lm_head": "output",
}
_KNOWN = {
    *("block_count", "context_length", "embedding_length", "feed_forward_length", "vocab_size"),
    *("attention.head_count", "attention.head_count_kv", "attention.layer_norm_rms_epsilon"),
    *("attention.key_length", "attention.value_length", "rope.freq_base", "rope.dimension_count"),
}


def inspect_gguf(path: Path) -> ModelConfig:
    """Return the architecture of a GGUF file, reading no weights. Raises ConfigError as `read_gguf` does."""
    return _open_checked(path)[0]


def read_gguf(path: Path) -> tuple[ModelConfig, Params]:
    """Return the architecture and float32 NumPy params of a GGUF file of architecture llama or qwen2.

    Raises ConfigError if the `gguf` package is not installed, the file is damaged, or it holds a setting or a tensor
    that we do not compute with.
    """
    config, is_permuted, tensors = _open_checked(path)

    def read_tensor(spec: ParamSpec, layer: int | None) -> HostArray:
        array = _dequantised(tensors[_gguf_name(spec, layer)], path)
        if is_permuted and spec.path[-2:] in (("q", "kernel"), ("k", "kernel")):
            array = _unpermuted(array, config.head_dim)
        return spec.from_hf(array)

    def read_leaf(spec: ParamSpec) -> HostArray:
        if not spec.is_stacked:
            return np.ascontiguousarray(read_tensor(spec, None))
        leaf = np.empty(spec.shape, np.float32)
        for layer in range(config.num_layers):
            leaf[layer] = read_tensor(spec, layer)
        return leaf

    return config, build_tree(config, read_leaf)


def _open_checked(path: Path) -> tuple[ModelConfig, bool, dict[str, Any]]:
    """The architecture, whether q and k are in llama.cpp's order, and the tensors by name."""
    reader = _open(path)
    config, is_permuted = _architecture(reader, path)
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    expected = {_gguf_name(spec, layer): spec.hf_shape for _, spec, layer in hf_entries(config)}
    if tensors.keys() != expected.keys():
        missing, besides = sorted(expected.keys() - tensors.keys()), sorted(tensors.keys() - expected.keys())
        raise ConfigError(f"{path}: the tensors do not fit its settings: missing {missing}, unexpected {besides}")
    for name, shape in expected.items():
        if (found := _shape(tensors[name])) != shape:
            raise ConfigError(f"{path}: {name} must have shape {shape}, got {found}")
    return config, is_permuted, tensors


def _shape(tensor: Any) -> tuple[int, ...]:
    return tuple(int(size) for size in reversed(tensor.shape))


def _open(path: Path) -> "GGUFReader":
    try:
        import gguf
    except ImportError as error:
        raise ConfigError(f"{path}: reading GGUF files needs the gguf package: pip install gguf") from error
    try:
        return gguf.GGUFReader(path)
    except (OSError, ValueError, IndexError) as error:
        raise ConfigError(f"{path} is no GGUF file that can be read: {error}") from error


def _architecture(reader: "GGUFReader", path: Path) -> tuple[ModelConfig, bool]:
    fields = {name: field.contents() for name, field in reader.fields.items() if not name.startswith("tokenizer.")}
    architecture = fields.get("general.architecture")
    if architecture not in _FAMILIES:
        raise ConfigError(f"{path}: the architecture must be one of {', '.join(_FAMILIES)}, got {architecture!r}")
    family, is_permuted = _FAMILIES[architecture]
    prefix = f"{architecture}."
    values = {name.removeprefix(prefix): value for name, value in fields.items() if name.startswith(prefix)}
    if values.get("rope.scaling.type") == "none":
        values = {name: value for name, value in values.items() if not name.startswith("rope.scaling.")}
    unknown = sorted(name for name, value in values.items() if value and name not in _KNOWN)
    if unknown:
        raise ConfigError(f"{path}: we do not know what these settings ask for: {', '.join(unknown)}")
    shapes = {tensor.name: _shape(tensor) for tensor in reader.tensors}
    return _model_config(values, shapes, family, path), is_permuted


def _model_config(
    values: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]], family: Family, path: Path
) -> ModelConfig:
    needed = ("block_count", "embedding_length", "feed_forward_length", "attention.head_count", "context_length")
    missing = [name for name in (*needed, "attention.layer_norm_rms_epsilon") if name not in values]
    if missing or "token_embd.weight" not in shapes:
        raise ConfigError(f"{path}: expected {', '.join(missing) or 'token_embd.weight'}, got nothing of the kind")
    num_heads, num_kv_heads = (
        values.get(name, values["attention.head_count"]) for name in ("attention.head_count", "attention.head_count_kv")
    )
    if not isinstance(num_heads, int) or not isinstance(num_kv_heads, int):
        raise ConfigError(f"{path}: layers must have equal numbers of heads, got {num_heads} and {num_kv_heads}")
    head_dim = values.get("attention.key_length", values["embedding_length"] // num_heads)
    for name in ("attention.value_length", "rope.dimension_count"):
        if values.get(name, head_dim) != head_dim:
            raise ConfigError(f"{path}: {name} must be the head size {head_dim}, got {values[name]}")
    return ModelConfig(
        family=family,
        vocab_size=shapes["token_embd.weight"][0],
        width=values["embedding_length"],
        num_layers=values["block_count"],
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        mlp_width=values["feed_forward_length"],
        qkv_bias=family == "qwen2",
        rope_theta=_decimal(values.get("rope.freq_base", 10_000.0)),
        norm_eps=_decimal(values["attention.layer_norm_rms_epsilon"]),
        tie_embeddings="output.weight" not in shapes,
        max_positions=values["context_length"],
    )


def _decimal(value: float) -> float:
    """The number that was written as a float32: 9.999999747378752e-06 was 1e-05."""
    return float(str(np.float32(value)))


def _gguf_name(spec: ParamSpec, layer: int | None) -> str:
    name = spec.hf_name if layer is None else spec.hf_name.removeprefix("model.layers.{layer}.")
    module, _, kind = name.rpartition(".")
    theirs = f"{_MODULES[module]}.{kind}"
    return theirs if layer is None else f"blk.{layer}.{theirs}"


def _dequantised(tensor: Any, path: Path) -> HostArray:
    import gguf

    try:
        values: HostArray = gguf.dequantize(tensor.data, tensor.tensor_type)
    except NotImplementedError as error:
        raise ConfigError(f"{path}: {tensor.name} is quantised as {tensor.tensor_type.name}: {error}") from error
    return values.astype(np.float32, copy=False)


def _unpermuted(array: HostArray, head_dim: int) -> HostArray:
    """Rows of q and k, whose rotary pairs llama.cpp puts next to each other, with the pairs half a head apart."""
    pairs = array.reshape(-1, head_dim // 2, 2, array.shape[-1])
    return pairs.swapaxes(1, 2).reshape(array.shape)
