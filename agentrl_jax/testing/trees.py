"""Comparing pytrees of arrays, with a failure that says which leaf differs, where, and by how much."""

from typing import Any

import jax
import numpy as np

_MOST_LEAVES = 5
"""Leaves that a failure shows: one wrong step changes all parameters of a model."""


def tree_allclose(actual: Any, expected: Any, *, rtol: float = 1e-6, atol: float = 0.0) -> None:
    """Assert that two pytrees have one structure, and leaves of equal shapes, dtypes and values up to a tolerance.

    |actual − expected| ≤ atol + rtol · |expected|, element by element; NaN equals NaN, and infinities their like.
    Integers, booleans and whatever is no number are compared exactly. Differences are computed in float64 at least.

    Raises:
      AssertionError: naming the five worst leaves by their paths, with the element that is furthest off.

    >>> tree_allclose({"w": np.array([1.0, 2.0])}, {"w": np.array([1.0, 2.5])})
    Traceback (most recent call last):
    AssertionError: 1 of 1 leaves differ (rtol=1e-06, atol=0):
      ['w']: 1 of 2 elements; furthest off at [1]: 2.0, expected 2.5 (0.2 of it)
    """
    found, wanted = _leaves(actual), _leaves(expected)
    if found.keys() != wanted.keys():
        missing, unexpected = sorted(wanted.keys() - found.keys()), sorted(found.keys() - wanted.keys())
        raise AssertionError(f"the trees have other leaves: missing {missing}, unexpected {unexpected}")
    shape, wanted_shape = str(jax.tree.structure(actual)), str(jax.tree.structure(expected))
    if shape != wanted_shape:
        raise AssertionError(f"the trees have other structures: {shape}, expected {wanted_shape}")
    problems = [problem for path in wanted for problem in _compare(path, found[path], wanted[path], rtol, atol)]
    if problems:
        worst = [text for _, text in sorted(problems, key=lambda problem: -problem[0])[:_MOST_LEAVES]]
        raise AssertionError(
            "\n  ".join([f"{len(problems)} of {len(wanted)} leaves differ (rtol={rtol:g}, atol={atol:g}):", *worst])
        )


def _leaves(tree: Any) -> dict[str, Any]:
    return {jax.tree_util.keystr(path) or "the tree": leaf for path, leaf in jax.tree.leaves_with_path(tree)}


def _compare(path: str, actual: Any, expected: Any, rtol: float, atol: float) -> list[tuple[float, str]]:
    """At most one (how far off, what to say)."""
    found, wanted = np.asarray(actual), np.asarray(expected)
    if found.shape != wanted.shape or found.dtype != wanted.dtype:
        text = f"{path}: {found.dtype}{list(found.shape)}, expected {wanted.dtype}{list(wanted.shape)}"
        return [(np.inf, text)]
    if not _is_inexact(found.dtype):
        wrong = np.asarray(found != wanted)
        distance = wrong.astype(np.float64)
    else:
        wide = np.complex128 if found.dtype.kind == "c" else np.float64
        found, wanted = found.astype(wide), wanted.astype(wide)
        wrong = ~np.isclose(found, wanted, rtol=rtol, atol=atol, equal_nan=True)
        is_finite = np.isfinite(found) & np.isfinite(wanted)
        difference = np.abs(np.where(is_finite, found, 1.0) - np.where(is_finite, wanted, 0.0))
        scale = np.maximum(np.abs(np.where(is_finite, wanted, 1.0)), 1e-300)
        with np.errstate(over="ignore"):  # beside an expected 0 the distance may well be infinite
            distance = np.where(is_finite, difference / scale, np.inf)
    if not wrong.any():
        return []
    place = np.unravel_index(int(np.argmax(np.where(wrong, distance, -1.0))), wrong.shape)
    furthest = float(distance[place])
    share = f" ({furthest:.3g} of it)" if _is_inexact(found.dtype) and np.isfinite(furthest) else ""
    text = (
        f"{path}: {np.count_nonzero(wrong)} of {wrong.size} elements; furthest off at "
        f"{[int(i) for i in place]}: {found[place]}, expected {wanted[place]}{share}"
    )
    return [(furthest, text)]


def _is_inexact(dtype: np.dtype[Any]) -> bool:
    # jax's small floats (bfloat16, float8) are no subtypes of numpy's.
    return bool(jax.numpy.issubdtype(dtype, jax.numpy.inexact))
