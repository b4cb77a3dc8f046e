"""An HTTP/1.1 client for thousands of requests at a time: h11 over trio streams, connections kept and reused. No jax.

Invariants:
- A connection serves one request at a time, and is kept only after a whole response: one whose request failed or was
  cancelled is closed, never read on.
- A request has at most one effect unless it says that it is idempotent: others are never repeated, and travel on a new
  connection, or on one that was used a moment ago (`reuse_s`), so that none meets one that the server has given up. An
  idempotent one is repeated once, on a new connection.
"""

from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import SplitResult, urlsplit

import h11
import msgspec
import trio

from agentrl_jax.engines.http_connect import Connect, tcp_connect
from agentrl_jax.errors import ConfigError, EngineError
from agentrl_jax.redaction import without_passwords

T = TypeVar("T")

_CHUNK_BYTES = 65_536
_BROKEN = (OSError, trio.BrokenResourceError, trio.ClosedResourceError, h11.RemoteProtocolError)


class HttpError(EngineError):
    """No whole response came: the server cannot be reached, or broke off."""


class HttpConnectError(HttpError):
    """The server cannot be reached, so that nothing was sent."""


@dataclass(frozen=True, slots=True)
class HttpResponse:
    status: int
    body: bytes

    def decode(self, kind: type[T]) -> T:
        """The body as JSON of `kind`. Raises HttpError if it is not that."""
        try:
            return msgspec.json.decode(self.body, type=kind)
        except msgspec.DecodeError as error:
            raise HttpError(f"expected JSON, got {self.body[:200]!r}: {error}") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpLimits:
    """max_connections: requests that are under way at a time; more wait. idle_s: how long a connection is kept unused,
    shorter than any server keeps its end (uvicorn: 5 s). reuse_s: a request that is not idempotent may take a
    connection that was used less than so long ago; 0: none. max_response_bytes: of one body."""

    max_connections: int = 4096
    idle_s: float = 4.0
    reuse_s: float = 0.0
    max_response_bytes: int = 1 << 28


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpStatistics:
    """Counts since the start, but for num_idle: connections that wait for their next request."""

    num_requests: int
    num_connections: int
    num_retries: int
    num_idle: int


@asynccontextmanager
async def open_http_client(
    url: str, *, token: str | None = None, connect: Connect | None = None, limits: HttpLimits | None = None
) -> AsyncIterator["HttpClient"]:
    """A client of the server at `url` (http or https, perhaps with a path that goes before every target).

    token: sent as a bearer token. connect: how to reach the server (default: TCP, and TLS for https).
    Nothing is sent yet. Raises ConfigError for a URL that is none.
    """
    client = HttpClient(url, token=token, connect=connect, limits=limits or HttpLimits())
    try:
        yield client
    finally:
        with trio.CancelScope(shield=True):  # closing by force does not wait
            await client.close()


class HttpClient:
    """See `open_http_client`."""

    def __init__(self, url: str, *, token: str | None, connect: Connect | None, limits: HttpLimits) -> None:
        parts, host, port = _split(url)
        if token is not None and not (token.isascii() and token.isprintable()):
            raise ConfigError("the token must consist of printable ASCII characters")
        self.url = url
        self._limits = limits
        self._path = parts.path.rstrip("/")
        self._connect = connect or tcp_connect(parts.scheme, host, port)
        self._headers = [("host", parts.netloc), ("accept", "application/json")]
        if token is not None:
            self._headers.append(("authorization", f"Bearer {token}"))
        self._idle: deque[_Connection] = deque()  # the one that was used last is at the right
        self._limiter = trio.CapacityLimiter(limits.max_connections)
        self._num_requests = self._num_connections = self._num_retries = 0

    def statistics(self) -> HttpStatistics:
        return HttpStatistics(
            num_requests=self._num_requests,
            num_connections=self._num_connections,
            num_retries=self._num_retries,
            num_idle=len(self._idle),
        )

    async def post(self, target: str, body: Any, *, is_idempotent: bool) -> HttpResponse:
        """Send `body` as JSON; see `request`."""
        return await self.request("POST", target, msgspec.json.encode(body), is_idempotent=is_idempotent)

    async def get(self, target: str) -> HttpResponse:
        """See `request`; a GET is idempotent."""
        return await self.request("GET", target, b"", is_idempotent=True)

    async def request(
        self,
        method: str,
        target: str,
        body: bytes,
        *,
        is_idempotent: bool,
        headers: Sequence[tuple[str, str]] = (),
    ) -> HttpResponse:
        """Send one request and return its response, whatever its status; the caller's cancel scope is the deadline.

        is_idempotent: sending it twice has one effect. headers: beside those of every request. Raises HttpError: no
        connection, or no whole response.
        """
        message = self._message(method, target, body, headers)
        self._num_requests += 1
        async with self._limiter:
            kept = await self._take_idle(self._limits.idle_s if is_idempotent else self._limits.reuse_s)
            if kept is not None:
                try:
                    return await self._exchange(kept, message, body)
                except HttpError:
                    if kept.has_answered or not is_idempotent:
                        raise
                    self._num_retries += 1
            return await self._exchange(await self._open(), message, body)

    async def close(self) -> None:
        """Close every connection that waits for its next request."""
        while self._idle:
            await trio.aclose_forcefully(self._idle.pop().stream)

    def _message(self, method: str, target: str, body: bytes, added: Sequence[tuple[str, str]]) -> h11.Request:
        headers = [*self._headers, *added]
        if body or method == "POST":
            headers = [*headers, ("content-type", "application/json"), ("content-length", str(len(body)))]
        return h11.Request(method=method, target=self._path + target, headers=headers)

    async def _take_idle(self, within_s: float) -> "_Connection | None":
        """The connection that was used last, if that is less than so long ago. Closes those that the server may."""
        now = trio.current_time()
        while self._idle and now - self._idle[0].used_at >= self._limits.idle_s:
            await trio.aclose_forcefully(self._idle.popleft().stream)
        return self._idle.pop() if self._idle and now - self._idle[-1].used_at < within_s else None

    async def _open(self) -> "_Connection":
        try:
            stream = await self._connect()
        except _BROKEN as error:
            raise HttpConnectError(f"cannot reach {self.url}: {error}") from error
        self._num_connections += 1
        return _Connection(stream)

    async def _exchange(self, connection: "_Connection", message: h11.Request, body: bytes) -> HttpResponse:
        is_kept = False
        try:
            await connection.send(message, body)
            response = await connection.receive(self._limits.max_response_bytes)
            # A server whose handler failed may close right after its answer (uvicorn does), and does not announce it.
            is_kept = response.status < 500 and connection.is_reusable()
        except _BROKEN as error:
            raise HttpError(
                f"{self.url} broke off {message.target.decode()}: {error or type(error).__name__}"
            ) from error
        finally:
            if not is_kept:
                await trio.aclose_forcefully(connection.stream)
        if is_kept:
            self._idle.append(connection)
        return response


class _Connection:
    """One stream and what h11 knows of it. has_answered: the first byte of the present response is here."""

    __slots__ = ("_h11", "has_answered", "stream", "used_at")

    def __init__(self, stream: trio.abc.Stream) -> None:
        self.stream = stream
        self.has_answered = False
        self.used_at = 0.0
        self._h11 = h11.Connection(h11.CLIENT)

    async def send(self, message: h11.Request, body: bytes) -> None:
        self.has_answered = False
        head = self._h11.send(message) or b""
        self._h11.send(h11.Data(body))
        self._h11.send(h11.EndOfMessage())
        try:
            await self.stream.send_all(head + body)
        except trio.BrokenResourceError:
            # A server that refuses a request before it has read all of it still says why, perhaps.
            if len(head) + len(body) <= _CHUNK_BYTES:
                raise

    async def receive(self, max_bytes: int) -> HttpResponse:
        status, parts, num_bytes = 0, [], 0
        while True:
            event = self._h11.next_event()
            if event is h11.NEED_DATA:
                data = await self.stream.receive_some(_CHUNK_BYTES)
                self.has_answered |= bool(data)
                self._h11.receive_data(bytes(data))
            elif isinstance(event, h11.Data):
                parts.append(bytes(event.data))
                num_bytes += len(event.data)
                if num_bytes > max_bytes:
                    raise h11.RemoteProtocolError(f"a response of more than {max_bytes} bytes")
            elif isinstance(event, h11.Response):
                status = event.status_code
            elif isinstance(event, h11.EndOfMessage):
                return HttpResponse(status, b"".join(parts))
            elif isinstance(event, h11.ConnectionClosed):
                raise h11.RemoteProtocolError("the connection was closed before a response")

    def is_reusable(self) -> bool:
        """Whether the server keeps the connection too; then it is ready for the next request."""
        is_kept = self._h11.our_state is h11.DONE and self._h11.their_state is h11.DONE
        if is_kept:
            self._h11.start_next_cycle()
            self.used_at = trio.current_time()
        return is_kept


def _split(url: str) -> tuple[SplitResult, str, int | None]:
    """Its parts, host and port. Raises ConfigError if no request could be sent there."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
        host.encode("idna")  # as looking up its address does
    except ValueError as error:
        raise ConfigError(f"expected a URL like http://host:port, got {url!r}: {error}") from error
    is_sendable = url.isascii() and url.isprintable() and " " not in url
    if parts.scheme not in ("http", "https") or not host or not is_sendable:
        raise ConfigError(f"expected a URL like http://host:port, got {url!r}")
    if "@" in parts.netloc:  # it would go into the Host header, and open nothing
        raise ConfigError(
            f"expected a URL without user and password, got {without_passwords(url)}: give a token instead"
        )
    return parts, host, port
