"""Pieces of a decoder layer as functions of arrays, shared by the learner's model and the embedded engine."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int


def rms_norm(x: Float[Array, "*b D"], scale: Float[Array, " D"], *, eps: float) -> Float[Array, "*b D"]:
    """x / sqrt(mean(x²) + eps) · scale, computed in float32 and returned in x's dtype (Zhang & Sennrich 2019)."""
    x32 = x.astype(jnp.float32)
    normed = x32 * jax.lax.rsqrt(jnp.mean(jnp.square(x32), axis=-1, keepdims=True) + eps)
    return (normed * scale.astype(jnp.float32)).astype(x.dtype)


def rope_tables(
    positions: Int[Array, "*b"], head_dim: int, theta: float
) -> tuple[Float[Array, "*b half"], Float[Array, "*b half"]]:
    """cos and sin of position · theta^(-2i/head_dim) for i in [0, head_dim/2), always float32 (Su et al. 2021).

    Angles are reduced to one turn in 32-bit fixed point before they become floats: exact to position · 2π / 2³³
    radians (2.4e-5 at 32,768), where a float32 angle of 32,768 would be off by up to 2e-3.
    """
    turns = theta ** (-np.arange(0, head_dim, 2) / head_dim) / (2 * np.pi)
    steps = np.rint(turns * 2**32).astype(np.uint32)
    reduced = jnp.asarray(positions).astype(jnp.uint32)[..., None] * steps  # whole turns overflow
    angles = jax.lax.bitcast_convert_type(reduced, jnp.int32).astype(jnp.float32) * np.float32(2 * np.pi / 2**32)
    return jnp.cos(angles), jnp.sin(angles)


def apply_rope(
    x: Float[Array, "*b T H K"], cos: Float[Array, "*b T half"], sin: Float[Array, "*b T half"]
) -> Float[Array, "*b T H K"]:
    """Rotate the pairs (x[i], x[i + K/2]) by their position's angle; the half-split layout of Hugging Face."""
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    cos, sin = cos[..., None, :], sin[..., None, :]
    rotated = jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
    return rotated.astype(x.dtype)


def swiglu(x: Float[Array, "*b D"], gate: Any, up: Any, down: Any) -> Float[Array, "*b D"]:
    """(silu(x·gate) ⊙ (x·up))·down, kernels as [D, F], [D, F], [F, D] (Shazeer 2020)."""
    hidden: Array = jax.nn.silu(x @ gate) * (x @ up)
    out: Array = hidden @ down
    return out


def ban(logits: Float[Array, "*b V"], banned_ids: tuple[int, ...]) -> Float[Array, "*b V"]:
    """Give `banned_ids` probability 0. Log-probabilities are then those of the remaining, renormalised ids."""
    if not banned_ids:
        return logits
    allowed = np.ones(logits.shape[-1], np.bool_)
    allowed[list(banned_ids)] = False
    return jnp.where(allowed, logits, -jnp.inf)
