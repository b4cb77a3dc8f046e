"""Comparing trees: what passes, what fails, and that a failure can be read."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from agentrl_jax.testing.trees import tree_allclose


@pytest.mark.parametrize(
    ("actual", "expected"),
    [
        ({"a": np.array([1.0]), "b": [np.array(2)]}, {"a": np.array([1.0 + 1e-7]), "b": [np.array(2)]}),
        ((jnp.ones(2), None), (np.ones(2, np.float32), None)),
        (np.array([np.nan, np.inf, -np.inf, 0.0]), np.array([np.nan, np.inf, -np.inf, -0.0])),
        (jnp.ones(3, jnp.bfloat16), jnp.ones(3, jnp.bfloat16)),
        (np.array([1 + 1e-8j]), np.array([1 + 0j])),
        ({}, {}),
        (1.5, 1.5),
        ("a name", "a name"),
    ],
)
def test_equal_up_to_the_tolerance(actual: Any, expected: Any) -> None:
    tree_allclose(actual, expected)


@pytest.mark.parametrize(
    ("actual", "expected", "message"),
    [
        (
            np.array([1.0, 2.0]),
            np.array([1.0, 2.1]),
            r"the tree: 1 of 2 elements; furthest off at \[1\]: 2.0, expected",
        ),
        (np.array([1.0]), np.array([np.nan]), "expected nan$"),
        (np.array([np.inf]), np.array([-np.inf]), "inf, expected -inf$"),
        (np.array([np.inf]), np.array([1.0]), "inf, expected 1.0$"),
        (np.array([1.0]), np.array([-np.inf]), "1.0, expected -inf$"),
        (np.array([0.0]), np.array([1e-30]), "expected 1e-30"),
        (np.array([1e10]), np.array([0.0]), "10000000000.0, expected 0.0$"),
        (np.ones(2), np.ones(3), r"float64\[2\], expected float64\[3\]"),
        (np.ones(2, np.float32), np.ones(2), r"float32\[2\], expected float64\[2\]"),
        (np.array([1, 5]), np.array([1, 4]), r"\[1\]: 5, expected 4$"),
        (np.array([True]), np.array([False]), "True, expected False$"),
        (jnp.array([1.0], jnp.bfloat16), jnp.array([1.5], jnp.bfloat16), "1.0, expected 1.5"),
        ({"a": 1.0}, {"b": 1.0}, r"missing \[\"\['b'\]\"\], unexpected \[\"\['a'\]\"\]"),
        ([1.0], (1.0,), "other structures"),
        ("a", "b", "a, expected b$"),
    ],
)
def test_differences_are_named(actual: Any, expected: Any, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        tree_allclose(actual, expected)


def test_the_five_worst_leaves_are_shown_worst_first() -> None:
    expected = {f"layer{i}": np.array([1.0, 1.0]) for i in range(9)}
    actual = {name: value + np.array([0.0, 0.1 * i]) for i, (name, value) in enumerate(expected.items())}
    with pytest.raises(AssertionError) as failure:
        tree_allclose(actual, expected, rtol=1e-3)
    lines = str(failure.value).splitlines()
    assert lines[0] == "8 of 9 leaves differ (rtol=0.001, atol=0):"
    assert [line.split(":")[0].strip() for line in lines[1:]] == [f"['layer{i}']" for i in (8, 7, 6, 5, 4)]
    assert lines[1].endswith("[1]: 1.8, expected 1.0 (0.8 of it)")


def test_both_tolerances_count() -> None:
    tree_allclose(np.array([0.0, 100.0]), np.array([1e-3, 101.0]), rtol=0.01, atol=1e-3)
    with pytest.raises(AssertionError, match=r"1 of 2 elements.*\[1\]"):
        tree_allclose(np.array([0.0, 100.0]), np.array([1e-3, 102.0]), rtol=0.01, atol=1e-3)
