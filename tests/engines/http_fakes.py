"""An HTTP server on memory streams, so that clients and servers meet in virtual time."""

from collections.abc import Callable

import trio
from trio.testing import memory_stream_pair

from agentrl_jax.engines.http_connect import Connect
from agentrl_jax.engines.http_server import Handler, ServerLimits, serve_connection

LIMITS = ServerLimits()


def connect_to(nursery: trio.Nursery, handler: Callable[[], Handler], limits: ServerLimits = LIMITS) -> Connect:
    """Every connection is served by what `handler()` returns when it is opened."""

    async def connect() -> trio.abc.Stream:
        ours, theirs = memory_stream_pair()

        async def serve() -> None:
            await serve_connection(theirs, handler=handler(), limits=limits)

        nursery.start_soon(serve)
        await trio.lowlevel.checkpoint()
        return ours

    return connect
