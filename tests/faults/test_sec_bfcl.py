"""Security faults, BFCL: what it writes as code is data here."""

import sys

import pytest

from agentrl_jax.errors import ConfigError
from envs.bfcl.bounds import MAX_DIGITS, check_bounds
from envs.bfcl.entries import parse_call

SOURCES = [
    "f",
    "a.f()",
    "f(g())",
    "f(x)",
    "f(1",
    "f(1) + 1",
    "f(*[1])",
    "f(**{})",
    "(lambda: 1)()",
    "f(1); g()",
    "f(2**9)",
]


@pytest.mark.parametrize("text", SOURCES)
def test_sec_02_nothing_but_a_call_with_literal_arguments_is_read(text):
    with pytest.raises(ConfigError, match="expected a call"):
        parse_call(text)


def test_sec_02_nothing_that_is_read_is_evaluated(monkeypatch):
    monkeypatch.setattr(sys, "exit", lambda code: pytest.fail("evaluated"))
    for text in ("__import__('sys').exit(1)", "f(__import__('sys').exit(1))", "f(x=[exit(1)])"):
        with pytest.raises(ConfigError, match="expected a call"):
            parse_call(text)
    assert parse_call("f('__import__(1)')").positional == ("__import__(1)",)


@pytest.mark.parametrize(
    "arguments",
    [
        {"value": 10, "base": 2, "precision": 10**9},
        {"number": 2, "precision": 1e12},
        {"number": 2, "precision": float("inf")},
        {"number": 5, "decimal_places": -(10**9)},
        {"base": 10, "exponent": 10**9},
        {"base": -3, "exponent": 10**30},
    ],
)
def test_sec_02_a_calculation_without_end_is_refused(arguments):
    with pytest.raises(ValueError, match=r"must be at most|too large"):
        check_bounds(arguments)


@pytest.mark.parametrize(
    "arguments",
    [
        {"value": 10, "base": 2, "precision": MAX_DIGITS},
        {"number": 2, "precision": "many"},
        {"base": 1, "exponent": 10**9},
        {"base": 10, "exponent": 5000},
        {"base": 10, "exponent": -(10**9)},
        {"base": 2.0, "exponent": 10**9},
        {"base": True, "exponent": 10**9},
        {},
    ],
)
def test_sec_02_what_ends_is_left_to_the_simulators(arguments):
    check_bounds(arguments)
