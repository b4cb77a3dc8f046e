"""Checks weights that are to be served, and copies them to the engine's devices."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from agentrl_jax.engines.local.placement import Place, params_placement
from agentrl_jax.errors import ConfigError, EngineError
from agentrl_jax.models.config import ModelConfig
from agentrl_jax.models.params import check_params

_DTYPES = ("float32", "bfloat16", "float16")


def stage_weights(model: ModelConfig, weights: Any, dtype: str, place: Place) -> Any:
    """Return a copy of `weights` at `place` in the engine's dtype; the caller may donate or overwrite its own.

    weights: the tree of models/params.py, of numpy or JAX arrays wherever they are, of any floating type up to float32.
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
    staged = jax.tree.map(lambda leaf, to: _copy(leaf, jnp.dtype(dtype), to), dict(weights), shardings)
    return jax.block_until_ready(staged)  # type: ignore[no-untyped-call]


def _copy(leaf: Any, dtype: Any, to: jax.sharding.Sharding) -> jax.Array:
    if isinstance(leaf, np.ndarray):
        leaf = leaf.copy()  # a CPU device may use an aligned host array as it is, even with may_alias=False
    elif leaf.is_fully_replicated:
        # Of an array with a replica on each device of a mesh, device_put hands out one replica, may_alias or not.
        leaf = jnp.copy(leaf.addressable_data(0))
    elif leaf.sharding.device_set & to.device_set:
        leaf = jnp.copy(leaf)  # shards that stay where they are would be handed on as they are
    copied: jax.Array = jax.device_put(leaf, to, may_alias=False)
    return copied if copied.dtype == dtype else copied.astype(dtype)
