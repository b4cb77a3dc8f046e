"""Counting what XLA compiles, so that a program compiled in the middle of a run is seen and not just felt."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import jax

_EVENT = "/jax/core/compile/backend_compile_duration"
_this_thread = threading.local()


class CompileCounter:
    """total: programs that were compiled inside of `counting`, by the thread that was in it."""

    def __init__(self) -> None:
        self.total = 0

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Count the compilations of the block. Other threads' (an engine's) are theirs."""
        _listen()
        before = _so_far()
        try:
            yield
        finally:
            self.total += _so_far() - before


def _so_far() -> int:
    return getattr(_this_thread, "total", 0)


@cache
def _listen() -> None:
    # Once, and for good: a listener that is taken away while another thread compiles could make JAX skip a third.
    jax.monitoring.register_event_duration_secs_listener(_on_event)


def _on_event(event: str, duration_secs: float, **_: Any) -> None:
    if event == _EVENT:  # JAX calls listeners in the thread that compiles
        _this_thread.total = _so_far() + 1
