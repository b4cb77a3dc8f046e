"""The worker on the network: HTTP and gRPC, against controllers made for it; and `launch.worker` as a process."""

import json
import re
import signal
import subprocess
import sys
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
import trio
import trio.testing

from agentrl_jax.controller.hosted_sessions import HostConfig, open_session_host
from agentrl_jax.controller.wire_http2 import serve_http2
from agentrl_jax.controller.wire_proto import (
    HEARTBEAT,
    REQUEST,
    RESPONSE,
    STREAM_PATH,
    heartbeat_indices,
    parse_envelope,
    request_envelope,
)
from agentrl_jax.engines.http import open_http_client
from agentrl_jax.engines.http_server import Answer, ServerLimits, json_answer, serve_http
from agentrl_jax.errors import ConfigError
from agentrl_jax.testing.envs import EnvScript, ScriptedFamily, SessionLog, scripted_sessions
from envs.worker.serve import Place, serve
from envs.worker.service import EnvService
from launch.worker import main

ROOT = Path(__file__).resolve().parents[2]


class Controller:
    """The HTTP API of a controller, as far as workers use it."""

    def __init__(self):
        self.beats, self.notices, self.stale = [], [], []
        self.heard, self.refuses, self.page = trio.Event(), False, b""

    async def handle(self, request):
        body = json.loads(request.body) if request.body else None
        if request.path == "/api/receive_heartbeat":
            self.beats.append(body)
        elif request.path == "/api/cancel_notice":
            self.notices.append((int(request.headers["session_id"]), body))
        elif request.path == "/api/mark_stale":
            self.stale.append(body)
        elif request.path == "/api/list_workers":
            workers = {str(i): {"id": i, "address": b["address"]} for i, b in enumerate(self.beats)}
            return json_answer({self.beats[0]["name"]: {"indices": [], "workers": workers}})
        self.heard.set()
        self.heard = trio.Event()
        if self.page:
            return Answer(status=404, body=self.page, content_type="text/html")
        return json_answer({"message": "no"}, 400) if self.refuses else json_answer(None)


@asynccontextmanager
async def open_controller():
    controller = Controller()
    async with trio.open_nursery() as nursery:
        port = await nursery.start(
            partial(serve_http, controller.handle, host="127.0.0.1", port=0, limits=ServerLimits())
        )
        controller.url = f"http://127.0.0.1:{port}/api"
        yield controller
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def open_worker(place, script=None):
    """A client of a worker over HTTP, and what ends the worker."""
    family = ScriptedFamily(script=script or EnvScript(rewards=(0.0, 1.0)))
    factories = {family.name: scripted_sessions(family.script, SessionLog())}
    stop = trio.Event()
    async with open_session_host(factories, HostConfig()) as host, trio.open_nursery() as nursery:
        service = EnvService(family, "train", host, name="s-train", concurrency=2, max_turns=9)
        port = await nursery.start(partial(serve, service, place, lambda line: None, stop))
        async with open_http_client(f"http://127.0.0.1:{port}") as client:
            yield client, stop
        stop.set()


@asynccontextmanager
async def open_both(script=None, **options):
    async with open_controller() as controller:
        place = Place(controller=controller.url, port=0, **options)
        async with open_worker(place, script) as (client, stop):
            yield controller, client, stop


async def post(client, target, body, **options):
    answer = await client.request("POST", target, json.dumps(body).encode(), is_idempotent=False, **options)
    return answer.status, answer.decode(object)


async def test_a_worker_registers_by_its_first_heartbeat():
    async with open_both() as (controller, client, _):
        while not controller.beats:
            await controller.heard.wait()
        assert controller.beats == [
            {"name": "s-train", "address": f"{client.url}/api", "concurrency": 2, "indices": list(range(8))}
        ]


async def test_a_web_page_for_an_answer_is_not_logged_whole(caplog):
    async with open_controller() as controller:
        controller.page = b"<!DOCTYPE html><html><body>nothing here</body></html>"
        async with open_worker(Place(controller=controller.url, port=0)):
            while not caplog.messages:
                await controller.heard.wait()
                await trio.testing.wait_all_tasks_blocked(0.01)
    (said,) = caplog.messages
    assert "status 404, and a web page: is this the address of a controller, with its /api?" in said
    assert "<" not in said


async def test_the_api_over_http():
    async with open_both() as (controller, client, _):
        assert (await client.get("/api/get_indices")).decode(list) == list(range(8))
        status, body = await post(client, "/api/start_sample", {"index": 0, "session_id": 4})
        assert (status, body["status"]) == (200, "running")
        assert (await client.get("/api/get_sessions")).decode(dict) == {"4": 0}
        assert await post(client, "/api/cancel_with_notice", {"session_id": 4}) == (200, {"session_id": 4})
        while not controller.notices:
            await controller.heard.wait()
        assert controller.notices == [(4, {"session_id": 4})]
        assert await post(client, "/api/none", {}) == (404, {"detail": "Not Found"})
        assert (await client.get("/api/interact")).decode(dict) == {"detail": "Method Not Allowed"}
        assert (await client.get("/elsewhere")).status == 404


async def test_without_a_token_a_page_whose_name_was_made_to_lead_here_is_refused():
    async with open_both(address="http://box.lan:9/api") as (_, client, _):
        port = int(client.url.rpartition(":")[2])
        for name, status in (("evil.example:5021", b"403"), ("localhost:5021", b"200"), ("box.lan:9", b"200")):
            async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
                await stream.send_all(b"GET /api/get_sessions HTTP/1.1\r\nhost: %s\r\n\r\n" % name.encode())
                assert (await stream.receive_some()).startswith(b"HTTP/1.1 " + status)


async def test_a_token_is_asked_for_and_registered():
    async with open_both(token="s3cret") as (controller, client, _):
        assert (await client.get("/api/get_indices")).status == 401
        assert (await client.get("/s3cre/api/get_indices")).status == 401
        assert (await client.get("/s3cret/api/get_indices")).status == 200
        bearer = [("authorization", "Bearer s3cret")]
        answer = await client.request("GET", "/api/get_indices", b"", is_idempotent=True, headers=bearer)
        assert answer.status == 200
        while not controller.beats:
            await controller.heard.wait()
        assert controller.beats[0]["address"] == f"{client.url}/s3cret/api"


async def test_an_address_of_ones_own_gets_the_token_before_its_path():
    place = Place(controller="http://c:1/api", address="https://api.example:7/worker/api", token="t")
    assert place.reached_at(5) == "https://api.example:7/t/worker/api"
    assert Place(controller="http://c:1/api", host="::1").reached_at(5) == "http://[::1]:5/api"


async def test_a_worker_that_ends_asks_for_no_more_and_lets_sessions_end():
    async with open_both(EnvScript(rewards=(1.0,))) as (controller, client, stop):
        while not controller.beats:
            await controller.heard.wait()
        await post(client, "/api/start_sample", {"index": 0, "session_id": 1})
        stop.set()
        while not controller.stale:
            await controller.heard.wait()
        assert controller.stale == [{"name": "s-train", "worker_id": 0, "stale": True}]
        while (await post(client, "/api/start_sample", {"index": 0, "session_id": 2}))[0] != 406:
            await post(client, "/api/cancel", {"session_id": 2})
        message = {"role": "assistant", "content": "x"}
        status, body = await post(client, "/api/interact", {"session_id": 1, "messages": [message]})
        assert (status, body["env_out"]["reward"]) == (200, 1.0)


async def test_a_session_that_does_not_end_is_ended():
    async with open_both(drain_s=0.05) as (_, client, stop):
        await post(client, "/api/start_sample", {"index": 0, "session_id": 1})
        stop.set()  # the block ends, with the worker


async def test_a_controller_that_is_not_there_or_refuses_is_no_end(caplog):
    async with open_controller() as controller:
        controller.refuses = True
        async with open_worker(Place(controller=controller.url, port=0)) as (client, _):
            while not controller.beats:
                await controller.heard.wait()
            assert (await client.get("/api/worker_status")).status == 200
    async with open_worker(Place(controller=controller.url, port=0)) as (client, _):
        assert (await client.get("/api/worker_status")).status == 200


class Stream:
    """The controller's side of the workers' gRPC streams."""

    def __init__(self):
        self.calls = []
        self.opened = trio.Event()
        self.over = trio.Event()

    async def serve(self, call):
        assert call.headers[":path"] == STREAM_PATH
        self.calls.append(call)
        self.opened.set()
        self.opened = trio.Event()
        await self.over.wait()
        self.over = trio.Event()

    async def receive(self):
        return parse_envelope(await self.calls[-1].receive(max_bytes=1 << 20))

    async def ask(self, endpoint, body=None):
        await self.calls[-1].send(request_envelope("r1", endpoint, b"" if body is None else json.dumps(body).encode()))
        answer = await self.receive()
        assert answer.id == "r1"
        response = answer.worker_response
        return response.code, json.loads(response.json) if response.json else response.message


@asynccontextmanager
async def open_stream_controller():
    stream = Stream()
    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(
            partial(trio.serve_tcp, lambda s: serve_http2(s, stream.serve), 0, host="127.0.0.1")
        )
        stream.url = f"grpc://127.0.0.1:{listeners[0].socket.getsockname()[1]}"
        yield stream
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def open_dialled(stream, step_s=0.0):
    family = ScriptedFamily(script=EnvScript(rewards=(0.0, 1.0), step_s=step_s))
    factories = {family.name: scripted_sessions(family.script, SessionLog())}
    stop = trio.Event()
    async with open_session_host(factories, HostConfig()) as host, trio.open_nursery() as nursery:
        service = EnvService(family, "train", host, name="s-train", concurrency=2, max_turns=9)
        nursery.start_soon(serve, service, Place(controller=stream.url, drain_s=0.0), lambda line: None, stop)
        if not stream.calls:
            await stream.opened.wait()
        yield stop
        stop.set()


async def test_the_api_over_grpc():
    async with open_stream_controller() as stream, open_dialled(stream):
        beat = await stream.receive()
        assert beat.type == HEARTBEAT
        said = beat.receive_heartbeat_request
        assert (said.name, said.concurrency, heartbeat_indices(said)) == ("s-train", 2, list(range(8)))
        assert await stream.ask("get_indices") == (200, list(range(8)))
        code, body = await stream.ask("start_sample", {"index": 0, "session_id": 9})
        assert (code, body["status"]) == (200, "running")
        message = {"role": "assistant", "content": "x"}
        code, body = await stream.ask("interact", {"session_id": 9, "messages": [message]})
        assert (code, body["env_out"]["reward"]) == (200, 0.0)
        assert await stream.ask("cancel", {"session_id": 8}) == (400, "No such session")
        assert (await stream.ask("interact", {"session_id": 9}))[0] == 422
        assert (await stream.ask("_carry_out"))[0] == 404


async def test_a_broken_stream_is_dialled_again_with_its_sessions_and_notices():
    async with open_stream_controller() as stream, open_dialled(stream):
        beat = await stream.receive()
        await stream.ask("start_sample", {"index": 0, "session_id": 9})
        opened = stream.opened
        stream.over.set()
        await opened.wait()
        again = await stream.receive()
        assert again.receive_heartbeat_request.id == beat.receive_heartbeat_request.id
        assert await stream.ask("get_sessions") == (200, {"9": 0})
        assert await stream.ask("cancel_with_notice", {"session_id": 9}) == (200, {"session_id": 9})
        notice = await stream.receive()
        assert (notice.type, notice.session_cancel_notice.session_id) == (REQUEST, 9)


async def test_an_answer_outlives_the_stream_on_which_it_was_asked_for():
    async with open_stream_controller() as stream, open_dialled(stream, step_s=0.5):
        await stream.receive()
        await stream.ask("start_sample", {"index": 0, "session_id": 9})
        body = {"session_id": 9, "messages": [{"role": "assistant", "content": "x"}]}
        await stream.calls[-1].send(request_envelope("late", "interact", json.dumps(body).encode()))
        opened = stream.opened
        stream.over.set()
        await opened.wait()
        beat, answer = await stream.receive(), await stream.receive()
        assert (beat.type, answer.type, answer.id, answer.worker_response.code) == (HEARTBEAT, RESPONSE, "late", 200)
        assert json.loads(answer.worker_response.json)["env_out"]["status"] == "running"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["alfworld", "--host", "0.0.0.0"], "give a --token"),
        (["alfworld", "--controller", "ftp://x"], "--controller must be"),
        (["alfworld", "--controller", "grpc://x:1", "--token", "a"], "no effect with a grpc:// controller"),
        (["alfworld", "--token", "a/b"], "letters, digits"),
        (["alfworld", "--data", "/nowhere"], "there is none"),
        (["alfworld", "--split", "moon"], "has no data set 'moon'"),
        (["mars"], "unknown environment 'mars'"),
        (["a.b:C", "--level", "2"], "--level: of no effect with a task class"),
        (["a.b:C"], "a.b:C cannot be imported"),
        (["x", "--config", "/nowhere.yaml"], "expected a configuration file"),
        (["alfworld", "--concurrency", "0"], "--concurrency must be >= 1"),
    ],
)
def test_wrong_settings_are_refused_in_one_line(arguments, message, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err


def test_settings_of_a_place_are_checked():
    with pytest.raises(ConfigError, match="--drain-s"):
        Place(controller="http://c/api", drain_s=-1.0)


@asynccontextmanager
async def process(*arguments, cwd=ROOT):
    """A worker process, and the URL it serves at."""
    command = [sys.executable, "-m", "launch.worker", *arguments, "--port", "0"]
    async with trio.open_nursery() as nursery:
        run = partial(trio.run_process, command, cwd=cwd, stdout=subprocess.PIPE, check=False)
        worker = await nursery.start(run)
        said = b""
        while not (found := re.search(rb" at (http://127\.0\.0\.1:\d+)/api\n", said)):
            data = await worker.stdout.receive_some()
            assert data, said
            said += data
        try:
            yield worker, found[1].decode()
        finally:
            worker.kill()


async def test_a_worker_process_serves_registers_and_ends_with_its_sessions_on_sigterm():
    async with (
        open_controller() as controller,
        process("alfworld", "--controller", controller.url, "--session-kind", "process") as (worker, url),
        open_http_client(url) as client,
    ):
        status, body = await post(client, "/api/start_sample", {"index": 3, "session_id": 1})
        assert (status, body["messages"][0]["role"]) == (200, "system")
        while not controller.beats:
            await controller.heard.wait()
        assert controller.beats[0]["name"] == "alfworld-train"
        worker.send_signal(signal.SIGTERM)
        while not controller.stale:
            await controller.heard.wait()
        assert await post(client, "/api/cancel", {"session_id": 1}) == (200, {"session_id": 1})
        with trio.fail_after(20):
            assert await worker.wait() == 0
