"""Low-rank adapters: W + (alpha / rank) · A·B with W frozen (Hu et al. 2021, arXiv 2106.09685).

Two leaves per target, stacked over layers as the kernels are. B starts at 0, so that the first step starts from the
policy that was given. Engines and checkpoints for others get merged weights; they never see an adapter.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields
from math import prod
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from agentrl_jax.errors import ConfigError
from agentrl_jax.models.config import ModelConfig
from agentrl_jax.models.families import param_specs
from agentrl_jax.models.params import Params
from agentrl_jax.models.specs import ParamSpec, Path
from agentrl_jax.seeding import derive_seed


@dataclass(frozen=True, slots=True, kw_only=True)
class LoraConfig:
    """Low-rank adapters: train two thin matrices beside each kernel and leave the kernel as it is.

    Params and moments of the optimiser then take a few per cent of the memory. A learning rate ten times that of full
    training is a good start.
    """

    rank: int = 0
    """Rank of the adapters; 0 trains all parameters instead"""
    alpha: float = 32.0
    """Adapters are scaled by alpha / rank, so that the learning rate need not change with the rank"""
    targets: tuple[str, ...] = ()
    """Kernels that get an adapter, such as q v, by their names in models/families.py (default: every kernel of a
    layer)"""
    seed: int = 0
    """Draws the first values of the adapters"""

    def __post_init__(self) -> None:
        if self.rank < 0:
            raise ConfigError(f"lora rank must be >= 0 (0: no adapters), got {self.rank}")
        if not 0.0 < self.alpha < float("inf"):
            raise ConfigError(f"lora alpha must be finite and > 0, got {self.alpha}")
        if len(set(self.targets)) < len(self.targets):
            raise ConfigError(f"lora targets names a kernel twice: {' '.join(self.targets)}")
        if self.seed < 0:
            raise ConfigError(f"lora seed must be >= 0, got {self.seed}")
        if not self.rank:
            changed = [f.name for f in fields(self) if getattr(self, f.name) != f.default]
            if changed:
                raise ConfigError(f"lora {', '.join(changed)} has no effect without a rank: set one, or leave it out")

    @property
    def is_on(self) -> bool:
        return self.rank > 0

    @property
    def scale(self) -> float:
        return self.alpha / self.rank


class AdapterSpec(NamedTuple):
    """One leaf of an adapter. axes: those of the kernel's inputs or outputs; the rank is never split over devices."""

    path: Path
    shape: tuple[int, ...]
    axes: tuple[str | None, ...]
    fan_in: int

    @property
    def has_decay(self) -> bool:
        return True

    @property
    def is_first(self) -> bool:
        return self.path[-1] == "lora_a"


def adapter_specs(model: ModelConfig, lora: LoraConfig) -> tuple[AdapterSpec, ...]:
    """Return the leaves that are trained: A [L, inputs, r] and B [L, r, outputs] beside each target's kernel.

    Raises ConfigError for targets that the model's layers do not have, naming those that they do.
    """
    kernels = {spec.path[-2]: spec for spec in param_specs(model) if spec.is_stacked and spec.path[-1] == "kernel"}
    unknown = [name for name in lora.targets if name not in kernels]
    if unknown:
        raise ConfigError(f"lora targets: no kernel {', '.join(unknown)} in this model; it has {', '.join(kernels)}")
    return tuple(leaf for name in lora.targets or kernels for leaf in _pair(kernels[name], lora.rank))


def adapter_tree(model: ModelConfig, lora: LoraConfig, leaf: Callable[[AdapterSpec], Any]) -> Params:
    """Return a tree of the adapters' structure, a part of the params' own, with `leaf(spec)` at each leaf."""
    tree: Params = {}
    for spec in adapter_specs(model, lora):
        node = tree
        for name in spec.path[:-1]:
            node = node.setdefault(name, {})
        node[spec.path[-1]] = leaf(spec)
    return tree


def init_adapters(model: ModelConfig, lora: LoraConfig) -> Params:
    """Return float32 host adapters: A ~ N(0, 1/fan_in) from a stream of its own for each leaf, B = 0."""

    def draw(spec: AdapterSpec) -> Any:
        if not spec.is_first:
            return np.zeros(spec.shape, np.float32)
        generator = np.random.default_rng(derive_seed(lora.seed, "lora", *spec.path))
        return generator.standard_normal(spec.shape, np.float32) * np.float32(spec.fan_in**-0.5)

    return adapter_tree(model, lora, draw)


def attach(base: Params, adapters: Params, scale: float) -> Params:
    """Return `base` with the adapters beside its kernels, as models/layers.py reads them; `scale` goes into B."""
    tree = dict(base)
    for name, node in adapters.items():
        if name == "lora_b":
            tree[name] = node * scale
        else:
            tree[name] = attach(base.get(name, {}), node, scale) if isinstance(node, dict) else node
    return tree


def merge(base: Params, adapters: Params, scale: float) -> Params:
    """Return float32 params without adapters that compute the same: W + scale · A·B in each target's kernel."""
    whole: Params = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), base)
    return _merged(whole, adapters, scale)


def _merged(base: Params, adapters: Params, scale: float) -> Params:
    tree = dict(base)
    if "lora_a" in adapters:
        first, second = adapters["lora_a"], adapters["lora_b"]
        num_layers, rank = second.shape[:2]
        flat = first.reshape(num_layers, -1, rank) @ second.reshape(num_layers, rank, -1)
        tree["kernel"] = base["kernel"] + scale * flat.reshape(base["kernel"].shape)
        return tree
    return tree | {name: _merged(base[name], node, scale) for name, node in adapters.items()}


def _pair(spec: ParamSpec, rank: int) -> tuple[AdapterSpec, AdapterSpec]:
    num_inputs = next(n for n in range(1, len(spec.shape)) if prod(spec.layer_shape[:n]) == spec.fan_in)
    (layers, *sizes), (axis, *axes) = spec.shape, spec.axes
    inputs, outputs = slice(num_inputs), slice(num_inputs, None)
    return (
        AdapterSpec(
            (*spec.path[:-1], "lora_a"), (layers, *sizes[inputs], rank), (axis, *axes[inputs], None), spec.fan_in
        ),
        AdapterSpec((*spec.path[:-1], "lora_b"), (layers, rank, *sizes[outputs]), (axis, None, *axes[outputs]), rank),
    )
