"""Rotary position embedding (Su et al. 2021): angles in fixed point, two layouts of the pairs."""

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jaxtyping import Array, Float, Int

from agentrl_jax.models.config import RopeScaling


def rotary_turns(rotary_dim: int, theta: float, scaling: RopeScaling | None) -> npt.NDArray[np.float64]:
    """Return [rotary_dim/2] turns per position: f_i = theta^(-2i/rotary_dim) / 2π, slowest last.

    With `scaling` (Llama 3.1): wavelengths 1/f_i above original_max_positions / low_freq_factor are stretched by
    `factor`, those below original_max_positions / high_freq_factor are left, and those between are interpolated:
    f·(s + (1 - s)/factor) with s = (original_max_positions·f - low) / (high - low).
    """
    turns: npt.NDArray[np.float64] = theta ** (-np.arange(0, rotary_dim, 2) / rotary_dim) / (2 * np.pi)
    if scaling is None:
        return turns
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    share = np.clip((scaling.original_max_positions * turns - low) / (high - low), 0, 1)
    return turns * (share + (1 - share) / scaling.factor)


def rope_tables(
    positions: Int[Array, "*b"], rotary_dim: int, theta: float, scaling: RopeScaling | None = None
) -> tuple[Float[Array, "*b half"], Float[Array, "*b half"]]:
    """cos and sin of position · 2π · rotary_turns[i] for i in [0, rotary_dim/2), always float32.

    Angles are reduced to one turn in 32-bit fixed point before they become floats: exact to position · 2π / 2³³
    radians (2.4e-5 at 32,768), where a float32 angle of 32,768 would be off by up to 2e-3.
    """
    steps = np.rint(rotary_turns(rotary_dim, theta, scaling) * 2**32).astype(np.uint32)
    reduced = jnp.asarray(positions).astype(jnp.uint32)[..., None] * steps  # whole turns overflow
    angles = jax.lax.bitcast_convert_type(reduced, jnp.int32).astype(jnp.float32) * np.float32(2 * np.pi / 2**32)
    return jnp.cos(angles), jnp.sin(angles)


def rotate_halves(
    x: Float[Array, "*b H K"], cos: Float[Array, "*b half"], sin: Float[Array, "*b half"]
) -> Float[Array, "*b H K"]:
    """Rotate the pairs (x[i], x[i + K/2]) by the angles of their position."""
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    cos, sin = cos[..., None, :], sin[..., None, :]
    rotated = jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
    return rotated.astype(x.dtype)


def rotate_neighbours(
    x: Float[Array, "*b H K"], cos: Float[Array, "*b half"], sin: Float[Array, "*b half"]
) -> Float[Array, "*b H K"]:
    """Rotate the pairs (x[2i], x[2i+1]) for i < half by the angles of their position; the rest of x stays."""
    rotary_dim = 2 * cos.shape[-1]
    pairs = x[..., :rotary_dim].astype(jnp.float32).reshape(*x.shape[:-1], -1, 2)
    first, second = pairs[..., 0], pairs[..., 1]
    cos, sin = cos[..., None, :], sin[..., None, :]
    rotated = jnp.stack([first * cos - second * sin, second * cos + first * sin], axis=-1)
    rotated = rotated.reshape(*x.shape[:-1], rotary_dim).astype(x.dtype)
    return jnp.concatenate([rotated, x[..., rotary_dim:]], axis=-1)
