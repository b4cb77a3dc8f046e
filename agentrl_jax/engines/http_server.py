"""An HTTP/1.1 server for one handler: h11 over trio streams. No jax.

Invariants:
- A client that closes its connection cancels its request.
- Nothing that a client sends takes more memory than the limits say, or ends the server; of a client that is refused,
  no more than 64 KiB are read.
- A client that does not read its answer does not keep its connection.
- What a page of another site makes its reader's browser post is refused: on a loopback no token keeps it out.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from ipaddress import ip_address
from typing import Any
from urllib.parse import parse_qs, urlsplit

import h11
import msgspec
import trio

from agentrl_jax.errors import ConfigError

_CHUNK_BYTES = 65_536
_JSON = "application/json"
_GONE = (OSError, trio.BrokenResourceError, trio.ClosedResourceError)


class HttpProblem(Exception):
    """Why a request is refused: the status and a sentence for the client."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpRequest:
    """headers: names in lower case; of a repeated one, the last."""

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A whole response."""

    status: int = 200
    body: bytes = b""
    content_type: str = _JSON
    headers: Mapping[str, str] = field(default_factory=dict)


Send = Callable[[bytes], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class EventStream:
    """A response of server-sent events. write: sends the data of one after the other, and returns after the last."""

    write: Callable[[Send], Awaitable[None]]


Handler = Callable[[HttpRequest], Awaitable[Answer | EventStream]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLimits:
    """max_header_bytes, max_body_bytes: larger requests are refused. idle_s: how long a connection may take for the
    next request to be here in full, and for a piece of an answer to be read."""

    max_header_bytes: int = 32_768
    max_body_bytes: int = 64 << 20
    idle_s: float = 120.0


def json_answer(value: Any, status: int = 200) -> Answer:
    """`value` as JSON; NaN and infinities become null."""
    return Answer(status=status, body=msgspec.json.encode(value))


def problem_answer(problem: HttpProblem) -> Answer:
    return json_answer({"error": {"message": str(problem), "code": problem.status}}, problem.status)


def check_bind(host: str, token: str | None) -> None:
    """Raise ConfigError if `host` is reachable from elsewhere and anybody could use the server."""
    if token is not None and not (token and token.isascii() and token.isprintable()):
        raise ConfigError("the token must consist of printable ASCII characters, at least one")
    if token is None and not is_loopback(host):
        raise ConfigError(
            f"--host {host} can be reached from other machines, which could then sample from this model and replace "
            "its weights: give a --token that clients must send, or stay on 127.0.0.1"
        )


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach it."""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


async def check_address(host: str, port: int) -> None:
    """Raise ConfigError if nobody can listen there now, so that it is known before anything long begins."""
    for listener in await listen(host, port):
        await listener.aclose()


async def listen(host: str, port: int, *, backlog: int | None = None) -> list[trio.SocketListener]:
    """Listeners there; port 0: the system's choice. Raises ConfigError if the address cannot be had."""
    try:
        return await trio.open_tcp_listeners(port, host=host, backlog=backlog)
    except OSError as error:
        raise ConfigError(f"cannot listen on {host}:{port}: {error}") from error


Refuse = Callable[[HttpRequest], Answer | None]
"""What a request is answered instead of being handled, by all of it but its body; None: nothing, it is handled."""


async def serve_http(
    handler: Handler,
    *,
    host: str,
    port: int,
    limits: ServerLimits,
    refuse: Refuse = lambda request: None,
    task_status: trio.TaskStatus[int] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Answer requests until cancelled; reports the port (the system's choice for port 0) once it listens.

    Raises ConfigError if the address cannot be had.
    """
    listeners = await listen(host, port)
    task_status.started(listeners[0].socket.getsockname()[1])
    await trio.serve_listeners(partial(serve_connection, handler=handler, limits=limits, refuse=refuse), listeners)


Explain = Callable[[HttpProblem], Answer]


async def serve_connection(
    stream: trio.abc.Stream,
    *,
    handler: Handler,
    limits: ServerLimits,
    explain: Explain = problem_answer,
    refuse: Refuse = lambda request: None,
    received: bytes = b"",
) -> None:
    """Answer the requests of one connection, one after the other, until either side ends it.

    explain: how refusals are worded. received: what has been read of the connection already.
    """
    connection = _Connection(stream, limits, explain, refuse, received)
    try:
        while await connection.answer_one(handler):
            pass
    except _GONE:
        pass  # a client may leave at any time
    finally:
        await trio.aclose_forcefully(stream)


class _RefusedError(Exception):
    """A request is not handled. is_whole: all of it has been read, so that others may follow."""

    def __init__(self, answer: Answer, *, is_whole: bool) -> None:
        super().__init__("refused")
        self.answer, self.is_whole = answer, is_whole


class _Connection:
    def __init__(
        self, stream: trio.abc.Stream, limits: ServerLimits, explain: Explain, refuse: Refuse, received: bytes
    ) -> None:
        self._stream = stream
        self._limits = limits
        self._explain, self._refuse = explain, refuse
        self._h11 = h11.Connection(h11.SERVER, max_incomplete_event_size=limits.max_header_bytes)
        if received:
            self._h11.receive_data(received)

    async def answer_one(self, handler: Handler) -> bool:
        """Return whether the connection can serve another request."""
        request = None
        try:
            with trio.move_on_after(self._limits.idle_s):
                request = await self._read_request()
            if request is None:
                return False
        except HttpProblem as problem:
            await self._send_answer(self._explain(problem), is_last=True)
            return False
        except _RefusedError as refused:
            await self._send_answer(refused.answer, is_last=not refused.is_whole)
            return refused.is_whole and self._is_ready()
        except h11.RemoteProtocolError as error:
            broken = HttpProblem(error.error_status_hint, str(error))
            await self._send_answer(self._explain(broken), is_last=True)
            return False
        return await self._respond(request, handler) and self._is_ready()

    def _is_ready(self) -> bool:
        if self._h11.our_state is not h11.DONE:
            return False
        self._h11.start_next_cycle()
        return True

    async def _read_request(self) -> HttpRequest | None:
        head: HttpRequest | None = None
        refusal: Answer | None = None
        parts: list[bytes] = []
        num_bytes = 0
        while True:
            event = self._h11.next_event()
            if event is h11.NEED_DATA:
                if self._h11.they_are_waiting_for_100_continue:
                    await self._send(h11.InformationalResponse(status_code=100, headers=[]))
                self._h11.receive_data(bytes(await self._stream.receive_some(_CHUNK_BYTES)))
            elif isinstance(event, h11.Request):
                head = _request(event)
                refusal = self._refuse(head)
                num_bytes = 0
                self._check_size(_announced_bytes(event), refusal)
            elif isinstance(event, h11.Data):
                num_bytes += len(event.data)
                self._check_size(num_bytes, refusal)
                parts.append(bytes(event.data))
            elif isinstance(event, h11.EndOfMessage):
                assert head is not None
                if refusal is not None:
                    raise _RefusedError(refusal, is_whole=True)
                return replace(head, body=b"".join(parts))
            else:  # closed between two requests
                return None

    def _check_size(self, num_bytes: int, refusal: Answer | None) -> None:
        if refusal is not None and num_bytes > _CHUNK_BYTES:
            raise _RefusedError(refusal, is_whole=False)
        if num_bytes > self._limits.max_body_bytes:
            raise HttpProblem(413, f"a body may have {self._limits.max_body_bytes} bytes, got {num_bytes} or more")

    async def _respond(self, request: HttpRequest, handler: Handler) -> bool:
        """Return whether the response went out whole; the client's leaving cancels the handler."""
        is_sent = False
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._watch_for_end, nursery.cancel_scope)
            try:
                try:
                    answer = await handler(request)
                except HttpProblem as problem:
                    answer = self._explain(problem)
                if isinstance(answer, EventStream):
                    await self._send_events(answer)
                else:
                    await self._send_answer(answer)
                is_sent = True
            except _GONE:
                pass  # nobody is left to be told
            nursery.cancel_scope.cancel()
        return is_sent

    async def _watch_for_end(self, scope: trio.CancelScope) -> None:
        num_bytes = 0
        while num_bytes <= _CHUNK_BYTES:
            try:
                data = await self._stream.receive_some(_CHUNK_BYTES)
            except _GONE:
                break
            if not data:
                break
            num_bytes += len(data)  # the next request, ahead of time
            self._h11.receive_data(bytes(data))
        scope.cancel()

    async def _send_answer(self, answer: Answer, *, is_last: bool = False) -> None:
        if self._h11.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            return
        headers = [("content-length", str(len(answer.body))), ("content-type", answer.content_type)]
        headers += list(answer.headers.items()) + ([("connection", "close")] if is_last else [])
        response = h11.Response(status_code=answer.status, headers=headers)
        await self._send(response, h11.Data(answer.body), h11.EndOfMessage())

    async def _send_events(self, answer: EventStream) -> None:
        headers = [
            ("content-type", "text/event-stream"),
            ("cache-control", "no-cache"),
            ("transfer-encoding", "chunked"),
        ]
        await self._send(h11.Response(status_code=200, headers=headers))
        await answer.write(lambda data: self._send(h11.Data(b"data: " + data + b"\n\n")))
        await self._send(h11.EndOfMessage())

    async def _send(self, *events: h11.Event) -> None:
        data = b"".join(self._h11.send(event) or b"" for event in events)
        with trio.move_on_after(self._limits.idle_s) as waiting:
            await self._stream.send_all(data)
        if waiting.cancelled_caught:
            raise trio.BrokenResourceError(f"the client has read nothing for {self._limits.idle_s} s")


def _announced_bytes(head: h11.Request) -> int:
    return next((int(value) for name, value in head.headers if name == b"content-length"), 0)


def _request(head: h11.Request) -> HttpRequest:
    """All of it but its body."""
    try:
        target = urlsplit(head.target.decode("latin-1"))
    except ValueError as error:
        raise HttpProblem(400, f"expected a path, got {head.target!r}: {error}") from error
    headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in head.headers}
    if head.method != b"GET" and headers.get("sec-fetch-site") in ("cross-site", "same-site"):
        raise HttpProblem(403, "a page of another site may not ask for this")
    return HttpRequest(
        method=head.method.decode("ascii"),
        path=target.path,
        query={name: values[-1] for name, values in parse_qs(target.query).items()},
        headers=headers,
        body=b"",
    )
