"""The examples in docstrings are true."""

import doctest
from importlib import import_module

import pytest


@pytest.mark.parametrize(
    "name", ["algo.advantages", "algo.aggregate", "algo.intervals", "algo.kl", "algo.losses", "algo.metrics", "seeding"]
)
def test_docstring_examples(name: str) -> None:
    result = doctest.testmod(import_module(f"agentrl_jax.{name}"))
    assert result.attempted > 0
    assert result.failed == 0
