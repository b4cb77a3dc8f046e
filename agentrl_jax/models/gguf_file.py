"""A GGUF file as tensors of Hugging Face's names and layout, for models that come in no other form.

The `gguf` package maps the file and dequantises, to float32, what is asked for. The tokenizer inside the file is read
by rendering/gguf_tokenizer.py, if there is no tokenizer.json beside it.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from agentrl_jax.errors import ConfigError
from agentrl_jax.models.config import Family, ModelConfig
from agentrl_jax.models.families import hf_entries
from agentrl_jax.models.specs import HostArray, Index, ParamSpec

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


class GgufTensor:
    """A tensor of a mapped file under Hugging Face's layout: `tensor[rectangle]` dequantises that part to float32.

    No more of the file is read than the blocks of numbers that hold the part.
    """

    def __init__(self, tensor: Any, path: Path, row_order: npt.NDArray[np.int64] | None = None) -> None:
        """row_order: where the file has each row, None if in their order."""
        self._tensor, self._path, self._row_order = tensor, path, row_order

    def __getitem__(self, rectangle: Index) -> HostArray:
        rows: Any = rectangle[0] if self._row_order is None else self._row_order[rectangle[0]]
        if len(rectangle) == 1:
            return self._dequantised(self._tensor.data[rows])
        columns = range(int(self._tensor.shape[0]))[rectangle[1]]
        stored = self._tensor.data
        # A row is stored as blocks of numbers, each of so many entries of `data`.
        block = self._numbers_per_block()
        entries = stored.shape[1] * block // int(self._tensor.shape[0])
        first, last = columns.start // block, -(-columns.stop // block)
        part = self._dequantised(stored[rows, first * entries : last * entries])
        return part[:, columns.start - first * block : columns.stop - first * block]

    def _numbers_per_block(self) -> int:
        import gguf

        size, _ = gguf.GGML_QUANT_SIZES[self._tensor.tensor_type]
        return int(size)

    def _dequantised(self, data: HostArray) -> HostArray:
        import gguf

        try:
            values: HostArray = gguf.dequantize(np.ascontiguousarray(data), self._tensor.tensor_type)
        except NotImplementedError as error:
            kind = self._tensor.tensor_type.name
            raise ConfigError(f"{self._path}: {self._tensor.name} is quantised as {kind}: {error}") from error
        return values.astype(np.float32, copy=False)


def open_gguf(path: Path) -> tuple[ModelConfig, dict[str, GgufTensor]]:
    """Return the architecture of a GGUF file of architecture llama or qwen2, and its tensors by Hugging Face's names.

    Raises ConfigError if the `gguf` package is not installed, the file is damaged, or it holds a setting or a tensor
    that we do not compute with.
    """
    reader = _open(path)
    config, is_permuted = _architecture(reader, path)
    found = {tensor.name: tensor for tensor in reader.tensors}
    expected = {_gguf_name(spec, layer): spec.hf_shape for _, spec, layer in hf_entries(config)}
    if found.keys() != expected.keys():
        missing, besides = sorted(expected.keys() - found.keys()), sorted(found.keys() - expected.keys())
        raise ConfigError(f"{path}: the tensors do not fit its settings: missing {missing}, unexpected {besides}")
    for name, shape in expected.items():
        if (other := _shape(found[name])) != shape:
            raise ConfigError(f"{path}: {name} must have shape {shape}, got {other}")
    tensors = {}
    for name, spec, layer in hf_entries(config):
        has_order = is_permuted and spec.path[-2:] in (("q", "kernel"), ("k", "kernel"))
        order = _row_order(spec.hf_shape[0], config.head_dim) if has_order else None
        tensors[name] = GgufTensor(found[_gguf_name(spec, layer)], path, order)
    return config, tensors


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


def _row_order(num_rows: int, head_dim: int) -> npt.NDArray[np.int64]:
    """Where llama.cpp has each row of q or k: rotary pairs next to each other, not half a head apart."""
    theirs = np.arange(num_rows).reshape(-1, head_dim // 2, 2)
    return theirs.swapaxes(1, 2).reshape(-1)
