"""Checks weights that are to be served, and copies them to the engine's devices, every layer on its own.

Out of a stack of layers each call of a program would have to copy them first, on a CPU at least: that can take longer
than the call itself.
"""

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec, Sharding

from agentrl_jax.engines.local.placement import Place, params_placement
from agentrl_jax.errors import ConfigError, EngineError
from agentrl_jax.models.config import ModelConfig
from agentrl_jax.models.params import check_params

_DTYPES = ("float32", "bfloat16", "float16")


def stage_weights(model: ModelConfig, weights: Any, dtype: str, place: Place) -> Any:
    """Return a copy of `weights` at `place` in the engine's dtype, split as by `split_layers`.

    weights: the tree of models/params.py, of numpy or JAX arrays wherever they are, of any floating type up to float32;
    the caller may donate or overwrite them afterwards.
    Raises EngineError, before anything is copied, if a leaf is missing, unknown, or of another shape or dtype.
    """
    try:
        check_params(model, weights)
    except ConfigError as error:
        raise EngineError(f"weights cannot be served: {error}") from error
    leaves = jax.tree_util.tree_leaves_with_path(weights)
    wrong = [
        f"{jax.tree_util.keystr(path, simple=True, separator='.')}: {leaf.dtype}"
        for path, leaf in leaves
        if str(leaf.dtype) not in _DTYPES
    ]
    if wrong:
        raise EngineError(f"weights cannot be served: expected {', '.join(_DTYPES)}, got {'; '.join(wrong)}")
    shardings = params_placement(model, place)
    staged = {
        name: jax.tree.map(partial(_copy, dtype=jnp.dtype(dtype)), part, shardings[name])
        for name, part in weights.items()
        if name != "layers"
    }
    staged["layers"] = _split(partial(_copy_layers, dtype=jnp.dtype(dtype)), weights["layers"], shardings["layers"])
    return jax.block_until_ready(staged)  # type: ignore[no-untyped-call]


def split_layers(weights: Any, split: Callable[[Any], Any] = tuple) -> Any:
    """`weights` with a tuple of the layers' trees for the tree of stacks; `split` cuts a stack [L, …] into L."""
    return {**weights, "layers": _split(split, weights["layers"])}


def layer_sharding(stack: Sharding) -> Sharding:
    """The sharding of a layer, from that of the stack."""
    if isinstance(stack, NamedSharding):
        return NamedSharding(stack.mesh, PartitionSpec(*stack.spec[1:]))  # type: ignore[no-untyped-call]
    return stack


def _split(split: Callable[..., Any], layers: Any, *rest: Any) -> Any:
    return jax.tree.transpose(jax.tree.structure(layers), None, jax.tree.map(split, layers, *rest))


def _copy_layers(stack: Any, to: Sharding, dtype: Any) -> tuple[jax.Array, ...]:
    if isinstance(stack, np.ndarray):
        return tuple(_copy(layer, layer_sharding(to), dtype) for layer in stack)
    layers: tuple[jax.Array, ...] = _unstack(layer_sharding(to))(_copy(stack, to, dtype))
    return layers


@cache
def _unstack(to: Sharding) -> Callable[[jax.Array], tuple[jax.Array, ...]]:
    return jax.jit(lambda stack: tuple(stack[index] for index in range(len(stack))), out_shardings=to)


def _copy(leaf: Any, to: Sharding, dtype: Any) -> jax.Array:
    if isinstance(leaf, np.ndarray):
        leaf = leaf.copy()  # a CPU device may use an aligned host array as it is, even with may_alias=False
    elif leaf.is_fully_replicated:
        # Of an array with a replica on each device of a mesh, device_put hands out one replica, may_alias or not.
        leaf = jnp.copy(leaf.addressable_data(0))
    elif leaf.sharding.device_set & to.device_set:
        leaf = jnp.copy(leaf)  # shards that stay where they are would be handed on as they are
    copied: jax.Array = jax.device_put(leaf, to, may_alias=False)
    return copied if copied.dtype == dtype else copied.astype(dtype)
