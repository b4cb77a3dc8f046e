"""Counts what JAX compiles."""

from collections.abc import Iterator
from contextlib import contextmanager

import jax


@contextmanager
def counted_compiles() -> Iterator[list[str]]:
    """What JAX compiles in the block, as the names of its events."""
    compiled: list[str] = []

    def listen(event: str, duration_secs: float, **kwargs: str | int) -> None:
        if "backend_compile" in event:
            compiled.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        yield compiled
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
