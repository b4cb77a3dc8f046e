"""Sums and weights: by hand, and indifferent to what stands off the mask."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agentrl_jax.algo.aggregate import aggregate, masked_sum

VALUES = [1.0, 2.0, 3.0, 10.0, 7.0]
MASK = [True, True, True, True, False]
TOKENS = [3, 3, 3, 1, 0]  # two sequences, and a token that does not count


@pytest.mark.parametrize(
    ("how", "total", "weight"),
    [
        ("token_mean", 16.0, 4.0),
        ("sequence_mean_token_sum", 16.0, 2.0),
        ("sequence_mean_token_mean", 12.0, 2.0),
        ("constant_length", 2.0, 2.0),
    ],
)
@pytest.mark.parametrize("garbage", [7.0, np.nan, np.inf])
def test_totals_and_weights_by_hand(how: str, total: float, weight: float, garbage: float) -> None:
    def loss(values: jax.Array) -> jax.Array:
        return aggregate(values, jnp.array(MASK), jnp.array(TOKENS), how=how, constant_length=8).total

    values = jnp.array([*VALUES[:4], garbage])
    got = aggregate(values, jnp.array(MASK), jnp.array(TOKENS), how=how, constant_length=8)
    np.testing.assert_allclose(got, (total, weight), rtol=1e-6)
    slopes = np.asarray(jax.grad(loss)(values))
    np.testing.assert_allclose(slopes @ np.array([*VALUES[:4], 0.0]), total, rtol=1e-6)  # linear
    assert slopes[4] == 0.0


@pytest.mark.parametrize(
    "how", ["token_mean", "sequence_mean_token_sum", "sequence_mean_token_mean", "constant_length"]
)
def test_nothing_counted_weighs_nothing(how: str) -> None:
    got = aggregate(jnp.full(3, jnp.nan), jnp.zeros(3, bool), jnp.zeros(3, int), how=how, constant_length=4)
    assert (float(got.total), float(got.weight)) == (0.0, 0.0)


def test_masked_sum_counts_what_it_adds() -> None:
    total, weight = masked_sum(jnp.array([1.0, jnp.inf, 3.0]), jnp.array([True, False, True]))
    assert (float(total), float(weight)) == (4.0, 2.0)


@pytest.mark.parametrize("how", ["sequence_mean_token_sum", "sequence_mean_token_mean"])
def test_a_sequence_counts_once_in_bfloat16(how: str) -> None:
    ones = jnp.ones(1001, jnp.bfloat16)
    got = aggregate(ones, jnp.ones(1001, bool), jnp.full(1001, 1001), how=how, constant_length=1)
    np.testing.assert_allclose(got, (1001.0 if how.endswith("sum") else 1.0, 1.0), rtol=1e-5)


def test_masked_sum_counts_past_256_in_bfloat16() -> None:
    total, weight = masked_sum(jnp.ones(1001, jnp.bfloat16), jnp.ones(1001, jnp.bool_))
    assert (float(total), float(weight)) == (1001.0, 1001.0)
