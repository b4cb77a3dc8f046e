"""What the other side of an HTTP/2 connection may do to ours, by frames written by hand."""

import struct
from functools import partial

import pytest
import trio
from trio.testing import MockClock, memory_stream_pair

from agentrl_jax.controller.wire_http2 import PREFACE, GrpcStream, open_grpc_call, serve_http2

HEADERS, SETTINGS, PING = 1, 4, 6
REQUEST = [(b":method", b"POST"), (b":scheme", b"http"), (b":path", b"/a/B"), (b":authority", b"h")]


def frame(kind: int, flags: int, stream_id: int, payload: bytes) -> bytes:
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream_id) + payload


def literal(headers: list[tuple[bytes, bytes]]) -> bytes:
    """HPACK without an index and without Huffman's code."""
    return b"".join(b"\0" + bytes([len(name)]) + name + bytes([len(value)]) + value for name, value in headers)


HELLO = PREFACE + frame(SETTINGS, 0, 0, b"")


@pytest.mark.parametrize(
    "sent",
    [
        frame(HEADERS, 4, 1, literal([*REQUEST, (b"x", b"\xff\xfe")])),
        frame(HEADERS, 4, 1, literal([*REQUEST[:2], (b":path", b"/\xff"), REQUEST[3]])),
        frame(HEADERS, 4, 1, literal(REQUEST)) + frame(HEADERS, 5, 1, literal([(b"x", b"\xff")])),
    ],
)
async def test_headers_need_not_be_text(sent: bytes) -> None:
    seen: list[GrpcStream] = []

    async def serve(call: GrpcStream) -> None:
        seen.append(call)
        await call.receive(max_bytes=9)

    ours, theirs = memory_stream_pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve_http2, theirs, serve)
        await ours.send_all(HELLO + sent)
        await ours.send_eof()
    assert len(seen) == 1
    assert seen[0].headers.get("x", "ÿþ") == "ÿþ"


@pytest.mark.parametrize(("num_pings", "is_cut_off"), [(50_000, False), (70_000, True)])
async def test_whoever_has_more_answered_than_it_reads_is_cut_off(
    num_pings: int, is_cut_off: bool, autojump_clock: MockClock
) -> None:
    ours, theirs = memory_stream_pair()
    theirs.send_stream.send_all_hook = trio.sleep_forever  # its buffers are full
    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve_http2, theirs, forever)
        await ours.send_all(HELLO + num_pings * frame(PING, 0, 0, b"8 bytes!"))
        await trio.sleep(2.0)
        if is_cut_off:
            with pytest.raises(trio.BrokenResourceError):
                await ours.send_all(b"x")
        else:
            await ours.send_all(b"x")
        nursery.cancel_scope.cancel()


async def forever(call: GrpcStream) -> None:
    await call.receive(max_bytes=9)


async def test_a_connection_without_a_call_does_not_stay(autojump_clock: MockClock) -> None:
    ours, theirs = memory_stream_pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve_http2, theirs, forever)
        await ours.send_all(HELLO)
    assert trio.current_time() == pytest.approx(301.0, abs=5.0)


async def test_a_call_whose_other_side_is_gone_without_a_word_ends(autojump_clock: MockClock) -> None:
    ours, theirs = memory_stream_pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve_http2, theirs, forever)
        await ours.send_all(HELLO + frame(HEADERS, 4, 1, literal(REQUEST)))
    assert trio.current_time() == pytest.approx(320.0, abs=5.0)


async def test_a_call_on_which_nothing_is_said_stays(autojump_clock: MockClock) -> None:
    async def late(call: GrpcStream) -> None:
        await trio.sleep(2000.0)
        await call.send(b"at last")

    ours, theirs = memory_stream_pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(serve_http2, theirs, late))
        async with open_grpc_call(ours, "/a/B", authority="h") as call:
            assert await call.receive(max_bytes=9) == b"at last"
