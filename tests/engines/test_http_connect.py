"""Connections over real sockets: names are resolved once, and anew where their address no longer answers."""

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest
import trio

from agentrl_jax.engines.http import HttpConnectError, open_http_client
from agentrl_jax.engines.http_connect import TcpConnector


class Names(trio.abc.HostnameResolver):
    """Every name has the same addresses; counts who asks."""

    def __init__(self, *addresses: str) -> None:
        self.addresses = addresses
        self.num_asked = 0

    async def getaddrinfo(
        self, host: Any, port: Any, family: int = 0, type: int = 0, proto: int = 0, flags: int = 0
    ) -> Any:
        await trio.lowlevel.checkpoint()
        self.num_asked += 1
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, int(port))) for address in self.addresses]

    async def getnameinfo(self, sockaddr: Any, flags: int) -> Any:
        raise NotImplementedError


@pytest.fixture
async def names() -> Names:
    names = Names("127.0.0.1")
    trio.socket.set_custom_hostname_resolver(names)  # of this trio.run
    await trio.lowlevel.checkpoint()
    return names


@asynccontextmanager
async def listening(host: str, port: int = 0) -> AsyncIterator[int]:
    """A server that keeps what connects to it open."""

    async def hold(stream: trio.SocketStream) -> None:
        await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(partial(trio.serve_tcp, hold, port, host=host))
        yield listeners[0].socket.getsockname()[1]
        nursery.cancel_scope.cancel()


async def connect_many(connector: TcpConnector, number: int) -> list[trio.SocketStream]:
    streams: list[trio.SocketStream] = []

    async def connect() -> None:
        streams.append(await connector())

    async with trio.open_nursery() as nursery:
        for _ in range(number):
            nursery.start_soon(connect)
    for stream in streams:
        await stream.aclose()
    return streams


async def test_a_name_is_resolved_once_however_many_connect(names: Names) -> None:
    async with listening("127.0.0.1") as port:
        connector = TcpConnector("engine.test", port)
        assert len(await connect_many(connector, 30)) == 30
        assert len(await connect_many(connector, 30)) == 30
    assert names.num_asked == 1


async def test_a_name_that_has_moved_is_found_again(names: Names) -> None:
    async with listening("127.0.0.1") as port:
        connector = TcpConnector("engine.test", port)
        await connect_many(connector, 2)
    names.addresses = ("127.0.0.2",)
    async with listening("127.0.0.2", port):
        assert len(await connect_many(connector, 5)) == 5
    with pytest.raises(OSError):
        await connector()
    assert names.num_asked == 3


async def test_a_second_address_is_tried(names: Names) -> None:
    names.addresses = ("127.0.0.3", "127.0.0.1")
    async with listening("127.0.0.1") as port:
        assert len(await connect_many(TcpConnector("engine.test", port), 5)) == 5


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]", "localhost"])
async def test_who_cannot_be_reached_is_named(host: str) -> None:
    async with listening("127.0.0.1") as port:
        pass
    url = f"http://{host}:{port}"
    async with open_http_client(url) as client:
        for _ in range(2):
            with pytest.raises(HttpConnectError, match="cannot reach"):
                await client.get("/health")
