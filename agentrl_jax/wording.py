"""Small pieces of what is said to people."""

import shlex
from pathlib import Path


def counted(number: int, noun: str) -> str:
    """The number and what it counts: "1 step", "1,200 steps"."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def quoted(path: Path) -> str:
    """As a shell reads it back."""
    return shlex.quote(str(path))
