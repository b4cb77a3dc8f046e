"""How an HTTP client reaches its server: TCP, and TLS for https. No jax."""

import socket
import ssl
from collections.abc import Awaitable, Callable
from ipaddress import ip_address
from typing import TypeAlias

import trio

Connect: TypeAlias = Callable[[], Awaitable[trio.abc.Stream]]
"""Opens one connection. Raises OSError."""

_Address: TypeAlias = tuple[socket.AddressFamily, tuple[str, int]]


def tcp_connect(scheme: str, host: str, port: int | None) -> Connect:
    """How to reach an http or https server; port: None is the scheme's."""
    if scheme == "http":
        return TcpConnector(host, port or 80)
    tcp = TcpConnector(host, port or 443)
    context = ssl.create_default_context()

    async def connect_tls() -> trio.abc.Stream:
        return trio.SSLStream(await tcp(), context, server_hostname=host, https_compatible=True)

    return connect_tls


class TcpConnector:
    """Opens connections to one host.

    A thousand at a time cost little: a name is resolved, and its addresses tried in turn, once and not for each; where
    the address that answered no longer does, they are looked for anew.
    """

    def __init__(self, host: str, port: int) -> None:
        self._host, self._port = host, port
        self._known = _as_address(host, port)
        self._is_literal = self._known is not None
        self._looking = trio.Lock()

    async def __call__(self) -> trio.SocketStream:
        """Raises OSError."""
        known = self._known
        if known is not None:
            try:
                return await _open(known)
            except OSError:
                if self._is_literal:
                    raise
        async with self._looking:
            if self._known is known:
                stream = await trio.open_tcp_stream(self._host, self._port)
                found: _Address = stream.socket.family, stream.socket.getpeername()
                self._known = found
                return stream
        return await self()


def _as_address(host: str, port: int) -> _Address | None:
    try:
        literal = ip_address(host)
    except ValueError:
        return None
    return (socket.AF_INET if literal.version == 4 else socket.AF_INET6), (str(literal), port)


async def _open(address: _Address) -> trio.SocketStream:
    family, place = address
    plain = trio.socket.socket(family, socket.SOCK_STREAM)
    try:
        await plain.connect(place)
    except BaseException:
        plain.close()
        raise
    return trio.SocketStream(plain)
