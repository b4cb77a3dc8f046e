"""Our worker and our controller: whole episodes over HTTP and gRPC, tokens, and restarts of either side."""

import json
from contextlib import asynccontextmanager
from functools import partial
from random import Random

import pytest
import trio

from agentrl_jax.controller.hosted_sessions import HostConfig, open_session_host
from agentrl_jax.controller.monitor import LoopMonitor
from agentrl_jax.controller.remote_config import ListenConfig, RemoteConfig
from agentrl_jax.controller.remote_controller import open_remote_controller
from agentrl_jax.controller.remote_server import ControllerServer
from agentrl_jax.controller.sessions import thread_sessions
from agentrl_jax.engines.http import open_http_client
from agentrl_jax.env import FamilyOptions
from envs.alfworld import family as alfworld_family
from envs.worker.serve import Place, serve
from envs.worker.service import EnvService
from tests.agentrl.stock_processes import free_port

QUICK = RemoteConfig(coma_after_s=3.0, dead_after_s=12.0, retry_s=1.0)


@asynccontextmanager
async def controller_at(port, token=None):
    """A client of a controller, with the controller itself as its attribute."""
    async with open_remote_controller(QUICK) as controller, trio.open_nursery() as nursery:
        listen = ListenConfig(port=port, token=token)
        port = await nursery.start(ControllerServer(controller, listen, LoopMonitor()).serve)
        async with open_http_client(f"http://127.0.0.1:{port}/api", token=token) as client:
            client.controller, client.port = controller, port
            yield client
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def worker_for(place):
    alfworld = alfworld_family(FamilyOptions())
    factories = {"alfworld": thread_sessions(alfworld.make, trio.CapacityLimiter(4))}
    stop = trio.Event()
    async with open_session_host(factories, HostConfig()) as host, trio.open_nursery() as nursery:
        service = EnvService(alfworld, "train", host, name="alfworld-train", concurrency=4, max_turns=20)
        await nursery.start(partial(serve, service, place, lambda line: None, stop))
        yield alfworld
        stop.set()


def place_for(client, kind, token=None):
    controller = f"{kind}://127.0.0.1:{client.port}{'/api' if kind == 'http' else ''}"
    return Place(controller=controller, controller_token=token, port=0, drain_s=0.0)


async def post(client, target, body, session=None):
    headers = [] if session is None else [("session_id", str(session))]
    answer = await client.request("POST", target, json.dumps(body).encode(), is_idempotent=False, headers=headers)
    return answer.status, answer.decode(dict)


async def start(client, index):
    await client.controller.roster.wait_served("alfworld-train")
    answer = await client.post("/start_sample", {"name": "alfworld-train", "index": index}, is_idempotent=False)
    assert answer.status == 200, answer.body
    return max(client.controller.book.store.live), answer.decode(dict)


def turns_of(alfworld, index):
    shown = alfworld.demonstrate(alfworld.task("train", index), Random(0), noise=0.0)
    for message in shown:
        if message.role == "assistant":
            calls = [
                {"id": f"c{n}", "function": {"name": call.name, "arguments": json.dumps(call.arguments)}}
                for n, call in enumerate(message.tool_calls)
            ]
            yield {"messages": [{"role": "assistant", "content": message.content, "tool_calls": calls}]}


@pytest.mark.parametrize("token", [None, "s3cret"])
@pytest.mark.parametrize("kind", ["http", "grpc"])
async def test_an_expert_wins_through_controller_and_worker(kind, token):
    async with controller_at(0, token) as client, worker_for(place_for(client, kind, token)) as alfworld:
        with trio.fail_after(20):
            session, first = await start(client, 3)
            assert "Your task is to: " in first["messages"][1]["content"]
            assert first["tools"][0]["function"]["name"] == "take_action"
            for turn in turns_of(alfworld, 3):
                status, answer = await post(client, "/interact", turn, session)
                assert status == 200, answer
            assert (answer["status"], answer["reward"], answer["finish"]) == ("completed", 1.0, True)
            refused = await client.post(
                "/start_sample", {"name": "alfworld-train", "index": 20_000}, is_idempotent=True
            )
            assert (refused.status, refused.decode(dict)["reason"]) == (400, "unknown_index")


@pytest.mark.parametrize("kind", ["http", "grpc"])
async def test_a_cancelled_session_gives_its_place_back(kind):
    async with controller_at(0) as client, worker_for(place_for(client, kind)):
        with trio.fail_after(20):
            session, _ = await start(client, 3)
            answer = await client.request(
                "POST", "/cancel", b"{}", is_idempotent=False, headers=[("session_id", str(session))]
            )
            assert answer.status == 200
            for entry in client.controller.roster.entries():
                await client.controller.book.pool.wait_idle(entry.name)


@pytest.mark.parametrize("kind", [pytest.param("http", marks=pytest.mark.slow), "grpc"])
async def test_sessions_go_on_when_the_controller_is_restarted(kind):
    """Over HTTP the worker is known again by its next heartbeat, after up to eight seconds."""
    port = free_port()
    controller = f"{kind}://127.0.0.1:{port}{'/api' if kind == 'http' else ''}"
    async with worker_for(Place(controller=controller, port=0, drain_s=0.0)) as alfworld:
        turns = list(turns_of(alfworld, 3))
        with trio.fail_after(30):
            async with controller_at(port) as client:
                session, _ = await start(client, 3)
                await post(client, "/interact", turns[0], session)
            async with controller_at(port) as client:
                for turn in turns[1:]:
                    status, answer = await post(client, "/interact", turn, session)
                    assert status == 200, answer
        assert (answer["status"], answer["reward"]) == ("completed", 1.0)


async def test_sessions_of_a_worker_that_is_restarted_end_with_a_reason():
    async with controller_at(0) as client:
        place = place_for(client, "grpc")
        with trio.fail_after(30):
            async with worker_for(place) as alfworld:
                session, _ = await start(client, 3)
                turn = next(turns_of(alfworld, 3))
            async with worker_for(place):
                status, answer = await post(client, "/interact", turn, session)
                assert status in (400, 500)
                assert answer["message"]
                again, _ = await start(client, 3)
                assert again > session
