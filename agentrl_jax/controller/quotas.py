"""Whose turn it is: a fixed share of the draws for each env, kept as exactly as whole draws allow.

Tijdeman, The chairman assignment problem (Discrete Mathematics 32, 1980). With k envs of shares s_e, after every
number n of draws

    |number of draws of e − n × s_e|  ≤  1 − 1 / (2k − 2)  <  1        (k ≥ 2)

so that after every batch each env has had its exact quota, rounded down or up: what a batch owes is carried to the
next. The round robin that always serves whom it owes most can be off by more than one.
"""

from collections.abc import Mapping
from fractions import Fraction
from math import isfinite

from agentrl_jax.errors import ConfigError


class Quotas:
    """Names the env of the next draw. Exact: no share, however small, is rounded to nothing."""

    def __init__(self, weights: Mapping[str, float]) -> None:
        """weights: of the envs, in any unit. Raises ConfigError unless all are positive and finite."""
        for name, weight in weights.items():
            if not (isfinite(weight) and weight > 0):
                raise ConfigError(f"the weight of {name!r} must be positive and finite, got {weight}")
        total = sum(map(Fraction, weights.values()))
        self._shares = {name: Fraction(weight) / total for name, weight in weights.items()}
        self._credits = dict.fromkeys(weights, Fraction(0))
        self._spare = Fraction(1, 2 * len(weights) - 2) if len(weights) > 1 else Fraction(0)

    @property
    def shares(self) -> dict[str, float]:
        """The share of each env; they add up to 1."""
        return {name: float(share) for name, share in self._shares.items()}

    def next(self) -> str:
        """The env of the next draw: of those that may have it, the one that has to have it soonest.

        An env may have it if that leaves it at most 1 − 1/(2k − 2) ahead of its share, and has to have it before it
        falls as far behind; the first in order among equals.
        """
        owed = {name: self._credits[name] + share for name, share in self._shares.items()}
        allowed = [name for name in owed if owed[name] >= self._spare]
        return min(allowed, key=lambda name: (1 - self._spare - owed[name]) / self._shares[name])

    def pay(self, name: str) -> None:
        """Env `name` has had a draw."""
        for other, share in self._shares.items():
            self._credits[other] += share
        self._credits[name] -= 1

    def state(self) -> dict[str, str]:
        """What each env is owed, in draws, as plain JSON."""
        return {name: str(credit) for name, credit in self._credits.items()}

    def restore(self, state: Mapping[str, str]) -> None:
        """Go on where `state` was taken, with the present shares."""
        self._credits = {name: Fraction(state[name]) for name in self._credits}
