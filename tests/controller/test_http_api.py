"""The controller's port on the wire: every endpoint's answers, refusals, tokens, page and metrics."""

import base64
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from socket import gethostname
from typing import Any

import h11
import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import MockClock, memory_stream_pair

from agentrl_jax.controller.monitor import LoopMonitor
from agentrl_jax.controller.remote_config import ListenConfig, RemoteConfig
from agentrl_jax.controller.remote_controller import RemoteController
from agentrl_jax.controller.remote_server import ControllerServer
from agentrl_jax.controller.wire_access import Access
from agentrl_jax.errors import ConfigError
from agentrl_jax.testing.virtual import run_virtual
from tests.controller.remote_world import CONFIG, FakeRemote, controlling, num_taken

QUICK = replace(CONFIG, resume_s=0.0)
TURN = b'{"messages":[{"role":"assistant","content":"hi"}]}'


class Client:
    """Requests to one server, each on a connection of its own."""

    def __init__(self, server: ControllerServer, controller: RemoteController, peer: str = "127.0.0.1") -> None:
        self._server, self.controller, self.peer = server, controller, peer

    async def __call__(
        self, method: str, target: str, body: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> tuple[int, dict[str, str], bytes]:
        ours, theirs = memory_stream_pair()
        connection = h11.Connection(h11.CLIENT)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._server.serve_connection, theirs, self.peer)
            fields = {"host": "localhost", "content-length": str(len(body)), **(headers or {})}
            request = h11.Request(
                method=method,
                target=target,
                headers=[(name, value.encode("latin-1")) for name, value in fields.items()],
            )
            await ours.send_all((connection.send(request) or b"") + body)
            with suppress(h11.LocalProtocolError):  # a body that only was announced
                connection.send(h11.Data(body))
                connection.send(h11.EndOfMessage())
            status, found, parts = 0, {}, []
            while True:
                event = connection.next_event()
                if event is h11.NEED_DATA:
                    connection.receive_data(bytes(await ours.receive_some()))
                elif isinstance(event, h11.Response):
                    status = event.status_code
                    found = {name.decode(): value.decode() for name, value in event.headers}
                elif isinstance(event, h11.Data):
                    parts.append(bytes(event.data))
                else:
                    break
            nursery.cancel_scope.cancel()
        return status, found, b"".join(parts)

    async def post(self, name: str, body: Any = None, **headers: str) -> tuple[int, Any]:
        sent = body if isinstance(body, bytes) else json.dumps(body).encode()
        status, _, found = await self("POST", f"/api/{name}", sent, headers)
        return status, json.loads(found)

    async def get(self, name: str) -> Any:
        status, _, found = await self("GET", f"/api/{name}")
        assert status == 200
        return json.loads(found)


@asynccontextmanager
async def serving(
    *workers: FakeRemote, listen: ListenConfig | None = None, config: RemoteConfig = QUICK, peer: str = "127.0.0.1"
) -> AsyncIterator[Client]:
    async with controlling(*workers, config=config) as controller:
        yield Client(ControllerServer(controller, listen or ListenConfig(), LoopMonitor()), controller, peer)


async def test_a_session_byte_for_byte(autojump_clock: MockClock) -> None:
    async with serving(FakeRemote(num_turns=2)) as client:
        status, headers, body = await client("POST", "/api/start_sample", b'{"name":"three","index":3,"x":1}')
        session_id = headers["session_id"]
        assert (status, headers["session-id"], headers["content-type"]) == (200, session_id, "application/json")
        assert body == (
            b'{"messages":[{"role":"user","content":"index 3"}],"tools":[],"session_id":%s,"finish":false,'
            b'"reward":0.0,"status":"running","metrics":{}}' % session_id.encode()
        )
        turn = partial(client, "POST", "/api/interact", TURN)
        status, _, body = await turn(headers={"session_id": session_id})
        assert (status, body) == (
            200,
            b'{"finish":false,"reward":0.0,"status":"running","messages":[{"role":"user","content":"next"}],'
            b'"metrics":{}}',
        )
        status, _, body = await turn(headers={"Session-Id": session_id})
        assert body == (
            b'{"finish":true,"reward":0.5,"status":"completed","messages":[{"role":"user","content":"next"}],'
            b'"metrics":{"score":0.25}}'
        )
        status, _, body = await turn(headers={"session_id": session_id})
        assert (status, body) == (400, b'{"message":"session not found","reason":"completed"}')


async def test_of_a_message_only_five_fields_get_through(autojump_clock: MockClock) -> None:
    worker = FakeRemote()
    call = {"id": "0", "function": {"name": "f", "arguments": "{}"}, "n": 123456789012345678901234567890}
    message = {"role": "assistant", "tool_calls": [call], "reasoning_content": "secret", "name": "", "refusal": None}
    async with serving(worker) as client:
        record, _ = await client.controller.start("three", 0)
        await client.post("interact", {"messages": [message]}, session_id=str(record.session_id))
        sent = worker.bodies[-1]["messages"]
        assert sent == [{"role": "assistant", "content": None, "tool_calls": [call]}]


async def test_lists(autojump_clock: MockClock) -> None:
    async with serving(FakeRemote()) as client:
        record, _ = await client.controller.start("three", 4)
        workers = await client.get("list_workers")
        assert workers["three"]["indices"] == list(range(10))
        shown = workers["three"]["workers"]["1"]
        assert {
            name: shown[name] for name in ("id", "address", "capacity", "current", "status", "stale", "locked")
        } == {
            "id": 1,
            "address": "http://w0/api",
            "capacity": 4,
            "current": 1,
            "status": "ALIVE",
            "stale": False,
            "locked": False,
        }
        session = (await client.get("list_sessions"))[str(record.session_id)]
        assert (session["name"], session["index"], session["worker_id"]) == ("three", 4, 1)
        assert (session["custom_task"], session["locked"], session["cancelling"]) == (None, False, False)
        assert await client.get("get_indices?name=three") == list(range(10))
        assert await client.get("version") == {"variant": "nova", "version": 1}


async def test_void_calls_answer_null(autojump_clock: MockClock) -> None:
    worker = FakeRemote()
    async with serving(worker) as client:
        record, _ = await client.controller.start("three", 4)
        for name in ("clean_worker", "clean_session", "sync_all"):
            assert await client.post(name) == (200, None)
        beat = {"name": "three", "address": "http://w0/api", "concurrency": 7, "indices": list(range(10))}
        assert await client.post("receive_heartbeat", beat) == (200, None)
        stale = {"name": "three", "worker_id": 1, "stale": True}
        assert await client.post("mark_stale", stale) == (200, None)
        (entry,) = client.controller.roster.entries()
        assert (entry.places.capacity, entry.is_draining) == ({"three": 7}, True)
        assert await client.post("cancel", session_id=str(record.session_id)) == (200, None)
        await trio.sleep(1.0)
        assert (worker.sessions, num_taken(client.controller)) == ({}, 0)
        assert await client.post("cancel_notice", {"session_id": 1}, session_id=str(record.session_id)) == (200, None)


async def test_cancel_all_names_a_task_where_there_are_several(autojump_clock: MockClock) -> None:
    worker = FakeRemote()
    async with serving(worker) as client:
        await client.controller.start("three", 1)
        beat = {"name": "other", "address": "http://127.0.0.1:9/api", "concurrency": 1, "indices": [0]}
        assert (await client.post("receive_heartbeat", beat))[0] == 200
        assert (await client.post("cancel_all"))[0] == 403
        assert (await client.post("cancel_all?name=nix"))[0] == 400
        assert await client.post("cancel_all?name=other") == (200, None)
        await trio.sleep(1.0)
        assert worker.sessions
        assert await client.post("cancel_all?force=true") == (200, None)
        await trio.sleep(1.0)
        assert not worker.sessions


REFUSALS = [
    ("start_sample", b"", {}, 400, "invalid request"),
    ("start_sample", b"{", {}, 400, "invalid request"),
    ("start_sample", b'{"name":"three"}', {}, 400, "invalid request"),
    ("start_sample", b'{"name":"three","index":1.5}', {}, 400, "invalid request"),
    ("start_sample", b'{"name":"nix","index":1}', {}, 400, "task nix does not exist"),
    ("start_sample", b'{"name":"three","index":99}', {}, 400, "task three does not support index 99"),
    ("start_sample", b'{"name":"three","index":1,"custom_task":' + b"[" * 9999, {}, 400, "invalid request"),
    ("interact", TURN, {}, 400, "invalid session id"),
    ("interact", TURN, {"session_id": "x"}, 400, "invalid session id"),
    ("interact", TURN, {"session_id": "-1"}, 400, "invalid session id"),
    ("interact", TURN, {"session_id": "9" * 40}, 400, "invalid session id"),
    ("interact", TURN, {"session_id": "5"}, 400, "session not found"),
    ("cancel", b"", {"session_id": "5"}, 400, "session not found"),
    ("cancel_notice", b"", {"session_id": "5"}, 400, "session not found"),
    ("mark_stale", b'{"name":"three","worker_id":9,"stale":true}', {}, 400, "worker 9 does not exist"),
    ("mark_stale", b'{"name":"three","worker_id":"1","stale":true}', {}, 400, "invalid request"),
    ("receive_heartbeat", b'{"name":"a","address":"http://h","concurrency":0,"indices":[1]}', {}, 400, None),
    ("receive_heartbeat", b'{"name":"a","address":"http://h","concurrency":1,"indices":[]}', {}, 400, None),
    (
        "receive_heartbeat",
        b'{"name":"a","address":"http://h","concurrency":1,"indices":{}}',
        {},
        400,
        "invalid request",
    ),
    ("receive_heartbeat", b'{"name":"a","address":"gopher://h","concurrency":1,"indices":[1]}', {}, 400, None),
    ("receive_heartbeat", b'{"name":"","address":"http://h","concurrency":1,"indices":[1]}', {}, 400, None),
    (
        "receive_heartbeat",
        b'{"name":"three","address":"http://h","concurrency":1,"indices":[1]}',
        {},
        400,
        "task three already exists with different indices",
    ),
    ("nothing", b"", {}, 404, "Not Found"),
    ("list_workers", b"", {}, 405, "Method Not Allowed"),
]


@pytest.mark.parametrize(("name", "body", "headers", "status", "message"), REFUSALS)
async def test_refusals(
    name: str, body: bytes, headers: dict[str, str], status: int, message: str | None, autojump_clock: MockClock
) -> None:
    async with serving(FakeRemote()) as client:
        found, answer = await client.post(name, body, **headers)
        assert (found, message or answer["message"]) == (status, answer["message"])


async def test_a_turn_without_messages_fails_as_the_originals_does(autojump_clock: MockClock) -> None:
    worker = FakeRemote()
    async with serving(worker) as client:
        record, _ = await client.controller.start("three", 0)
        for body in (b"{}", b'{"messages":null}'):
            status, answer = await client.post("interact", body, session_id=str(record.session_id))
            assert (status, answer["message"]) == (500, "failed to interact with session")
        assert worker.turns == {record.session_id: 0}


async def test_a_body_that_is_too_large_is_refused_before_it_is_read(autojump_clock: MockClock) -> None:
    async with serving(FakeRemote()) as client:
        status, _, body = await client("POST", "/api/interact", b"", {"content-length": str(200 << 20)})
        assert (status, body) == (413, b'{"message":"Request Entity Too Large"}')


async def test_a_client_that_leaves_a_waiting_start_leaves_its_line(autojump_clock: MockClock) -> None:
    worker = FakeRemote(num_places=1)
    async with serving(worker) as client:
        await client.controller.start("three", 0)
        with trio.move_on_after(5.0):
            await client.post("start_sample", {"name": "three", "index": 1})
        assert client.controller.statistics()["three"].num_waiting == 0


def basic(token: str) -> str:
    return "Basic " + base64.b64encode(f"any:{token}".encode()).decode()


async def test_a_token_guards_everything(autojump_clock: MockClock) -> None:
    listen = ListenConfig(host="0.0.0.0", token="s3cret:x", trusted=("10.0.0.0/8",))
    async with serving(FakeRemote(), listen=listen, peer="192.168.0.1") as client:
        for path in ("/api/version", "/metrics", "/", "/overview", "/nothing"):
            for given in (
                {},
                {"authorization": "Bearer wrong"},
                {"authorization": basic("")},
                {"authorization": "Basic \xff"},
            ):
                status, headers, body = await client("GET", path, headers=given)
                assert (status, body) == (401, b'{"message":"Unauthorized"}')
                assert headers["www-authenticate"].startswith("Basic ")
        for right in ("Bearer s3cret:x", basic("s3cret:x")):
            assert (await client("GET", "/api/version", headers={"authorization": right}))[0] == 200
        client.peer = "::ffff:10.1.2.3"
        assert (await client("GET", "/api/version"))[0] == 200
        client.peer = "nonsense"
        assert (await client("GET", "/api/version"))[0] == 401


async def test_a_page_whose_name_was_made_to_lead_here_is_refused(autojump_clock: MockClock) -> None:
    async with serving(FakeRemote()) as client:
        for path in ("/", "/overview", "/api/list_sessions"):
            status, _, body = await client("GET", path, headers={"host": "evil.example:5020"})
            assert status == 403
            assert b"not known as 'evil.example:5020'" in body
            assert (await client("GET", path, headers={"host": "127.0.0.1:5020"}))[0] == 200
    async with serving(FakeRemote(), listen=ListenConfig(token="s3cret")) as client:  # the page does not have it
        headers = {"host": "evil.example:5020", "authorization": "Bearer s3cret"}
        assert (await client("GET", "/overview", headers=headers))[0] == 200
    trusting = ListenConfig(token="s3cret", trusted=("127.0.0.0/8", "10.0.0.0/8"))
    async with serving(FakeRemote(), listen=trusting) as client:  # a browser of this machine needs none
        for client.peer in ("127.0.0.1", "::ffff:127.0.0.1"):
            assert (await client("GET", "/overview", headers={"host": "evil.example"}))[0] == 403
            assert (await client("GET", "/overview", headers={"host": gethostname()}))[0] == 200
            assert (await client("GET", "/overview", headers=headers))[0] == 200
        client.peer = "10.0.0.1"  # knows this machine by whatever name its network has for it
        assert (await client("GET", "/overview", headers={"host": "controller.cluster"}))[0] == 200


@pytest.mark.parametrize(
    "listen",
    [
        ListenConfig(host="0.0.0.0"),
        ListenConfig(host="::"),
        ListenConfig(host="example.org"),
        ListenConfig(token=""),
        ListenConfig(token="ä"),
        ListenConfig(trusted=("10.0.0.0/8",)),
        ListenConfig(token="x", trusted=("10.0.0.1/8",)),
    ],
)
def test_what_would_let_anybody_in_is_refused(listen: ListenConfig) -> None:
    with pytest.raises(ConfigError):
        Access(listen)


async def test_the_page_brings_all_that_it_needs(autojump_clock: MockClock) -> None:
    async with serving(FakeRemote()) as client:
        for path, kind in (("/", "text/html"), ("/page.js", "text/javascript"), ("/page.css", "text/css")):
            status, headers, body = await client("GET", path)
            assert (status, headers["content-type"].split(";")[0]) == (200, kind)
            assert "default-src 'none'" in headers["content-security-policy"]
            assert b"http://" not in body
            assert b"https://" not in body
        record, _ = await client.controller.start("three", 0)
        _, _, body = await client("GET", "/overview")
        overview = json.loads(body)
        assert overview["tasks"]["three"]["num_taken"] == 1
        assert overview["sessions"][0]["id"] == str(record.session_id)
        assert (await client("POST", "/overview"))[0] == 405


async def test_metrics_are_what_prometheus_reads(autojump_clock: MockClock) -> None:
    from prometheus_client.parser import text_string_to_metric_families

    async with serving(FakeRemote(num_turns=1)) as client:
        await client.post("start_sample", {"name": "nix", "index": 1})
        status, answer = await client.post("start_sample", {"name": "three", "index": 1})
        assert (status, answer["finish"]) == (200, False)
        _, headers, body = await client("GET", "/metrics")
        assert headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
        families = {family.name: family for family in text_string_to_metric_families(body.decode())}
        assert families["agentrl_controller_sessions"].samples[0].value == 1
        assert families["agentrl_controller_places"].samples[0].labels == {"task": "three"}
        assert families["agentrl_controller_turn_seconds"].type == "histogram"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
NAMES = st.sampled_from(["three", "other", "", "nix"])
INDICES = st.sampled_from([0, -1, 3, 99, "0", "a", True, None, 1.5])
MESSAGES = st.lists(
    st.fixed_dictionaries({}, optional={"role": st.just("assistant") | JSON, "content": JSON, "tool_calls": JSON}),
    max_size=3,
)
BODIES = {
    "start_sample": {"name": NAMES | JSON, "index": INDICES | JSON, "custom_task": JSON},
    "interact": {"messages": MESSAGES | JSON},
    "cancel": {},
    "cancel_all": {},
    "cancel_notice": {"session_id": JSON},
    "receive_heartbeat": {
        "name": NAMES | JSON,
        "address": st.sampled_from(
            ["http://w0/api", "http://127.0.0.1:1", "", "x", "http://[", "http://h:99999", "http://a..b", "http://é"]
        )
        | JSON,
        "concurrency": st.integers(-1, 3) | JSON,
        "indices": st.just(list(range(10))) | st.lists(INDICES, max_size=3) | JSON,
    },
    "mark_stale": {"name": NAMES, "worker_id": st.integers(0, 2) | JSON, "stale": st.booleans() | JSON},
    "clean_worker": {},
    "clean_session": {},
    "sync_all": {},
    "list_workers": {},
    "list_sessions": {},
    "get_indices": {},
    "version": {},
    "nothing": {},
}


@st.composite
def requests(draw: st.DrawFn) -> tuple[str, str, bytes, str]:
    """method, target, body, session: of which about half are what an endpoint expects."""
    name = draw(st.sampled_from(sorted(BODIES)))
    body = json.dumps(draw(st.fixed_dictionaries({}, optional=BODIES[name]))).encode()
    body = draw(st.just(body) | st.binary(max_size=20) | st.just(body[:-1]))
    query = draw(st.sampled_from(["", "", "?name=three", "?name=%ff", "?force=true", "?&&=%"]))
    session = draw(st.sampled_from(["live", "live", "5", "", "x", "1" * 30]))
    return draw(st.sampled_from(["POST", "POST", "GET", "PUT"])), f"/api/{name}{query}", body, session


def answer_to_everything(asked: list[tuple[str, str, bytes, str]]) -> None:
    """Whatever is asked has a documented status and a JSON body, and the controller lives on."""

    async def main() -> None:
        async with serving(FakeRemote(num_places=50)) as client:
            record, _ = await client.controller.start("three", 0)
            for method, target, body, session in asked:
                headers = {"session_id": str(record.session_id) if session == "live" else session}
                with trio.move_on_after(700.0):
                    status, _, answer = await client(method, target, body, headers)
                    assert status in (200, 400, 403, 404, 405, 500)
                    told = json.loads(answer)
                    assert status == 200 or isinstance(told["message"], str)
                    assert b"Traceback" not in answer
            assert (await client("GET", "/metrics"))[0] == 200

    run_virtual(main)


@given(st.lists(requests(), max_size=6))
def test_whatever_is_asked_is_answered(asked: list[tuple[str, str, bytes, str]]) -> None:
    answer_to_everything(asked)


@pytest.mark.soak
@settings(max_examples=3000)
@given(st.lists(requests(), max_size=12))
def test_whatever_is_asked_is_answered_at_length(asked: list[tuple[str, str, bytes, str]]) -> None:
    answer_to_everything(asked)
