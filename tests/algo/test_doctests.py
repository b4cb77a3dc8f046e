"""The examples in docstrings are true, and every public function of the algorithm core has one."""

import doctest
import pkgutil
from importlib import import_module
from inspect import getmembers, isfunction

import pytest

import agentrl_jax.algo

MODULES = sorted(f"agentrl_jax.algo.{module.name}" for module in pkgutil.iter_modules(agentrl_jax.algo.__path__))

NOT_NUMBERS = ("Group", "Trajectory", "TokenBatch", "LossConfig", "LossSettings", "LossOutput", "Callable")
"""A function of records, batches or other functions is shown by the tests: an example would be all preparation."""


@pytest.mark.parametrize(
    "name", [*MODULES, "agentrl_jax.seeding", "agentrl_jax.testing.tokenizers", "agentrl_jax.testing.trees"]
)
def test_docstring_examples(name: str) -> None:
    assert doctest.testmod(import_module(name)).failed == 0


@pytest.mark.parametrize("name", MODULES)
def test_every_public_function_of_numbers_shows_an_example(name: str) -> None:
    module = import_module(name)
    own = [f for _, f in getmembers(module, isfunction) if f.__module__ == name and not f.__name__.startswith("_")]
    of_numbers = [f for f in own if not any(word in str(f.__annotations__) for word in NOT_NUMBERS)]
    assert [f.__name__ for f in of_numbers if ">>>" not in (f.__doc__ or "")] == []
