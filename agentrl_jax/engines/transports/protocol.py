"""What every transport offers, and the buckets that those send which do not send a file at once. No jax."""

from collections.abc import Iterator
from typing import Protocol

from agentrl_jax.engines.exports import Export


class Transport(Protocol):
    """Loads exports into one server."""

    async def prepare(self, export: Export) -> None:
        """Do what can be done while the server samples, before `export` is loaded. Raises EngineError, and has changed
        nothing then that turns would notice."""
        ...

    async def load(self, export: Export, weight_version: str, *, flush_cache: bool) -> None:
        """Return once the server holds every tensor of `export` and calls them `weight_version`.

        The server is paused. Raises EngineError; what the server holds is then unknown.
        """
        ...


def buckets(export: Export, bucket_bytes: int) -> Iterator[list[str]]:
    """Yield the names of all tensors in the file's order, in runs of at most `bucket_bytes`; one at least."""
    run: list[str] = []
    size = 0
    for name, place in export.places.items():
        if run and size + place.num_bytes > bucket_bytes:
            yield run
            run, size = [], 0
        run.append(name)
        size += place.num_bytes
    yield run
