"""gRPC streams over HTTP/2: both of our sides against each other, in memory."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from urllib.parse import unquote

import h2.config
import h2.connection
import h2.events
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock, memory_stream_pair

from agentrl_jax.controller.wire_http2 import (
    PREFACE,
    RESOURCE_EXHAUSTED,
    GrpcError,
    GrpcRefusal,
    GrpcStream,
    open_grpc_call,
    serve_http2,
)
from agentrl_jax.testing.virtual import run_virtual

LIMIT = 1 << 20
Serve = Callable[[GrpcStream], Awaitable[None]]


async def echo(call: GrpcStream) -> None:
    while (message := await call.receive(max_bytes=LIMIT)) is not None:
        await call.send(message)


@asynccontextmanager
async def calling(serve: Serve, path: str = "/service/Method") -> AsyncIterator[GrpcStream]:
    ours, theirs = memory_stream_pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve_http2, theirs, serve)
        async with open_grpc_call(ours, path, authority="host:1") as call:
            yield call


async def test_messages_come_back_whole_and_in_order() -> None:
    # Larger than a frame, than the peer's first window, and empty.
    sizes = [0, 1, 16_384, 65_535, 70_000, 300_000, 5]
    async with calling(echo) as call:
        for number, size in enumerate(sizes):
            await call.send(bytes([number]) * size)
            assert await call.receive(max_bytes=LIMIT) == bytes([number]) * size


async def test_a_server_sees_the_path() -> None:
    seen = []

    async def serve(call: GrpcStream) -> None:
        seen.append((call.headers[":path"], call.headers["content-type"]))
        await echo(call)

    async with calling(serve, "/a/B") as call:
        await call.send(b"x")
        await call.receive(max_bytes=9)
    assert seen == [("/a/B", "application/grpc")]


async def test_whoever_does_not_read_stops_the_other_side(autojump_clock: MockClock) -> None:
    num_sent = 0

    async def serve(call: GrpcStream) -> None:
        await trio.sleep(100)
        await echo(call)

    async with calling(serve) as call:
        with trio.move_on_after(50):
            for _ in range(100):
                await call.send(bytes(1 << 19))
                num_sent += 1
    assert 0 < num_sent < 50


async def test_a_refusal_has_its_code_and_its_sentence() -> None:
    async def serve(call: GrpcStream) -> None:
        await trio.lowlevel.checkpoint()
        raise GrpcRefusal(RESOURCE_EXHAUSTED, "too much, 100 %")

    async with calling(serve) as call:
        with pytest.raises(GrpcError, match="gRPC 8: too much, 100 %"):
            await call.receive(max_bytes=LIMIT)
        with pytest.raises(GrpcError):
            await call.send(b"x")


async def test_a_message_above_the_limit_ends_the_stream() -> None:
    async def serve(call: GrpcStream) -> None:
        await call.receive(max_bytes=10)

    async with calling(serve) as call:
        await call.send(bytes(11))
        with pytest.raises(GrpcError, match="gRPC 8: a message may have 10 bytes, got one of 11"):
            await call.receive(max_bytes=LIMIT)


FIELDS = [(":method", "POST"), (":scheme", "http"), (":path", "/a"), (":authority", "h")]


async def answer_to(serve: Serve, data: bytes, *more: tuple[str, str]) -> dict[str, str]:
    """Headers and trailers of the answer to a call that sends `data` and ends."""
    ours, theirs = memory_stream_pair()
    found: dict[str, str] = {}
    peer = h2.connection.H2Connection(h2.config.H2Configuration(header_encoding="utf-8"))
    peer.initiate_connection()
    stream_id = peer.get_next_available_stream_id()
    peer.send_headers(stream_id, [*FIELDS, *more])
    peer.send_data(stream_id, data, end_stream=True)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve_http2, theirs, serve)
        await ours.send_all(peer.data_to_send())
        while "grpc-status" not in found:
            for event in peer.receive_data(bytes(await ours.receive_some())):
                if isinstance(event, (h2.events.ResponseReceived, h2.events.TrailersReceived)):
                    found |= {str(name): str(value) for name, value in event.headers or ()}
        nursery.cancel_scope.cancel()
    return found


@pytest.mark.parametrize(
    ("data", "encoding", "code", "sentence"),
    [
        (b"\x01\x00\x00\x00\x01x", "gzip", "12", "messages compressed by gzip are not taken: send them as they are"),
        (b"\x01\x00\x00\x00\x01x", "identity", "13", "marked as compressed, and nothing says by what"),
        (b"\x01\x00\x00\x00\x01x", None, "13", "marked as compressed, and nothing says by what"),
        (b"\x00\x00\x00\x00\x09x", None, "13", "the stream ended within a message"),
        (b"\x00\x00\x00\x00\x01x", "gzip", "0", ""),  # a client that can compress need not
    ],
    ids=["gzip", "identity", "unsaid", "cut", "not compressed"],
)
async def test_messages_that_cannot_be_taken_have_their_codes(
    data: bytes, encoding: str | None, code: str, sentence: str
) -> None:
    more = [] if encoding is None else [("grpc-encoding", encoding)]
    answer = await answer_to(echo, data, *more)
    assert answer["grpc-status"] == code
    assert sentence in unquote(answer["grpc-message"])
    assert (answer[":status"], answer["grpc-accept-encoding"]) == ("200", "identity")


async def test_a_server_that_returns_ends_the_stream() -> None:
    async def serve(call: GrpcStream) -> None:
        await call.send(b"bye")

    async with calling(serve) as call:
        assert await call.receive(max_bytes=LIMIT) == b"bye"
        assert await call.receive(max_bytes=LIMIT) is None


async def test_a_broken_connection_ends_both_sides() -> None:
    ended = trio.Event()

    async def serve(call: GrpcStream) -> None:
        try:
            await echo(call)
        except GrpcError:
            ended.set()
            raise

    ours, theirs = memory_stream_pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve_http2, theirs, serve)
        async with open_grpc_call(ours, "/s/M", authority="h") as call:
            await call.send(b"x")
            await call.receive(max_bytes=9)
            await trio.aclose_forcefully(ours)
            with pytest.raises(GrpcError):
                await call.receive(max_bytes=9)
    assert ended.is_set()


@given(st.binary(max_size=200), st.booleans())
def test_nonsense_ends_the_connection_and_nothing_else(data: bytes, has_preface: bool) -> None:
    async def main() -> None:
        ours, theirs = memory_stream_pair()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(serve_http2, theirs, echo)
            await ours.send_all((PREFACE if has_preface else b"") + data)
            await ours.send_stream.aclose()

    run_virtual(main)


async def test_a_message_that_is_cancelled_halfway_ends_its_stream_and_one_that_waits_does_not(
    autojump_clock: MockClock,
) -> None:
    async def silent(call: GrpcStream) -> None:
        await trio.sleep_forever()

    async with calling(silent) as call:
        with trio.move_on_after(1.0):
            await call.send(bytes(16 << 20))  # more than the window
        with pytest.raises(GrpcError):
            await call.send(b"x")


async def test_what_comes_for_a_call_that_is_over_does_not_fill_the_connections_window() -> None:
    # Every call is refused at once, and sent a window's worth nevertheless.
    async def refuse(call: GrpcStream) -> None:
        raise GrpcRefusal(RESOURCE_EXHAUSTED, "no")

    ours, theirs = memory_stream_pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve_http2, theirs, refuse)
        peer = h2.connection.H2Connection(h2.config.H2Configuration(header_encoding=None))
        peer.initiate_connection()
        num_sent = 0
        for _ in range(30):
            stream_id = peer.get_next_available_stream_id()
            peer.send_headers(stream_id, FIELDS)
            await ours.send_all(peer.data_to_send())
            for _ in range(60):
                if min(peer.outbound_flow_control_window, 1 << 14) < 1 << 14:
                    break
                peer.send_data(stream_id, bytes(1 << 14))
                num_sent += 1 << 14
            peer.end_stream(stream_id)
            await ours.send_all(peer.data_to_send())
            await trio.testing.wait_all_tasks_blocked()
            peer.receive_data(bytes(await ours.receive_some()))
        assert num_sent > 24 << 20  # the connection's window has 16 MB
        nursery.cancel_scope.cancel()
