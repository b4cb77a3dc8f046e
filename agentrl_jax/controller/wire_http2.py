"""gRPC's bidirectional streams over HTTP/2 without TLS, either side: h2 over a trio stream.

Messages are framed by 5 bytes (not compressed, length) and flow-controlled both ways: whoever does not read stops the
other side, not this process. One task reads a connection and one writes it, so that a caller who is cancelled leaves
no half of a frame behind.

Needs the package `h2` (extra `serve`).
"""

import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any, Final
from urllib.parse import quote, unquote

import h2.errors
import h2.events
import h2.exceptions
import trio

from agentrl_jax.controller.wire_frames import FrameIO
from agentrl_jax.errors import AgentRLError

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
"""What a client of HTTP/2 says first."""

OK, UNKNOWN, RESOURCE_EXHAUSTED, UNIMPLEMENTED, INTERNAL, UNAUTHENTICATED = 0, 2, 8, 12, 13, 16
"""Status codes of gRPC."""

_HEADER = struct.Struct(">BI")
_LAST_WORDS_S = 1.0
"""For telling the other side why its connection is closed."""


class GrpcError(AgentRLError):
    """A stream ended before its end: the connection broke, or the other side said why."""


class GrpcMessageError(GrpcError):
    """What came is no message that can be taken: gRPC's status code for it, and a sentence."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class GrpcRefusal(Exception):
    """Why a call is answered with an error: gRPC's status code and a sentence."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class GrpcStream:
    """One call. Any task may send, one receives.

    headers: what the other side opened it with; on the client's side empty.
    """

    def __init__(self, connection: "_Connection", stream_id: int, headers: Mapping[str, str]) -> None:
        self.headers = headers
        self._connection, self._id = connection, stream_id
        self._buffer = bytearray()
        self._is_ended = False
        self._error = ""
        self._news, self._sending = trio.Event(), trio.Lock()
        self._num_unread = 0  # flow-controlled bytes that the other side has not been told were read

    async def send(self, message: bytes) -> None:
        """Send one message, after those of other tasks. Raises GrpcError if the stream is over; a message that is
        cancelled halfway ends it."""
        async with self._sending:
            await self._connection.send_data(self._id, _HEADER.pack(0, len(message)) + message)

    async def receive(self, *, max_bytes: int) -> bytes | None:
        """The next message; None after the last. Raises GrpcError if the stream breaks off, GrpcMessageError for a
        message that is too long, compressed, or not all there."""
        while not self._has_message(max_bytes):
            if self._error:
                raise GrpcError(self._error)
            if self._is_ended:
                if self._buffer:
                    raise GrpcMessageError(INTERNAL, "the stream ended within a message")
                return None
            self._news = trio.Event()
            self._acknowledge()
            await self._news.wait()
        _, length = _HEADER.unpack_from(self._buffer)
        message = bytes(memoryview(self._buffer)[_HEADER.size : _HEADER.size + length])
        del self._buffer[: _HEADER.size + length]
        self._acknowledge()
        return message

    def _acknowledge(self) -> None:
        taken, self._num_unread = self._num_unread, 0
        self._connection.acknowledge(self._id, taken)

    def _has_message(self, max_bytes: int) -> bool:
        if len(self._buffer) < _HEADER.size:
            return False
        is_compressed, length = _HEADER.unpack_from(self._buffer)
        if is_compressed:
            raise self._compressed()
        if length > max_bytes:
            raise GrpcMessageError(RESOURCE_EXHAUSTED, f"a message may have {max_bytes} bytes, got one of {length}")
        return len(self._buffer) - _HEADER.size >= int(length)

    def _compressed(self) -> GrpcMessageError:
        encoding = self.headers.get("grpc-encoding", "identity")
        if encoding == "identity":
            return GrpcMessageError(INTERNAL, "a message is marked as compressed, and nothing says by what")
        sentence = f"messages compressed by {encoding} are not taken: send them as they are (identity)"
        return GrpcMessageError(UNIMPLEMENTED, sentence)

    def raise_error(self) -> None:
        """Raise GrpcError if the stream is over, or broken."""
        if self._error:
            raise GrpcError(self._error)

    def fed(self, data: bytes, flow_bytes: int) -> None:
        """Bytes have come; told by the connection."""
        self._buffer += data
        self._num_unread += flow_bytes
        self._news.set()

    def ended(self, error: str = "") -> None:
        """No more will come; told by the connection."""
        self._is_ended = True
        self._error = self._error or error
        self._news.set()


ServeStream = Callable[[GrpcStream], Awaitable[None]]
"""Serves one call to its end. Raises GrpcRefusal to answer with an error."""


class _Connection(FrameIO):
    """What h2 knows of one TCP connection, and the streams on it."""

    def __init__(self, stream: trio.abc.Stream, *, is_client: bool) -> None:
        super().__init__(stream, is_client=is_client)
        self.streams: dict[int, GrpcStream] = {}
        self.on_opened: Callable[[GrpcStream, int], None] | None = None
        self._room: dict[int, trio.Event] = {}

    @property
    def is_used(self) -> bool:
        return bool(self.streams)

    async def send_data(self, stream_id: int, data: bytes) -> None:
        """Send `data` in frames, as the other side's windows permit. Raises GrpcError if the stream is over."""
        view = memoryview(data)
        while view:
            self._check_open(stream_id)
            with _said_as_grpc_error():
                room = min(self.h2.local_flow_control_window(stream_id), self.h2.max_outbound_frame_size, len(view))
                if room > 0:
                    self.h2.send_data(stream_id, bytes(view[:room]))
            if room > 0:
                view = view[room:]
                self.flush()
                continue
            try:
                await self._room.setdefault(stream_id, trio.Event()).wait()
            except trio.Cancelled:
                if len(view) < len(data):
                    self._tear(stream_id)
                raise
        await trio.lowlevel.cancel_shielded_checkpoint()

    def _check_open(self, stream_id: int) -> None:
        stream = self.streams.get(stream_id)
        if stream is None:
            raise GrpcError("the stream is over")
        stream.raise_error()

    def _tear(self, stream_id: int) -> None:
        """End a stream on which a message cannot be finished."""
        with suppress(h2.exceptions.ProtocolError):  # it is over already
            self.h2.reset_stream(stream_id, h2.errors.ErrorCodes.CANCEL)
        self.flush()
        self._end(stream_id, "a message was not finished")

    def acknowledge(self, stream_id: int, num_bytes: int) -> None:
        """Give the other side room for so many bytes more."""
        if num_bytes:
            with suppress(h2.exceptions.ProtocolError):  # the connection is over
                self.h2.acknowledge_received_data(num_bytes, stream_id)
            self.flush()

    def handle(self, event: h2.events.Event) -> None:
        if isinstance(event, h2.events.RequestReceived):
            self._opened(event)
        elif isinstance(event, h2.events.DataReceived):
            self._received(event)
        elif isinstance(event, h2.events.TrailersReceived | h2.events.ResponseReceived):
            self._answered(event)
        elif isinstance(event, h2.events.StreamEnded):
            self._end(event.stream_id, "")
        elif isinstance(event, h2.events.StreamReset):
            self._end(event.stream_id, f"the other side reset the stream (code {event.error_code})")
        elif isinstance(event, h2.events.WindowUpdated):
            self._wake(event.stream_id or 0)
        elif isinstance(event, h2.events.RemoteSettingsChanged):
            self._wake(0)

    def _opened(self, event: h2.events.RequestReceived) -> None:
        if self.on_opened is not None:
            headers = _decoded(event.headers)
            stream = self.streams[event.stream_id] = GrpcStream(self, event.stream_id, headers)
            self.on_opened(stream, event.stream_id)

    def _received(self, event: h2.events.DataReceived) -> None:
        stream, flow_bytes = self.streams.get(event.stream_id), event.flow_controlled_length or 0
        if stream is not None:
            stream.fed(bytes(event.data or b""), flow_bytes)
        else:  # of a stream that is over here; its bytes still count against the whole connection
            self.acknowledge(event.stream_id, flow_bytes)

    def _answered(self, event: h2.events.TrailersReceived | h2.events.ResponseReceived) -> None:
        headers = _decoded(event.headers)
        status, code = headers.get(":status", "200"), headers.get("grpc-status", "0")
        if status != "200" or code != "0":
            message = unquote(headers.get("grpc-message", ""))
            self._end(event.stream_id, f"refused with HTTP {status}, gRPC {code}: {message}")

    def _end(self, stream_id: int, error: str) -> None:
        if stream_id in self.streams:
            self.streams[stream_id].ended(error)
        if error:
            self._wake(stream_id)

    def _wake(self, stream_id: int) -> None:
        """Have senders look at their window again; 0: all of them."""
        for waiting in [stream_id] if stream_id else list(self._room):
            if waiting in self._room:
                self._room.pop(waiting).set()

    def forget(self, stream_id: int) -> None:
        """The stream is over here."""
        stream = self.streams.pop(stream_id, None)
        if stream is not None:
            stream.ended("the stream is over")
        self._wake(stream_id)

    def close(self, error: str) -> None:
        """Every stream ends with `error`."""
        for stream_id in list(self.streams):
            self._end(stream_id, error)


def _decoded(headers: Iterable[Any] | None) -> dict[str, str]:
    """Names and values as HTTP/1.1 reads them: every byte is a character."""
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in headers or ()}


@contextmanager
def _said_as_grpc_error() -> Iterator[None]:
    try:
        yield
    except h2.exceptions.ProtocolError as error:
        raise GrpcError(f"the stream is over: {error or type(error).__name__}") from error


async def serve_http2(stream: trio.abc.Stream, serve: ServeStream, *, received: bytes = b"") -> None:
    """Serve the calls of one connection until either side ends it. received: what has been read of it already."""
    connection = _Connection(stream, is_client=False)
    try:
        async with trio.open_nursery() as nursery:
            connection.on_opened = lambda call, id_: nursery.start_soon(_serve_call, connection, call, id_, serve)
            nursery.start_soon(connection.write)
            connection.close(await connection.read(received))
            with trio.move_on_after(_LAST_WORDS_S):
                await connection.wait_written()
            nursery.cancel_scope.cancel()
    finally:
        await trio.aclose_forcefully(stream)


async def _serve_call(connection: _Connection, call: GrpcStream, stream_id: int, serve: ServeStream) -> None:
    headers = [(":status", "200"), ("content-type", "application/grpc"), ("grpc-accept-encoding", "identity")]
    code, message = OK, ""
    try:
        with suppress(h2.exceptions.ProtocolError):
            connection.h2.send_headers(stream_id, headers)
            connection.flush()
        await serve(call)
    except (GrpcRefusal, GrpcMessageError) as refusal:
        code, message = refusal.code, str(refusal)
    except GrpcError as error:
        code, message = UNKNOWN, str(error)
    finally:
        trailers = [("grpc-status", str(code)), ("grpc-message", quote(message, safe=" "))]
        with suppress(h2.exceptions.ProtocolError):  # it is over already
            connection.h2.send_headers(stream_id, trailers, end_stream=True)
            connection.flush()
        connection.forget(stream_id)


@asynccontextmanager
async def open_grpc_call(
    stream: trio.abc.Stream, path: str, *, authority: str, token: str | None = None
) -> AsyncIterator[GrpcStream]:
    """One bidirectional call of `path` over a connection of its own, which the block's end closes.

    token: sent as a bearer token.
    """
    connection = _Connection(stream, is_client=True)
    headers = [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", path),
        (":authority", authority),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
    ]
    if token is not None:
        headers.append(("authorization", f"Bearer {token}"))
    stream_id = connection.h2.get_next_available_stream_id()
    call = connection.streams[stream_id] = GrpcStream(connection, stream_id, {})
    connection.h2.send_headers(stream_id, headers)

    async def read() -> None:
        connection.close(await connection.read())

    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(connection.write)
            nursery.start_soon(read)
            yield call
            nursery.cancel_scope.cancel()
    finally:
        await trio.aclose_forcefully(stream)
