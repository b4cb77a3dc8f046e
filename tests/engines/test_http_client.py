"""The HTTP client: what it sends, what it keeps, what it repeats, and what it costs."""

import time
from collections.abc import Callable
from functools import partial

import pytest
import trio
from trio.testing import MockClock, memory_stream_pair

from agentrl_jax.engines.http import HttpClient, HttpError, HttpLimits, open_http_client
from agentrl_jax.engines.http_server import Answer, HttpRequest, ServerLimits, json_answer, serve_http
from agentrl_jax.errors import ConfigError
from tests.engines.http_fakes import connect_to

ANSWER = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"


class ScriptedServer:
    """Each connection answers so many requests, then does what its script says."""

    def __init__(self, nursery: trio.Nursery, *scripts: Callable[[trio.abc.Stream], object]) -> None:
        self.requests: list[bytes] = []
        self.num_connections = 0
        self._nursery, self._scripts = nursery, list(scripts)

    async def connect(self) -> trio.abc.Stream:
        await trio.lowlevel.checkpoint()
        ours, theirs = memory_stream_pair()
        self._nursery.start_soon(self._scripts[self.num_connections], self, theirs)
        self.num_connections += 1
        return ours


async def answer(server: ScriptedServer, stream: trio.abc.Stream, *, times: int, last: bytes = b"") -> None:
    for _ in range(times):
        request = bytes(await stream.receive_some(65_536))
        if not request:
            break  # the client has gone
        server.requests.append(request)
        await stream.send_all(ANSWER)
    if last:
        server.requests.append(bytes(await stream.receive_some(65_536)))
        await stream.send_all(last)
    await stream.aclose()


async def test_a_request_on_the_wire(nursery: trio.Nursery) -> None:
    server = ScriptedServer(nursery, partial(answer, times=2))
    async with open_http_client("http://engine:30000/base/", token="secret", connect=server.connect) as client:
        response = await client.post("/generate", {"ids": [1, 2]}, is_idempotent=True)
        await client.get("/health")
    assert response.status == 200
    assert response.decode(dict[str, int]) == {}
    assert server.requests[0] == (
        b"POST /base/generate HTTP/1.1\r\nhost: engine:30000\r\naccept: application/json\r\n"
        b"authorization: Bearer secret\r\ncontent-type: application/json\r\ncontent-length: 13\r\n\r\n"
        b'{"ids":[1,2]}'
    )
    assert server.requests[1].startswith(b"GET /base/health HTTP/1.1\r\n")
    assert b"content-" not in server.requests[1]
    assert server.num_connections == 1


async def test_an_idempotent_request_survives_a_connection_that_the_server_gave_up(nursery: trio.Nursery) -> None:
    server = ScriptedServer(nursery, partial(answer, times=1), partial(answer, times=1))
    async with open_http_client("http://engine", connect=server.connect) as client:
        await client.get("/a")
        await trio.testing.wait_all_tasks_blocked()
        await client.get("/b")
        assert client.statistics().num_retries == 1
    assert len(server.requests) == 2  # the second connection saw /b once, the first never


async def test_other_requests_never_meet_such_a_connection(nursery: trio.Nursery) -> None:
    server = ScriptedServer(nursery, partial(answer, times=1), partial(answer, times=1))
    async with open_http_client("http://engine", connect=server.connect) as client:
        await client.get("/a")
        await client.post("/b", {}, is_idempotent=False)
        assert client.statistics().num_retries == 0
    assert server.num_connections == 2


async def test_a_connection_whose_server_failed_is_not_used_again(nursery: trio.Nursery) -> None:
    """uvicorn closes it a moment later; a request that is sent in between is lost."""
    failure = b"HTTP/1.1 500 Internal Server Error\r\ncontent-length: 2\r\n\r\n{}"
    server = ScriptedServer(nursery, partial(answer, times=0, last=failure), partial(answer, times=2))
    async with open_http_client("http://engine", connect=server.connect, limits=HttpLimits(reuse_s=2.0)) as client:
        assert (await client.post("/a", {}, is_idempotent=False)).status == 500
        assert client.statistics().num_idle == 0
        for _ in range(2):
            assert (await client.post("/b", {}, is_idempotent=False)).status == 200
    assert server.num_connections == 2


@pytest.mark.parametrize("last", [b"HTTP/1.1 200 OK\r\ncontent-le", b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{}"])
async def test_a_half_answer_is_not_asked_for_again(nursery: trio.Nursery, last: bytes) -> None:
    server = ScriptedServer(nursery, partial(answer, times=1, last=last))
    async with open_http_client("http://engine", connect=server.connect) as client:
        await client.get("/a")
        with pytest.raises(HttpError, match="http://engine broke off /b"):
            await client.get("/b")
        assert client.statistics().num_idle == 0
    assert server.num_connections == 1


async def test_a_new_connection_that_breaks_is_an_error_at_once(nursery: trio.Nursery) -> None:
    server = ScriptedServer(nursery, partial(answer, times=0))
    async with open_http_client("http://engine", connect=server.connect) as client:
        with pytest.raises(HttpError, match="broke off /a"):
            await client.get("/a")
    assert server.num_connections == 1


@pytest.mark.parametrize("last", [b"SSH-2.0-OpenSSH\r\n\r\n", b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nabcd"])
async def test_what_is_no_http_or_no_json_is_named(nursery: trio.Nursery, last: bytes) -> None:
    server = ScriptedServer(nursery, partial(answer, times=0, last=last))
    async with open_http_client("http://engine", connect=server.connect) as client:
        with pytest.raises(HttpError, match=r"broke off|expected JSON, got b'abcd'"):
            (await client.get("/a")).decode(dict[str, int])


async def test_a_response_may_not_be_endless(nursery: trio.Nursery) -> None:
    async def handler(request: HttpRequest) -> Answer:
        return Answer(body=b"x" * 1001)

    limits = HttpLimits(max_response_bytes=1000)
    async with open_http_client("http://e", connect=connect_to(nursery, lambda: handler), limits=limits) as client:
        with pytest.raises(HttpError, match="more than 1000 bytes"):
            await client.get("/")


async def test_a_request_that_is_not_idempotent_reuses_a_connection_only_fresh_and_is_never_repeated(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    server = ScriptedServer(nursery, partial(answer, times=2), partial(answer, times=9))
    limits = HttpLimits(reuse_s=2.0)
    async with open_http_client("http://engine:30000", connect=server.connect, limits=limits) as client:
        post = partial(client.post, "/turn", {}, is_idempotent=False)
        await post()
        await trio.sleep(1.9)
        await post()
        assert server.num_connections == 1
        with pytest.raises(HttpError, match="broke off"):
            await post()  # the server has just closed it: nobody knows what it saw
        assert server.num_connections == 1
        await post()
        await trio.sleep(2.1)
        await client.get("/status")  # whoever may be repeated still takes it
        assert server.num_connections == 2


async def test_cancelling_closes_the_connection_and_the_next_request_gets_its_own_answer(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    cancelled = []

    async def handler(request: HttpRequest) -> Answer:
        try:
            await trio.sleep(float(request.query["s"]))
        except trio.Cancelled:
            cancelled.append(request.path)
            raise
        return json_answer(request.path)

    async with open_http_client("http://e", connect=connect_to(nursery, lambda: handler)) as client:
        with trio.move_on_after(1) as scope:
            await client.get("/slow?s=5")
        assert scope.cancelled_caught
        assert client.statistics().num_idle == 0
        assert (await client.get("/quick?s=0")).decode(str) == "/quick"
        await trio.testing.wait_all_tasks_blocked()
        assert cancelled == ["/slow"]


async def test_connections_that_waited_too_long_are_not_used(nursery: trio.Nursery, autojump_clock: MockClock) -> None:
    async def handler(request: HttpRequest) -> Answer:
        await trio.lowlevel.checkpoint()
        return Answer()

    async with open_http_client("http://e", connect=connect_to(nursery, lambda: handler)) as client:

        async def burst() -> None:
            async with trio.open_nursery() as requests:
                for _ in range(5):
                    requests.start_soon(client.get, "/")

        await burst()
        await trio.sleep(3.9)
        await burst()
        assert client.statistics().num_connections == client.statistics().num_idle == 5
        await trio.sleep(4.1)
        await client.get("/")
        assert (client.statistics().num_connections, client.statistics().num_idle) == (6, 1)


async def crowd(client: HttpClient, size: int, target: str) -> float:
    """CPU seconds a request of `size` concurrent ones, by this thread (server included if it runs in it)."""
    body = {"input_ids": list(range(1000))}
    start = time.thread_time()
    async with trio.open_nursery() as nursery:
        for _ in range(size):
            nursery.start_soon(partial(client.post, target, body, is_idempotent=True))
    return (time.thread_time() - start) / size


async def test_con_02_two_thousand_requests_of_five_seconds(nursery: trio.Nursery, autojump_clock: MockClock) -> None:
    body = b"[" + b"0," * 4000 + b"0]"

    async def handler(request: HttpRequest) -> Answer:
        await trio.sleep(5)
        return Answer(body=body)

    start = trio.current_time()
    async with open_http_client("http://e", connect=connect_to(nursery, lambda: handler)) as client:
        await crowd(client, 2000, "/generate")
        assert trio.current_time() - start < 7
        await crowd(client, 200, "/generate")
        statistics = client.statistics()
    assert (statistics.num_connections, statistics.num_requests, statistics.num_retries) == (2000, 2200, 0)


async def test_more_requests_than_connections_wait_their_turn(nursery: trio.Nursery, autojump_clock: MockClock) -> None:
    async def handler(request: HttpRequest) -> Answer:
        await trio.sleep(1)
        return Answer()

    limits = HttpLimits(max_connections=10)
    async with open_http_client("http://e", connect=connect_to(nursery, lambda: handler), limits=limits) as client:
        await crowd(client, 35, "/")
        assert trio.current_time() == pytest.approx(4, abs=0.1)
        assert client.statistics().num_connections == 10


async def test_real_sockets(nursery: trio.Nursery) -> None:
    async def handler(request: HttpRequest) -> Answer:
        await trio.lowlevel.checkpoint()
        return Answer(body=b"[" + b"0," * 4000 + b"0]")

    port = await nursery.start(partial(serve_http, handler, host="127.0.0.1", port=0, limits=ServerLimits()))
    async with open_http_client(f"http://127.0.0.1:{port}") as client:
        await crowd(client, 200, "/")
        spent = await crowd(client, 200, "/")
        assert client.statistics().num_retries == 0
    nursery.cancel_scope.cancel()
    # Both sides, also on a busy machine; a pool that scans its connections takes 10 ms at this size.
    assert spent < 5e-3


async def test_nobody_listens() -> None:
    async with open_http_client("http://127.0.0.1:1") as client:
        with pytest.raises(HttpError, match=r"cannot reach http://127\.0\.0\.1:1"):
            await client.get("/")


@pytest.mark.parametrize(
    "url",
    [
        "localhost:30000",
        "ftp://host",
        "http://",
        "",
        "http://[",
        "http://h:99999",
        "http://a..b",
        "http://é",
        "http://h/a b",
    ],
)
async def test_a_url_that_is_none(url: str) -> None:
    with pytest.raises(ConfigError, match="expected a URL like"):
        async with open_http_client(url):
            pass


@pytest.mark.parametrize("user", ["any:s3cret", "s3cret"])
async def test_a_url_with_a_password_which_would_open_nothing(user: str) -> None:
    with pytest.raises(ConfigError, match=r"got http://\*\*\*@host:1/api: give a token instead"):
        async with open_http_client(f"http://{user}@host:1/api"):
            pass
