"""Shares of draws: Tijdeman's bound, exact batch quotas, and that nothing is rounded away."""

import json
from collections import Counter
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl_jax.controller.quotas import Quotas
from agentrl_jax.errors import ConfigError

WEIGHTS = st.lists(st.integers(1, 50), min_size=1, max_size=6)


def draws(quotas: Quotas, count: int) -> list[str]:
    names = []
    for _ in range(count):
        names.append(quotas.next())
        quotas.pay(names[-1])
    return names


def named(weights: list[int]) -> dict[str, float]:
    return dict(zip("abcdef", map(float, weights), strict=False))


def test_by_hand() -> None:
    # Shares 1/2, 1/4, 1/4; an env may be drawn once it is owed 1/4. After a and b, a is owed 1/2 and could wait for
    # another half draw before it falls 3/4 behind; c is owed 3/4 and cannot wait.
    assert "".join(draws(Quotas({"a": 2.0, "b": 1.0, "c": 1.0}), 8)) == "abcaabca"


@given(weights=WEIGHTS, count=st.integers(1, 200))
def test_no_env_is_ever_further_off_than_tijdemans_bound(weights: list[int], count: int) -> None:
    quotas, total, k = Quotas(named(weights)), sum(weights), len(weights)
    bound = 1 - Fraction(1, 2 * k - 2) if k > 1 else Fraction(0)
    drawn: Counter[str] = Counter()
    for number, name in enumerate(draws(quotas, count), start=1):
        drawn[name] += 1
        for env, weight in zip("abcdef", weights, strict=False):
            assert abs(drawn[env] - Fraction(number * weight, total)) <= bound


@given(weights=WEIGHTS, size=st.integers(1, 16), num_batches=st.integers(1, 12))
def test_every_batch_has_its_quota_with_the_remainder_carried(weights: list[int], size: int, num_batches: int) -> None:
    quotas, total = Quotas(named(weights)), sum(weights)
    drawn: Counter[str] = Counter()
    for number in range(1, num_batches + 1):
        drawn.update(draws(quotas, size))
        for env, weight in zip("abcdef", weights, strict=False):
            exact = Fraction(number * size * weight, total)
            assert exact // 1 <= drawn[env] <= -(-exact // 1)  # rounded down or up, never further


def test_a_share_that_is_no_whole_group_of_a_batch_is_kept_in_the_long_run() -> None:
    quotas = Quotas({"rare": 0.01, "usual": 0.99})
    assert [Counter(draws(quotas, 800))["rare"] for _ in range(3)] == [8, 8, 8]


@given(weights=WEIGHTS, before=st.integers(0, 50))
def test_a_restored_quota_goes_on_exactly(weights: list[int], before: int) -> None:
    quotas, restored = Quotas(named(weights)), Quotas(named(weights))
    draws(quotas, before)
    restored.restore(json.loads(json.dumps(quotas.state())))
    assert draws(restored, 30) == draws(quotas, 30)


@pytest.mark.parametrize("weight", [0.0, -1.0, float("nan"), float("inf")])
def test_weights_that_are_no_shares_are_refused(weight: float) -> None:
    with pytest.raises(ConfigError, match="the weight of 'a' must be positive"):
        Quotas({"a": weight, "b": 1.0})
