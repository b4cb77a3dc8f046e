"""Arguments for which a simulated calculation would take all time and memory there is.

The simulators calculate with whatever precision and size they are asked for.
"""

from collections.abc import Mapping
from typing import Any

MAX_DIGITS = 10_000
"""Of a precision, of decimal places, and of a power."""

_COUNTS_OF_DIGITS = ("precision", "decimal_places")
_BITS_PER_DIGIT = 3.33


def check_bounds(arguments: Mapping[str, Any]) -> None:
    """Raises ValueError, worded for the policy, for a call that would never end. arguments: by name.

    >>> check_bounds({"value": 10, "base": 2, "precision": 50})
    """
    for name in _COUNTS_OF_DIGITS:
        if abs(_number(arguments.get(name))) > MAX_DIGITS:
            raise ValueError(f"{name} must be at most {MAX_DIGITS}")
    base: Any = arguments.get("base")
    exponent: Any = arguments.get("exponent")
    is_whole = isinstance(base, int) and isinstance(exponent, int)
    if is_whole and abs(base) > 1 and base.bit_length() * exponent > MAX_DIGITS * _BITS_PER_DIGIT:
        raise ValueError("the result is too large to represent")


def _number(given: object) -> float:
    """0 for what is no number, which the simulators refuse themselves."""
    return given if isinstance(given, int | float) else 0
