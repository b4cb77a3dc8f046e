"""First-fit-decreasing: the textbook case by hand, then what every placement keeps."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl_jax.algo.bins import first_fit_decreasing
from agentrl_jax.errors import RecordError


@given(st.lists(st.integers(1, 30), max_size=40), st.integers(30, 64))
@settings(max_examples=60, deadline=None)
def test_first_fit_places_each_segment_once_without_overlap(lengths: list[int], capacity: int) -> None:
    placement = first_fit_decreasing(lengths, capacity)
    slots = np.zeros((placement.num_rows, capacity), np.int64)
    for row, offset, length in zip(placement.rows, placement.offsets, lengths, strict=True):
        assert offset + length <= capacity
        slots[row, offset : offset + length] += 1
    assert slots.max(initial=0) <= 1
    assert slots.sum() == sum(lengths)
    for row in range(placement.num_rows):
        inside = placement.rows == row
        in_order = np.argsort(placement.offsets[inside])
        assert placement.ranks[inside][in_order].tolist() == list(range(inside.sum()))
        assert slots[row].argmin() == slots[row].sum() or slots[row].all()  # no holes
    assert (2 * slots.sum(axis=1) <= capacity).sum() <= 1  # the later of two such rows would have fitted the earlier


def test_first_fit_decreasing_by_hand() -> None:
    placement = first_fit_decreasing([4, 8, 1, 4, 2, 1], 10)  # the textbook case: two full rows
    assert placement.rows.tolist() == [1, 0, 1, 1, 0, 1]
    assert placement.num_rows == 2


@pytest.mark.parametrize("lengths", [[0], [11], [3, -1]])
def test_impossible_lengths_are_refused(lengths: list[int]) -> None:
    with pytest.raises(RecordError, match=r"\[1, 10\]"):
        first_fit_decreasing(lengths, 10)
