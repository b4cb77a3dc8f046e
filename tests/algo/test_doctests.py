"""The examples in docstrings are true, and every public function of the algorithm core has one."""

import doctest
import pkgutil
from importlib import import_module
from inspect import getmembers, isfunction

import pytest

import agentrl_jax.algo

MODULES = sorted(f"agentrl_jax.algo.{module.name}" for module in pkgutil.iter_modules(agentrl_jax.algo.__path__))


@pytest.mark.parametrize(
    "name", [*MODULES, "agentrl_jax.seeding", "agentrl_jax.testing.tokenizers", "agentrl_jax.testing.trees"]
)
def test_docstring_examples(name: str) -> None:
    assert doctest.testmod(import_module(name)).failed == 0


@pytest.mark.parametrize("name", MODULES)
def test_every_public_function_shows_an_example(name: str) -> None:
    module = import_module(name)
    own = [f for _, f in getmembers(module, isfunction) if f.__module__ == name and not f.__name__.startswith("_")]
    assert [f.__name__ for f in own if ">>>" not in (f.__doc__ or "")] == []
