"""What XLA compiles: how often, so that a program compiled in the middle of a run is seen and not just felt; and how
much memory it will need."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, NamedTuple

import jax

_EVENT = "/jax/core/compile/backend_compile_duration"
_this_thread = threading.local()


class Memory(NamedTuple):
    """Bytes on each device. temporary: what a program takes for itself. peak: its arguments and results besides."""

    temporary: int = 0
    peak: int = 0

    def at_least(self, compiled: Any) -> "Memory":
        """The larger of both figures, with those of a compiled program."""
        stats = compiled.memory_analysis()
        temporary = stats.temp_size_in_bytes
        held = stats.argument_size_in_bytes + stats.output_size_in_bytes - stats.alias_size_in_bytes
        return Memory(max(self.temporary, temporary), max(self.peak, temporary + held))


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
