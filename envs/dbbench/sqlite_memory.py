"""How much memory SQLite holds in this process."""

import ctypes
import resource
import sys
from collections.abc import Callable


def _meter() -> Callable[[], int]:
    """SQLite's own count, where Python's module exports it; else the greatest size that the process has had."""
    try:
        import _sqlite3

        counted = ctypes.CDLL(getattr(_sqlite3, "__file__", None)).sqlite3_memory_used
    except (AttributeError, OSError):
        return _peak_bytes
    counted.argtypes, counted.restype = [], ctypes.c_int64

    def used() -> int:
        return int(counted())

    return used


def _peak_bytes() -> int:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


memory_used = _meter()
"""Bytes, of all connections together."""
