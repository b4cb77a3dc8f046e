"""Which row, and where in it, each segment goes."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from agentrl_jax.errors import RecordError


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Placement:
    """rows, offsets, ranks: int64 [S], the row of each segment, its first column, and its number in the row from 0."""

    rows: npt.NDArray[np.int64]
    offsets: npt.NDArray[np.int64]
    ranks: npt.NDArray[np.int64]
    num_rows: int


def first_fit_decreasing(lengths: npt.ArrayLike, capacity: int) -> Placement:
    """Put segments of `lengths` [S] tokens into rows of `capacity` tokens, never splitting one.

    Longest first, each into the first row that has room; equal lengths keep their order. At most 11/9 of the optimal
    number of rows, plus one (Dósa 2007). O(S · rows) in numpy: milliseconds for thousands of segments.

    Raises:
      RecordError: a length is < 1 or > capacity.

    >>> placed = first_fit_decreasing([4, 8, 1, 4, 2, 1], 10)
    >>> placed.rows.tolist(), placed.offsets.tolist(), placed.num_rows
    ([1, 0, 1, 1, 0, 1], [0, 0, 8, 4, 8, 9], 2)
    """
    sizes = np.asarray(lengths, np.int64)
    if len(sizes) and not 1 <= sizes.min() <= sizes.max() <= capacity:
        raise RecordError(f"segment lengths must be in [1, {capacity}], got {sizes.min()} to {sizes.max()}")
    rows, offsets, ranks = (np.zeros(len(sizes), np.int64) for _ in range(3))
    free = np.full(len(sizes), capacity, np.int64)  # rows past the used ones are empty, so one always fits
    used = np.zeros(len(sizes), np.int64)
    shortest = int(sizes.min()) if len(sizes) else 0
    first = 0
    num_rows = 0
    for segment in np.argsort(-sizes, kind="stable"):
        size = sizes[segment]
        while free[first] < shortest:
            first += 1  # too full for any segment that is left
        row = first + int(np.argmax(free[first : num_rows + 1] >= size))
        rows[segment], offsets[segment], ranks[segment] = row, capacity - free[row], used[row]
        free[row] -= size
        used[row] += 1
        num_rows = max(num_rows, row + 1)
    return Placement(rows=rows, offsets=offsets, ranks=ranks, num_rows=num_rows)
