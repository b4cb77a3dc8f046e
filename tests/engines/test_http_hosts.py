"""Servers that want no token are asked for by this machine's names alone; those that want one read no body without."""

from functools import partial

import pytest
import trio

from agentrl_jax.engines.http_hosts import host_problem
from agentrl_jax.engines.http_server import HttpRequest
from agentrl_jax.engines.server import EngineServer
from agentrl_jax.testing.engine import FakeEngine
from tests.engines.served_engines import FAKE_MODEL

LARGE = 1 << 24


def asked(host: str | None, **headers: str) -> HttpRequest:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    named |= {} if host is None else {"host": host}
    return HttpRequest(method="GET", path="/", query={}, headers=named, body=b"")


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "LOCALHOST:5020",
        "localhost.:80",
        "me.localhost:1",
        "127.0.0.1",
        "127.9.9.9:5020",
        "[::1]:5020",
        "Box.lan:5020",
        None,
    ],
)
def test_names_of_this_machine(host: str | None) -> None:
    assert host_problem(asked(host), "127.0.0.1", "box.LAN") is None


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:5020",
        "localhost.evil.example",
        "127.0.0.1.evil.example",
        "evil.example@127.0.0.1.x",
        "notlocalhost",
        "0.0.0.0:80",
        "169.254.169.254",
        "[::1",
        "[x]",
        "",
        ":80",
    ],
)
def test_names_of_others(host: str) -> None:
    problem = host_problem(asked(host), "127.0.0.1")
    assert problem is not None
    assert problem.status == 403


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "https://evil.example"},
        {"origin": "http://localhost.evil.example:30000"},
        {"origin": "null"},
        {"sec_fetch_site": "cross-site"},  # an image of another page's
        {"sec_fetch_site": "cross-site", "sec_fetch_mode": "no-cors"},
        {"origin": "https://evil.example", "sec_fetch_mode": "navigate"},  # a form of another page's
    ],
)
def test_pages_of_others(headers: dict[str, str]) -> None:
    problem = host_problem(asked("127.0.0.1:30000", **headers), "127.0.0.1")
    assert problem is not None
    assert problem.status == 403


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://127.0.0.1:30000", "sec_fetch_site": "same-origin"},
        {"origin": "http://localhost:8080", "sec_fetch_site": "same-site"},
        {"origin": "http://Box.lan:5020"},
        {"sec_fetch_site": "none", "sec_fetch_mode": "navigate"},
        {"sec_fetch_site": "cross-site", "sec_fetch_mode": "navigate"},  # a link from elsewhere
        {},
    ],
)
def test_pages_of_this_machine(headers: dict[str, str]) -> None:
    assert host_problem(asked("127.0.0.1:30000", **headers), "127.0.0.1", "box.LAN") is None


async def said_to(server: EngineServer, head: bytes) -> bytes:
    """The whole answer of a server of its own to a request of which only the head is sent."""
    async with trio.open_nursery() as nursery:
        port = await nursery.start(partial(server.serve, host="127.0.0.1", port=0))
        async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
            await stream.send_all(head)
            answer = b""
            with trio.fail_after(5):
                while data := await stream.receive_some():
                    answer += data
        nursery.cancel_scope.cancel()
    return answer


def head(*fields: bytes, body_bytes: int = LARGE) -> bytes:
    lines = [b"POST /generate HTTP/1.1", *fields, b"content-length: %d" % body_bytes]
    return b"\r\n".join([*lines, b"", b""])


async def test_an_engine_reads_no_body_of_whoever_has_not_its_token() -> None:
    server = EngineServer(FakeEngine(), FAKE_MODEL, token="s3cret")
    for sent in ([b"host: h"], [b"host: h", b"authorization: Bearer s3cre"]):
        answer = await said_to(server, head(*sent))
        assert answer.startswith(b"HTTP/1.1 401 ")
        assert b"Authorization: Bearer TOKEN" in answer
    # Whoever has it is listened to, under any name.
    answer = await said_to(server, head(b"host: h", b"authorization: Bearer s3cret", body_bytes=1 << 40))
    assert answer.startswith(b"HTTP/1.1 413 ")
    answer = await said_to(server, b"GET /health HTTP/1.0\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 200 ")


async def test_an_engine_without_a_token_is_not_asked_for_by_names_of_others() -> None:
    server = EngineServer(FakeEngine(), FAKE_MODEL)
    answer = await said_to(server, head(b"host: evil.example:30000"))
    assert answer.startswith(b"HTTP/1.1 403 ")
    assert b"not known as 'evil.example:30000'" in answer
    answer = await said_to(server, head(b"host: localhost:30000", b"connection: close", body_bytes=0))
    assert answer.startswith(b"HTTP/1.1 400 ")  # no prompt
