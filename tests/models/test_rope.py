"""Rotary tables and their two layouts, by hand and against double precision."""

import jax.numpy as jnp
import numpy as np
import pytest

from agentrl_jax.errors import ConfigError
from agentrl_jax.models.config import RopeScaling
from agentrl_jax.models.rope import rope_tables, rotary_turns, rotate_halves, rotate_neighbours

LLAMA_3_1 = RopeScaling(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_positions=8192)


def test_first_position_is_not_rotated():
    cos, sin = rope_tables(np.zeros(1, np.int32), 8, 1e4)
    np.testing.assert_array_equal(cos, np.ones((1, 4)))
    np.testing.assert_array_equal(sin, np.zeros((1, 4)))


def test_turns_by_hand():
    np.testing.assert_allclose(rotary_turns(4, 100.0, None) * 2 * np.pi, [1.0, 0.1])


def test_llama_3_stretches_slow_turns_only():
    plain, scaled = (rotary_turns(128, 500_000.0, scaling) for scaling in (None, LLAMA_3_1))
    wavelengths = 1 / plain
    fast, slow = wavelengths < 8192 / 4, wavelengths > 8192
    between = ~fast & ~slow
    assert fast.sum() > 20
    assert slow.sum() > 20
    assert between.sum() > 3
    np.testing.assert_array_equal(scaled[fast], plain[fast])
    np.testing.assert_allclose(scaled[slow], plain[slow] / 8, rtol=1e-15)
    # The published formula for a wavelength between the bounds, written as it stands.
    smooth = (8192 / wavelengths[between] - 1) / (4 - 1)
    np.testing.assert_allclose(scaled[between], (1 - smooth) * plain[between] / 8 + smooth * plain[between], rtol=1e-12)


def test_tables_stay_exact_far_out():
    positions = np.array([0, 1, 4095, 32_768, 131_071], np.int32)
    cos, sin = rope_tables(positions, 64, 500_000.0, LLAMA_3_1)
    angles = 2 * np.pi * positions[:, None] * rotary_turns(64, 500_000.0, LLAMA_3_1)
    np.testing.assert_allclose(cos, np.cos(angles), atol=1.2e-4)
    np.testing.assert_allclose(sin, np.sin(angles), atol=1.2e-4)


def quarter_turn(count):
    return jnp.zeros((1, count)), jnp.ones((1, count))


def test_pairs_by_hand():
    x = jnp.arange(1.0, 7.0).reshape(1, 1, 6)
    # A quarter turn takes (a, b) to (-b, a).
    np.testing.assert_array_equal(rotate_halves(x, *quarter_turn(3))[0, 0], [-4, -5, -6, 1, 2, 3])
    np.testing.assert_array_equal(rotate_neighbours(x, *quarter_turn(2))[0, 0], [-2, 1, -4, 3, 5, 6])


def test_layouts_differ_by_a_permutation_alone():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((5, 3, 8)).astype(np.float32)
    tables = rope_tables(np.arange(5), 8, 100.0)
    halves = rotate_halves(jnp.asarray(x), *tables)
    neighbours = rotate_neighbours(jnp.asarray(x.reshape(5, 3, 2, 4).swapaxes(2, 3).reshape(5, 3, 8)), *tables)
    np.testing.assert_array_equal(halves, neighbours.reshape(5, 3, 4, 2).swapaxes(2, 3).reshape(5, 3, 8))


@pytest.mark.parametrize(
    "changes", [{"factor": 0.5}, {"low_freq_factor": 4.0}, {"low_freq_factor": 0.0}, {"original_max_positions": 0}]
)
def test_scaling_that_makes_no_sense_is_refused(changes):
    settings = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_positions": 64}
    with pytest.raises(ConfigError, match=next(iter(changes))):
        RopeScaling(**(settings | changes))
