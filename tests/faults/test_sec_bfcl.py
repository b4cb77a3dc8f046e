"""Security faults, BFCL: what it writes as code is data here."""

import sys

import pytest

from agentrl_jax.errors import ConfigError
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
