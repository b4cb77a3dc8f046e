"""The simulated programs of one episode, and what a call of them answers.

Calls go by name to the functions that the entry's documents name, and to nothing else.
"""

import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from typing import Any

from agentrl_jax.errors import ConfigError
from envs.bfcl.bounds import check_bounds
from envs.bfcl.entries import Entry, GoldCall
from envs.bfcl.package import Package

# What simulators raise for arguments that they did not expect, or what they answer cannot be written for: a number has
# too many digits.
_PROGRAM_ERRORS = (
    *(ArithmeticError, AssertionError, AttributeError, LookupError, MemoryError, NameError, OSError),
    *(RuntimeError, TypeError, ValueError),
)


class Programs:
    """Fresh instances of an entry's simulators, in its initial state."""

    def __init__(self, package: Package, entry: Entry) -> None:
        self._instances = {name: self._start(package.simulators[name], name, entry) for name in entry.classes}
        self._functions: dict[str, Callable[..., Any]] = {}
        for instance in self._instances.values():
            methods = dict(inspect.getmembers(instance, inspect.ismethod))
            self._functions |= {name: methods[name] for name in entry.functions.keys() & methods.keys()}
        missing = sorted(name for name in entry.functions if name not in self._functions or name.startswith("_"))
        if missing:
            raise ConfigError(f"environment bfcl: the simulators of {entry.id} lack {', '.join(missing)}")

    @staticmethod
    def _start(simulator: type, name: str, entry: Entry) -> object:
        instance: Any = simulator()
        # The mathematics program has no state.
        if name != "MathAPI":
            instance._load_scenario(deepcopy(entry.config.get(name, {})), long_context=entry.is_long_context)
        return instance

    def call(self, name: str, positional: Sequence[Any], named: Mapping[str, Any]) -> str:
        """Carry out a documented function; what it refuses or cannot do is told as an error.

        Programs keep and change what they are given, so they are given copies.
        """
        try:
            function = self._functions[name]
            check_bounds(inspect.signature(function).bind(*positional, **named).arguments)
            return _as_text(function(*deepcopy(positional), **deepcopy(dict(named))))
        except _PROGRAM_ERRORS as error:
            return f"Error during execution: {error}"

    def named_arguments(self, call: GoldCall) -> dict[str, Any]:
        """A gold call's arguments by name."""
        bound = inspect.signature(self._functions[call.name]).bind(*call.positional, **call.named)
        return dict(bound.arguments)

    def differs_from(self, other: "Programs") -> bool:
        """Whether any public attribute of a program differs."""
        return any(
            _public_state(instance) != _public_state(other._instances[name])
            for name, instance in self._instances.items()
        )


def _public_state(instance: object) -> dict[str, Any]:
    return {name: value for name, value in vars(instance).items() if not name.startswith("_")}


def _as_text(result: object) -> str:
    if isinstance(result, dict):
        try:
            return json.dumps(result)
        except (TypeError, ValueError):
            # Some functions return objects of their own.
            return str(result)
    return str(result)
