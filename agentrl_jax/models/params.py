"""The parameters of a decoder, in one table from which everything about them is derived.

Ours: kernels as [inputs, outputs], the layers stacked on a leading axis. Hugging Face's: matrices as
[outputs, inputs], one tensor per layer. Values never change on the way, only their layout.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from agentrl_jax.errors import ConfigError
from agentrl_jax.models.config import ModelConfig
from agentrl_jax.seeding import derive_seed

Params: TypeAlias = dict[str, Any]
"""Nested dicts of arrays; see `param_specs`."""

Path: TypeAlias = tuple[str, ...]
HostArray: TypeAlias = npt.NDArray[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ParamSpec:
    """One leaf of the tree.

    shape, axes: of the leaf, the leading `layers` axis included where the leaf is stacked. `axes` are logical
      names for sharding.RULES.
    hf_name: Hugging Face's name, with `{layer}` where the leaf is stacked; hf_shape: of one such tensor.
    is_matrix: Hugging Face stores it transposed.
    initial: "normal" draws N(0, 1/fan_in), the others are constant.
    """

    path: Path
    shape: tuple[int, ...]
    axes: tuple[str | None, ...]
    hf_name: str
    hf_shape: tuple[int, ...]
    is_matrix: bool
    initial: Literal["normal", "zeros", "ones"]
    fan_in: int = 1

    @property
    def is_stacked(self) -> bool:
        return "{layer}" in self.hf_name

    @property
    def has_decay(self) -> bool:
        """Weight decay pulls on matrices and embeddings, not on biases and norms."""
        return self.initial == "normal"

    @property
    def layer_shape(self) -> tuple[int, ...]:
        """Our shape of what one Hugging Face tensor holds."""
        return self.shape[1:] if self.is_stacked else self.shape

    def to_hf(self, array: HostArray) -> HostArray:
        """Return one layer's array (or an unstacked leaf) in Hugging Face's layout, C-contiguous."""
        if self.is_matrix:
            return np.ascontiguousarray(array.reshape(self.hf_shape[::-1]).T)
        return np.ascontiguousarray(array.reshape(self.hf_shape))

    def from_hf(self, array: HostArray) -> HostArray:
        """The inverse of `to_hf`."""
        return (array.T if self.is_matrix else array).reshape(self.layer_shape)


def _matrix(
    path: str,
    hf_name: str,
    inputs: dict[str, int],
    outputs: dict[str, int],
) -> ParamSpec:
    """A kernel; `inputs` and `outputs` map logical axes to sizes."""
    fan_in, fan_out = prod(inputs.values()), prod(outputs.values())
    dims = inputs | outputs
    return ParamSpec(
        path=(*path.split("."), "kernel"),
        shape=tuple(dims.values()),
        axes=tuple(dims),
        hf_name=f"{hf_name}.weight",
        hf_shape=(fan_out, fan_in),
        is_matrix=True,
        initial="normal",
        fan_in=fan_in,
    )


def _vector(path: str, hf_name: str, dims: dict[str, int], initial: Literal["zeros", "ones"]) -> ParamSpec:
    return ParamSpec(
        path=tuple(path.split(".")),
        shape=tuple(dims.values()),
        axes=tuple(dims),
        hf_name=hf_name,
        hf_shape=(prod(dims.values()),),
        is_matrix=False,
        initial=initial,
    )


def _stacked(spec: ParamSpec, num_layers: int) -> ParamSpec:
    return ParamSpec(
        path=("layers", *spec.path),
        shape=(num_layers, *spec.shape),
        axes=("layers", *spec.axes),
        hf_name=f"model.layers.{{layer}}.{spec.hf_name}",
        hf_shape=spec.hf_shape,
        is_matrix=spec.is_matrix,
        initial=spec.initial,
        fan_in=spec.fan_in,
    )


def _layer_specs(config: ModelConfig) -> tuple[ParamSpec, ...]:
    width = {"width": config.width}
    heads = {"heads": config.num_heads, "head_dim": config.head_dim}
    kv_heads = {"kv_heads": config.num_kv_heads, "head_dim": config.head_dim}
    mlp = {"mlp": config.mlp_width}
    # A norm's scale is too small to be worth splitting.
    scale = {"norm": config.width}
    return (
        _vector("input_norm.scale", "input_layernorm.weight", scale, "ones"),
        _matrix("attention.q", "self_attn.q_proj", width, heads),
        _vector("attention.q.bias", "self_attn.q_proj.bias", heads, "zeros"),
        _matrix("attention.k", "self_attn.k_proj", width, kv_heads),
        _vector("attention.k.bias", "self_attn.k_proj.bias", kv_heads, "zeros"),
        _matrix("attention.v", "self_attn.v_proj", width, kv_heads),
        _vector("attention.v.bias", "self_attn.v_proj.bias", kv_heads, "zeros"),
        _matrix("attention.o", "self_attn.o_proj", heads, width),
        _vector("post_norm.scale", "post_attention_layernorm.weight", scale, "ones"),
        _matrix("mlp.gate", "mlp.gate_proj", width, mlp),
        _matrix("mlp.up", "mlp.up_proj", width, mlp),
        _matrix("mlp.down", "mlp.down_proj", mlp, width),
    )


def param_specs(config: ModelConfig) -> tuple[ParamSpec, ...]:
    """Return the table of all leaves, in the order in which Hugging Face lists them."""
    embedding = ParamSpec(
        path=("embed", "embedding"),
        shape=(config.vocab_size, config.width),
        axes=("vocab", "width"),
        hf_name="model.embed_tokens.weight",
        hf_shape=(config.vocab_size, config.width),
        is_matrix=False,
        initial="normal",
        fan_in=config.width,
    )
    final_norm = _vector("final_norm.scale", "model.norm.weight", {"norm": config.width}, "ones")
    lm_head = _matrix("lm_head", "lm_head", {"width": config.width}, {"head_vocab": config.vocab_size})
    layers = (_stacked(spec, config.num_layers) for spec in _layer_specs(config))
    return (embedding, *layers, final_norm, *(() if config.tie_embeddings else (lm_head,)))


def hf_entries(config: ModelConfig) -> Iterator[tuple[str, ParamSpec, int | None]]:
    """Yield (Hugging Face name, spec, layer) of every tensor, layer by layer; layer None for unstacked leaves."""
    specs = param_specs(config)
    stacked = [spec for spec in specs if spec.is_stacked]
    first = next(i for i, spec in enumerate(specs) if spec.is_stacked)
    for spec in specs[:first]:
        yield spec.hf_name, spec, None
    for layer in range(config.num_layers):
        for spec in stacked:
            yield spec.hf_name.format(layer=layer), spec, layer
    for spec in specs[first + len(stacked) :]:
        yield spec.hf_name, spec, None


def build_tree(config: ModelConfig, leaf: Callable[[ParamSpec], Any]) -> dict[str, Any]:
    """Return a tree of the params' structure with `leaf(spec)` at each leaf: arrays, shapes, shardings, masks."""
    tree: dict[str, Any] = {}
    for spec in param_specs(config):
        node = tree
        for name in spec.path[:-1]:
            node = node.setdefault(name, {})
        node[spec.path[-1]] = leaf(spec)
    return tree


def leaf_at(params: Mapping[str, Any], path: Path) -> Any:
    """Return the leaf at `path`; KeyError if there is none."""
    node: Any = params
    for name in path:
        node = node[name]
    return node


def init_params(config: ModelConfig, seed: int) -> Params:
    """Return fresh float32 host params: kernels and embeddings N(0, 1/fan_in), biases 0, norm scales 1.

    An embedding's fan-in is its width, so that tied logits start with unit variance. Every leaf has its own stream,
    derived from the seed and its path: the values depend on nothing else.
    """

    def draw(spec: ParamSpec) -> HostArray:
        if spec.initial != "normal":
            return np.full(spec.shape, 1.0 if spec.initial == "ones" else 0.0, np.float32)
        generator = np.random.default_rng(derive_seed(seed, "init", *spec.path))
        return generator.standard_normal(spec.shape, np.float32) * np.float32(spec.fan_in**-0.5)

    return build_tree(config, draw)


def num_params(config: ModelConfig) -> int:
    """How many numbers the params hold."""
    return sum(prod(spec.shape) for spec in param_specs(config))


def check_params(config: ModelConfig, params: Mapping[str, Any]) -> None:
    """Raise ConfigError, naming the leaves, unless `params` has exactly the table's leaves and shapes."""
    found = {path: tuple(np.shape(leaf)) for path, leaf in _leaves(params, ())}
    expected = {spec.path: spec.shape for spec in param_specs(config)}
    wrong = [
        f"{'.'.join(path)}: expected {expected.get(path, 'nothing')}, got {found.get(path, 'nothing')}"
        for path in sorted(expected.keys() | found.keys())
        if expected.get(path) != found.get(path)
    ]
    if wrong:
        raise ConfigError(f"params do not fit the model: {'; '.join(wrong)}")


def _leaves(node: Any, path: Path) -> Iterator[tuple[Path, Any]]:
    if isinstance(node, Mapping):
        for name, child in node.items():
            yield from _leaves(child, (*path, name))
    else:
        yield path, node
