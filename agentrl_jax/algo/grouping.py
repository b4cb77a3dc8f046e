"""Sums by group and by task: the arithmetic that baselines and task normalisation share."""

import numpy as np
import numpy.typing as npt

Doubles = npt.NDArray[np.float64]
Indices = npt.NDArray[np.integer]


def numbered(names: npt.ArrayLike) -> tuple[Indices, int]:
    """(index [N] in 0..K-1, K) of K different integers `names` [N]; equal names have equal indices.

    >>> index, num = numbered([7, -3, 7])
    >>> index.tolist(), num
    ([1, 0, 1], 2)
    """
    unique, index = np.unique(np.asarray(names), return_inverse=True)
    return index, len(unique)


def sum_by(index: Indices, values: npt.ArrayLike, num: int) -> Doubles:
    """float64 [num]: for each i < num the sum of `values` [N] where `index` [N] is i.

    >>> sum_by(np.array([1, 0, 1]), [0.5, 2.0, 1.0], 3).tolist()
    [2.0, 1.5, 0.0]
    """
    return np.bincount(index, weights=np.asarray(values, np.float64), minlength=num).astype(np.float64)


def differ_by(index: Indices, values: Doubles, where: npt.NDArray[np.bool_], num: int) -> npt.NDArray[np.bool_]:
    """bool [num, …]: whether `values` [N, …] differ among those with `index` i and `where` [N]. Exact comparison.

    >>> differ_by(np.array([0, 0, 1, 1]), np.array([1.0, 2.0, 5.0, 5.0]), np.array([True] * 4), 2).tolist()
    [True, False]
    """
    best = np.full((num, *values.shape[1:]), -np.inf)
    worst = np.full((num, *values.shape[1:]), np.inf)
    np.maximum.at(best, index[where], values[where])
    np.minimum.at(worst, index[where], values[where])
    return best > worst
