"""Stock `agentrl-worker` processes and our controller, over HTTP and gRPC."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import trio

from agentrl_jax.controller.remote_config import ListenConfig, RemoteConfig
from tests.agentrl.stock_processes import TURN, Caller, StockWorker, controller_at, free_port, stock_worker
from tests.controller.remote_world import num_taken

pytestmark = pytest.mark.agentrl

TOOLS = (
    b'[{"type":"function","function":{"name":"guess","description":"Says a number.","parameters":'
    b'{"type":"object","properties":{"number":{"type":"integer"}},"required":["number"]}}}]'
)
QUICK = RemoteConfig(coma_after_s=4.0, dead_after_s=6.0, retry_s=1.0)


@dataclass(frozen=True)
class Workers:
    """Workers of the tasks `http` and `grpc`, with 50 and 8 places, and the port where they look for a controller."""

    port: int
    http: StockWorker
    grpc: StockWorker


@pytest.fixture(scope="module")
def workers(stock_python: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workers]:
    folder, port = tmp_path_factory.mktemp("workers"), free_port()
    indices = [-1, *range(20)]
    with (
        stock_worker(stock_python, folder, "http", port, often=True, concurrency=50, indices=indices) as http,
        stock_worker(
            stock_python, folder, "grpc", port, grpc=True, often=True, concurrency=8, indices=["a", "b"]
        ) as grpc,
    ):
        yield Workers(port, http, grpc)


async def test_a_session_as_it_goes_over_the_wire(workers: Workers) -> None:
    async with controller_at(workers.port, "http", "grpc") as caller:
        for task, index, shown in (("http", 1, b"1"), ("grpc", "b", b"b"), ("grpc", 1, b"b")):
            session, started = await caller.start(task, index)
            assert started.headers["session-id"] == str(session)
            assert started.body == (
                b'{"messages":[{"role":"system","content":"You play."},{"role":"user","content":"Task ' + shown + b": "
                b'say something."}],"tools":'
                + TOOLS
                + b',"session_id":%d,' % session
                + b'"finish":false,"reward":0.0,"status":"running","metrics":{}}'
            )
            call = {"id": "0", "function": {"name": "guess", "arguments": "{}"}}  # trainers send no type
            message = {"role": "assistant", "content": "hi", "reasoning_content": "hm", "tool_calls": [call]}
            said = await caller.post("interact", {"messages": [message]}, session)
            assert said.body == (
                b'{"finish":false,"reward":0.0,"status":"running","messages":[{"role":"tool","content":"heard, turn 0",'
                b'"tool_call_id":"0"},{"role":"user","content":"Turn 0 is over."}],"metrics":{}}'
            )
            last = await caller.finish(session)
            assert (last["status"], last["messages"]) == ("completed", [])
            assert last["reward"] == pytest.approx(last["metrics"]["score"] / 3)
            assert last["metrics"]["turns"] == 3
            gone = await caller.post("interact", TURN, session)
            assert (gone.status, gone.json["message"]) == (400, "session not found")
        # What the worker's own checks refuse.
        session, _ = await caller.start("http", 0)
        for body in ({"messages": [{"role": "user", "content": "x"}]}, {"messages": []}):
            said = await caller.post("interact", body, session)
            assert (said.status, said.json["message"]) == (500, "failed to interact with session")
        assert (await caller.finish(session))["finish"]


async def test_custom_tasks_and_cancelling(workers: Workers) -> None:
    async with controller_at(workers.port, "http", "grpc") as caller:
        session, started = await caller.start("http", -1, custom_task={"x": 1})
        assert started.json["messages"][0]["content"] == "custom {'x': 1}"
        last = await caller.finish(session)
        assert (last["reward"], last["metrics"]) == (1.0, {"custom": True, "score": 0.75})
        for task in ("http", "grpc"):
            session, _ = await caller.start(task, 1)
            assert num_taken(caller.controller) == 1
            assert (await caller.post("cancel", None, session)).body == b"null"
            await caller.wait_idle()  # until the worker's notice
            assert (await caller.post("interact", TURN, session)).json["reason"] == "session_cancelled"


async def play(caller: Caller, task: str, rewards: list[float]) -> None:
    session, _ = await caller.start(task, 1)
    rewards.append((await caller.finish(session))["reward"])


async def test_ten_times_as_many_starts_as_places_are_all_served(workers: Workers) -> None:
    rewards: list[float] = []
    async with controller_at(workers.port, "grpc") as caller:
        async with trio.open_nursery() as nursery:
            for _ in range(80):
                nursery.start_soon(play, caller, "grpc", rewards)
        assert len(rewards) == 80
        assert num_taken(caller.controller) == 0
        counts = caller.controller.book.counts("grpc")
        assert (counts.ends.total(), counts.ends["completed"], counts.failures.total()) == (80, 80, 0)


async def test_fifty_sessions_go_on_after_a_restart_of_the_controller(workers: Workers) -> None:
    sessions: list[int] = []

    async def start(caller: Caller, index: int) -> None:
        sessions.append((await caller.start("http", index))[0])

    async with controller_at(workers.port, "http", "grpc") as caller:
        async with trio.open_nursery() as nursery:
            for number in range(50):
                nursery.start_soon(start, caller, number % 20)
        over_grpc, _ = await caller.start("grpc", 0)
        assert (await caller.post("interact", TURN, sessions[0])).status == 200
    ended: list[str] = []

    async def finish(caller: Caller, session: int) -> None:
        ended.append((await caller.finish(session))["status"])

    async with controller_at(workers.port) as caller:
        async with trio.open_nursery() as nursery:  # before the workers have reported
            for session in (*sessions, over_grpc):
                nursery.start_soon(finish, caller, session)
        assert ended == ["completed"] * 51
        session, _ = await caller.start("http", 0)
        assert session > max(sessions)
        await caller.finish(session)
        assert num_taken(caller.controller) == 0


async def test_sessions_of_killed_workers_end_with_a_reason(stock_python: Path, tmp_path: Path) -> None:
    port = free_port()
    slow = {"concurrency": 4, "step_s": 5.0}
    found: list[tuple[int, str]] = []

    async def interact(caller: Caller, session: int) -> None:
        said = await caller.post("interact", TURN, session)
        found.append((said.status, said.json.get("reason", "")))

    with (
        stock_worker(stock_python, tmp_path / "a", "three", port, often=True, **slow) as first,
        stock_worker(stock_python, tmp_path / "b", "three", port, often=True, grpc=True, **slow) as second,
    ):
        async with controller_at(port, config=QUICK) as caller:
            await caller.wait_workers(2)
            sessions = [(await caller.start("three", index))[0] for index in range(8)]
            assert len({caller.worker_of(session) for session in sessions}) == 2
            async with trio.open_nursery() as nursery:
                for session in sessions[:4]:
                    nursery.start_soon(interact, caller, session)
                await trio.sleep(0.5)  # within their turns
                first.kill()
                second.kill()
                for session in sessions[4:6]:
                    nursery.start_soon(interact, caller, session)
            assert {status for status, _ in found} == {500}
            assert {reason for _, reason in found} <= {"answer_lost", "worker_unreachable", "worker_lost"}
            await caller.wait_workers(0)
            assert not caller.controller.book.store.live
            fates = {caller.controller.book.store.fate(session) for session in sessions}
            assert {fate[1] for fate in fates if fate} <= {"worker_lost", "answer_lost"}
            assert len(fates) == 8
            statistics = caller.controller.statistics()["three"]
            assert (statistics.capacity, statistics.num_taken, statistics.num_sessions) == (0, 0, 0)


async def test_a_stock_worker_sends_the_token_that_its_url_has(stock_python: Path, tmp_path: Path) -> None:
    port = free_port()
    listen = ListenConfig(port=port, token="s3cret-x")
    with stock_worker(stock_python, tmp_path, "three", port, token="s3cret-x"):
        async with controller_at(port, "three", listen=listen) as caller:
            assert (await caller.post("start_sample", {"name": "three", "index": 0})).status == 401
