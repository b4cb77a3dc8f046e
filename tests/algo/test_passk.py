"""pass@k against enumeration, and intervals that know which samples share a task."""

from itertools import combinations
from math import isnan
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl_jax.algo.intervals import proportion_interval
from agentrl_jax.algo.passk import (
    clustered_interval,
    curve_ks,
    difference_of_means,
    mean_pass_at_k,
    pass_at_k,
    student_t95,
)


@pytest.mark.parametrize(
    ("n", "c", "k", "expected"),
    [(4, 0, 2, 0.0), (4, 4, 1, 1.0), (4, 2, 2, 5 / 6), (5, 1, 3, 0.6), (5, 3, 3, 1.0), (200, 1, 100, 0.5)],
)
def test_pass_at_k_by_hand(n: int, c: int, k: int, expected: float) -> None:
    assert pass_at_k(n, c, k) == expected


@given(st.integers(1, 8), st.data())
def test_pass_at_k_is_the_share_of_draws_with_a_success(n: int, data: st.DataObject) -> None:
    c, k = data.draw(st.integers(0, n)), data.draw(st.integers(1, n))
    draws = list(combinations([True] * c + [False] * (n - c), k))
    assert pass_at_k(n, c, k) == pytest.approx(sum(map(any, draws)) / len(draws), abs=1e-15)


def test_it_is_exact_where_floats_would_cancel() -> None:
    assert pass_at_k(10**6, 1, 1) == 1e-6


@pytest.mark.parametrize(("n", "c", "k"), [(2, 3, 1), (2, -1, 1), (2, 1, 3), (2, 1, 0)])
def test_counts_that_cannot_be_are_refused(n: int, c: int, k: int) -> None:
    with pytest.raises(ValueError, match="expected 0 <= c <= n"):
        pass_at_k(n, c, k)


def test_tasks_without_k_samples_are_left_out() -> None:
    assert mean_pass_at_k([(4, 1), (4, 0), (1, 1)], 2) == 0.25
    assert mean_pass_at_k([(4, 1), (4, 0), (2, 2)], 1) == pytest.approx((0.25 + 0 + 1) / 3)
    assert isnan(mean_pass_at_k([(1, 1)], 2))


def test_curves_double_k() -> None:
    assert [curve_ks(n) for n in (0, 1, 2, 4, 6)] == [(), (1,), (1, 2), (1, 2, 4), (1, 2, 4, 6)]


@given(st.lists(st.booleans(), min_size=2, max_size=30))
def test_one_sample_of_each_task_is_the_plain_interval(solved: list[bool]) -> None:
    found = clustered_interval([(1, int(success)) for success in solved])
    assert found == pytest.approx(proportion_interval(sum(solved), len(solved)), abs=1e-12)


@given(st.lists(st.booleans(), min_size=2, max_size=12), st.integers(2, 8))
def test_copies_of_a_sample_tell_nothing_new(solved: list[bool], copies: int) -> None:
    found = clustered_interval([(copies, copies * success) for success in solved])
    assert found == pytest.approx(proportion_interval(sum(solved), len(solved)), abs=1e-12)


def test_samples_that_do_not_resemble_each_other_all_count() -> None:
    # Every task at exactly 1 of 2: nothing speaks for clusters, but nothing can be told from no spread either.
    assert clustered_interval([(2, 1)] * 8) == proportion_interval(4, 8)
    spread = [(8, successes) for successes in (3, 4, 5, 4, 4, 5, 3, 4)]
    assert clustered_interval(spread) == pytest.approx(proportion_interval(32, 64))


def test_the_interval_by_hand() -> None:
    # p = 0.5; Var = 4/3 · 4 · 1 / 8² = 1/12; n_eff = 0.25 · 12 = 3, below the four tasks, so 4.
    assert clustered_interval([(2, 2), (2, 2), (2, 0), (2, 0)]) == proportion_interval(2, 4)
    # Σ(c − pn)² = 2; Var = 4/3 · 2 / 64 = 1/24; n_eff = 6.
    assert clustered_interval([(2, 2), (2, 1), (2, 1), (2, 0)]) == pytest.approx(proportion_interval(3, 6))
    assert clustered_interval([]) == clustered_interval([(0, 0)]) == (0.0, 1.0)


def test_intervals_cover_the_rate_of_tasks_that_differ() -> None:
    random, hits = Random(0), 0
    for _ in range(400):
        rates = [random.random() for _ in range(24)]  # tasks of their own hardness; the mean over all tasks is 0.5
        low, high = clustered_interval([(8, sum(random.random() < rate for _ in range(8))) for rate in rates])
        hits += low <= 0.5 <= high
    assert 0.92 <= hits / 400 <= 0.98


def test_differences_of_paired_tasks_by_hand() -> None:
    gain, (low, high) = difference_of_means([1.0, 1.0, 0.5, 0.5], [0.5, 0.5, 0.5, 0.0])
    # Differences 0.5, 0.5, 0, 0.5: mean 0.375, variance 1/16, t(3) = 3.182.
    assert gain == 0.375
    assert (low, high) == pytest.approx((0.375 - 3.182 * 0.125, 0.375 + 3.182 * 0.125), abs=1e-3)
    assert difference_of_means([1.0], [0.0]) == (1.0, (-1.0, 1.0))
    assert isnan(difference_of_means([], [])[0])


@pytest.mark.parametrize(("degrees", "expected"), [(1, 12.7062), (3, 3.1824), (4, 2.7764), (9, 2.2622), (60, 2.0003)])
def test_student_by_the_tables(degrees: int, expected: float) -> None:
    assert student_t95(degrees) == pytest.approx(expected, abs=0.005)
