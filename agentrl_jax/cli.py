"""How config dataclasses appear on a command line."""

from typing import TypeVar

from tyro.conf import Suppress

T = TypeVar("T")

Derived = Suppress[T]
"""A field that a launcher derives from other settings (one temperature, one longest episode): not a flag of its own."""
