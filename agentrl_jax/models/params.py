"""Trees of arrays of the table's structure: built, initialised, counted and checked."""

from collections.abc import Callable, Iterator, Mapping
from math import prod
from typing import Any, TypeAlias

import numpy as np

from agentrl_jax.errors import ConfigError
from agentrl_jax.models.config import ModelConfig
from agentrl_jax.models.families import param_specs
from agentrl_jax.models.specs import HostArray, ParamSpec, Path
from agentrl_jax.seeding import derive_seed

Params: TypeAlias = dict[str, Any]
"""Nested dicts of arrays; see `families.param_specs`."""


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
