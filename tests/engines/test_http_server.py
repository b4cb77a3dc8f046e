"""The HTTP server on the wire: framing, limits, refusals, disconnects."""

from collections.abc import AsyncIterator
from functools import partial

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MemoryReceiveStream, MemorySendStream, MockClock, memory_stream_pair

from agentrl_jax.engines.http_server import (
    Answer,
    EventStream,
    HttpProblem,
    HttpRequest,
    Send,
    ServerLimits,
    check_bind,
    json_answer,
    serve_connection,
    serve_http,
)
from agentrl_jax.errors import ConfigError

Stream = trio.StapledStream[MemorySendStream, MemoryReceiveStream]
LIMITS = ServerLimits(max_header_bytes=1000, max_body_bytes=100, idle_s=30)


async def echo(request: HttpRequest) -> Answer | EventStream:
    await trio.lowlevel.checkpoint()
    if request.path == "/refused":
        raise HttpProblem(418, "no coffee here")
    if request.path == "/events":

        async def write(send: Send) -> None:
            for data in (b"1", b"2", b"[DONE]"):
                await send(data)

        return EventStream(write=write)
    return json_answer([request.method, request.path, dict(request.query), len(request.body)])


@pytest.fixture
async def client(nursery: trio.Nursery) -> AsyncIterator[Stream]:
    ours, theirs = memory_stream_pair()
    nursery.start_soon(partial(serve_connection, theirs, handler=echo, limits=LIMITS))
    yield ours
    await ours.aclose()


async def talk(client: Stream, data: bytes) -> bytes:
    await client.send_all(data)
    await trio.testing.wait_all_tasks_blocked()
    return bytes(await client.receive_some())


async def test_requests_follow_each_other_on_a_connection(client: Stream) -> None:
    request = b"POST /a?x=1 HTTP/1.1\r\nhost: h\r\ncontent-length: 3\r\n\r\nabc"
    expected = b'HTTP/1.1 200 \r\ncontent-length: 25\r\ncontent-type: application/json\r\n\r\n["POST","/a",{"x":"1"},3]'
    assert await talk(client, request) == expected
    await client.send_all(request[:20])
    assert (await talk(client, request[20:])).endswith(b'{"x":"1"},3]')
    both = await talk(client, request + request.replace(b"/a", b"/b"))
    assert both.count(b"HTTP/1.1 200") == 2
    assert both.index(b'"/a"') < both.index(b'"/b"')


async def test_a_refusal_leaves_the_connection_usable(client: Stream) -> None:
    answer = await talk(client, b"GET /refused HTTP/1.1\r\nhost: h\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 418 ")
    assert answer.endswith(b'{"error":{"message":"no coffee here","code":418}}')
    assert (await talk(client, b"GET /a HTTP/1.1\r\nhost: h\r\n\r\n")).startswith(b"HTTP/1.1 200 ")


async def test_events(client: Stream) -> None:
    answer = await talk(client, b"GET /events HTTP/1.1\r\nhost: h\r\n\r\n")
    assert b"content-type: text/event-stream" in answer
    assert [part for part in answer.split(b"\r\n") if part.startswith(b"data")] == [
        b"data: 1\n\n",
        b"data: 2\n\n",
        b"data: [DONE]\n\n",
    ]
    assert (await talk(client, b"GET /a HTTP/1.1\r\nhost: h\r\n\r\n")).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"hello\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\n\r\n", b"400"),  # no host
        (b"GET //[ HTTP/1.1\r\nhost: h\r\n\r\n", b"400"),
        (b"POST / HTTP/1.1\r\nhost: h\r\ncontent-length: 101\r\n\r\n", b"413"),
        (b"POST / HTTP/1.1\r\nhost: h\r\ncontent-length: -1\r\n\r\n", b"400"),
        (b"POST / HTTP/1.1\r\nhost: h\r\ntransfer-encoding: chunked\r\n\r\n78\r\n" + b"x" * 120 + b"\r\n", b"413"),
        (b"POST / HTTP/1.1\r\nhost: h\r\ntransfer-encoding: gzip\r\n\r\n", b"501"),
        (b"GET / HTTP/1.1\r\nhost: h\r\na: " + b"x" * 2000, b"431"),
        (b"POST / HTTP/1.1\r\nhost: h\r\nsec-fetch-site: cross-site\r\ncontent-length: 0\r\n\r\n", b"403"),
        (b"POST / HTTP/1.1\r\nhost: h\r\nSec-Fetch-Site: same-site\r\ncontent-length: 0\r\n\r\n", b"403"),
    ],
)
async def test_what_cannot_be_served_is_refused_and_closed(client: Stream, data: bytes, status: bytes) -> None:
    answer = await talk(client, data)
    assert answer.startswith(b"HTTP/1.1 " + status)
    assert b"connection: close" in answer
    assert await client.receive_some() == b""


async def test_a_body_is_asked_for(client: Stream) -> None:
    head = b"POST /a HTTP/1.1\r\nhost: h\r\ncontent-length: 3\r\nexpect: 100-continue\r\n\r\n"
    assert await talk(client, head) == b"HTTP/1.1 100 \r\n\r\n"
    assert (await talk(client, b"abc")).endswith(b"{},3]")


@given(st.binary(max_size=60), st.booleans())
def test_no_bytes_end_the_server(data: bytes, is_prefixed: bool) -> None:
    async def main() -> None:
        ours, theirs = memory_stream_pair()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(serve_connection, theirs, handler=echo, limits=LIMITS))
            await ours.send_all((b"POST /" if is_prefixed else b"") + data)
            await ours.aclose()

    trio.run(main)


async def test_a_connection_that_sends_nothing_whole_is_closed(client: Stream, autojump_clock: MockClock) -> None:
    await client.send_all(b"GET / HT")
    assert await client.receive_some() == b""
    assert trio.current_time() == pytest.approx(30)


@pytest.mark.parametrize("is_stream", [False, True])
async def test_a_client_that_leaves_cancels_its_request(nursery: trio.Nursery, is_stream: bool) -> None:
    ours, theirs = memory_stream_pair()
    log = []

    async def wait(send: Send | None = None) -> None:
        log.append("started")
        try:
            await trio.sleep_forever()
        finally:
            log.append("cancelled")

    async def handler(request: HttpRequest) -> Answer | EventStream:
        if is_stream:
            return EventStream(write=wait)
        await wait()
        return Answer()

    nursery.start_soon(partial(serve_connection, theirs, handler=handler, limits=LIMITS))
    await ours.send_all(b"GET / HTTP/1.1\r\nhost: h\r\n\r\n")
    await trio.testing.wait_all_tasks_blocked()
    assert log == ["started"]
    await ours.aclose()
    await trio.testing.wait_all_tasks_blocked()
    assert log == ["started", "cancelled"]


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.7", "gpu-3", ""])
def test_sec_03_a_public_address_needs_a_token(host: str) -> None:
    with pytest.raises(ConfigError, match="--token"):
        check_bind(host, None)
    check_bind(host, "secret")


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "localhost"])
def test_loopback_needs_none(host: str) -> None:
    check_bind(host, None)
    for token in ("", "sécret", "a\nb"):
        with pytest.raises(ConfigError, match="printable ASCII"):
            check_bind(host, token)


async def test_an_address_that_is_taken(nursery: trio.Nursery) -> None:
    serve = partial(serve_http, echo, host="127.0.0.1", limits=LIMITS)
    port = await nursery.start(partial(serve, port=0))
    with pytest.raises(ConfigError, match=f"cannot listen on 127.0.0.1:{port}"):
        await serve(port=port)
    nursery.cancel_scope.cancel()


def is_stranger(request: HttpRequest) -> Answer | None:
    return None if request.headers.get("key") == "yes" else json_answer("who are you?", 401)


POST = b"POST /a HTTP/1.1\r\nhost: h\r\ncontent-length: %d\r\n"


async def test_of_a_client_that_is_refused_little_is_read(nursery: trio.Nursery) -> None:
    limits = ServerLimits(max_body_bytes=1 << 20)
    client, theirs = memory_stream_pair()
    serve = partial(serve_connection, theirs, handler=echo, limits=limits, refuse=is_stranger)
    nursery.start_soon(serve)
    # A small body is read, so that the connection stays; the answer is not the handler's.
    for _ in range(2):
        assert (await talk(client, POST % 3 + b"\r\nabc")).endswith(b'"who are you?"')
    assert (await talk(client, POST % 3 + b"key: yes\r\n\r\nabc")).endswith(b"{},3]")
    answer = await talk(client, POST % (1 << 19) + b"\r\n")  # not awaited
    assert answer.startswith(b"HTTP/1.1 401 ")
    assert b"connection: close" in answer
    assert await client.receive_some() == b""


async def test_a_chunked_body_of_a_client_that_is_refused_is_not_gathered(nursery: trio.Nursery) -> None:
    client, theirs = memory_stream_pair()
    limits = ServerLimits(max_body_bytes=1 << 20)
    nursery.start_soon(partial(serve_connection, theirs, handler=echo, limits=limits, refuse=is_stranger))
    await client.send_all(b"POST /a HTTP/1.1\r\nhost: h\r\ntransfer-encoding: chunked\r\n\r\n")
    assert (await talk(client, b"20000\r\n" + b"x" * 0x12000)).startswith(b"HTTP/1.1 401 ")
    assert await client.receive_some() == b""


async def test_a_client_that_does_not_read_its_answer_is_left(autojump_clock: MockClock) -> None:
    client, theirs = memory_stream_pair()
    theirs.send_stream.send_all_hook = trio.sleep_forever  # its buffers are full
    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(serve_connection, theirs, handler=echo, limits=LIMITS))
        await client.send_all(b"GET / HTTP/1.1\r\nhost: h\r\n\r\n")
    assert trio.current_time() == pytest.approx(30)


@pytest.mark.parametrize(
    "head", [b"GET / HTTP/1.1\r\nsec-fetch-site: cross-site", b"POST / HTTP/1.1\r\nsec-fetch-site: same-origin"]
)
async def test_browsers_follow_links_and_own_pages_post(client: Stream, head: bytes) -> None:
    assert (await talk(client, head + b"\r\nhost: h\r\ncontent-length: 0\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
