"""Calls, cancellations, syncs and streams that cross each other."""

from typing import Any

import pytest
import trio
from trio.testing import MockClock

from agentrl_jax.controller.remote_controller import RemoteController
from agentrl_jax.controller.wire_http2 import GrpcStream
from agentrl_jax.controller.wire_proto import (
    MAX_MESSAGE_BYTES,
    heartbeat_envelope,
    parse_envelope,
    response_envelope,
)
from agentrl_jax.controller.wire_types import SampleIndex, WireProblem
from agentrl_jax.controller.workers import WorkerStatus
from agentrl_jax.engines.http import HttpResponse
from tests.controller.remote_world import SAY, FakeRemote, controlling, num_taken
from tests.controller.test_grpc_api import DialledWorker, dialling, serving


class LateStart(FakeRemote):
    """Knows of a session 2 s after it was asked to start it."""

    async def start_sample(self, index: SampleIndex, session_id: int, custom_task: Any = None) -> HttpResponse:
        await trio.sleep(2.0)
        return await super().start_sample(index, session_id, custom_task)


async def test_a_cancellation_that_overtakes_its_start_comes_again(autojump_clock: MockClock) -> None:
    worker = LateStart()
    async with controlling(worker) as controller:
        with trio.move_on_after(0.5):
            await controller.start("three", 0)
        await trio.sleep(1.0)
        assert (worker.calls.count("cancel_with_notice"), num_taken(controller)) == (1, 1)
        await trio.sleep(4.0)
        assert (worker.sessions, num_taken(controller), worker.calls.count("get_sessions")) == ({}, 0, 1)


async def test_a_sync_leaves_a_session_whose_start_is_under_way(autojump_clock: MockClock) -> None:
    async with controlling(LateStart()) as controller, trio.open_nursery() as nursery:
        nursery.start_soon(controller.start, "three", 0)
        await trio.sleep(1.0)
        await controller.roster.sync_all()
        assert len(controller.book.store.live) == 1


async def test_a_session_of_another_index_under_our_id_is_not_ours(autojump_clock: MockClock) -> None:
    worker = FakeRemote()
    async with controlling(worker) as controller:
        record, _ = await controller.start("three", 0)
        worker.sessions[record.session_id] = 5
        await controller.roster.sync_all()
        await trio.sleep(1.0)
        assert controller.book.store.fate(record.session_id) == (record, "session_lost")
        assert (worker.sessions, num_taken(controller)) == ({}, 0)


async def test_ids_rise_above_those_that_workers_report(autojump_clock: MockClock) -> None:
    async with controlling(FakeRemote()) as controller:
        reported = controller.book.store.first_id + 60_000 * 1024  # of a process whose clock was a minute ahead
    worker = FakeRemote(sessions={reported: 0}, turns={reported: 0})
    async with controlling(worker) as controller:
        record, _ = await controller.start("three", 0)
        assert record.session_id > reported


async def test_a_session_whose_start_cannot_be_read_is_ended_on_its_worker(autojump_clock: MockClock) -> None:
    class Unreadable(FakeRemote):
        async def start_sample(self, index: SampleIndex, session_id: int, custom_task: Any = None) -> HttpResponse:
            await super().start_sample(index, session_id, custom_task)
            return HttpResponse(200, b'{"status":null}')

    worker = Unreadable()
    async with controlling(worker) as controller:
        with pytest.raises(WireProblem, match="bad_answer"):
            await controller.start("three", 0)
        await trio.sleep(1.0)
        assert (worker.sessions, num_taken(controller), worker.calls.count("get_sessions")) == ({}, 0, 1)


def beat(name: str, worker_id: str = "w-1") -> bytes:
    return heartbeat_envelope("h", worker_id, name, concurrency=1, indices=[0])


async def asked(call: GrpcStream, endpoint: str) -> Any:
    """The controller's next request, for which it must be."""
    message = await call.receive(max_bytes=MAX_MESSAGE_BYTES)
    assert message is not None
    envelope = parse_envelope(message)
    assert envelope.worker_request.endpoint == endpoint
    return envelope


async def answer(call: GrpcStream, request: Any, body: bytes) -> None:
    await call.send(response_envelope(request.id, 200, body=body))


async def test_a_turn_may_take_longer_than_a_worker_may_be_away(autojump_clock: MockClock) -> None:
    going = b'{"status":"running","messages":[{"role":"user","content":"x"}]}'
    statuses = []

    async def play(controller: RemoteController) -> None:
        record, _ = await controller.start("a", 0)
        statuses.append((await controller.interact(record, SAY)).status)

    async with serving() as (server, controller), trio.open_nursery() as nursery:
        async with dialling(server) as call:
            await call.send(beat("a"))
            await answer(call, await asked(call, "get_sessions"), b"{}")
            await controller.roster.wait_served("a")
            nursery.start_soon(play, controller)
            await answer(call, await asked(call, "start_sample"), going)
            turn = await asked(call, "interact")
        async with dialling(server) as call:
            await call.send(beat("a"))
            await trio.sleep(60.0)
            await answer(call, turn, b'{"env_out":' + going + b"}")
            await trio.sleep(1.0)
            assert statuses == ["running"]


async def test_the_end_of_a_stream_that_was_replaced_says_nothing(autojump_clock: MockClock) -> None:
    async with serving() as (server, controller), trio.open_nursery() as nursery:
        async with trio.open_nursery() as first:
            first.start_soon(DialledWorker(FakeRemote()).run, server)
            await controller.roster.wait_served("three")
            nursery.start_soon(DialledWorker(FakeRemote()).run, server)
            await trio.sleep(1.0)
            first.cancel_scope.cancel()
        await trio.sleep(1.0)
        assert [entry.status for entry in controller.roster.entries()] == [WorkerStatus.ALIVE]
        await controller.start("three", 0)
        nursery.cancel_scope.cancel()


async def test_a_worker_may_serve_another_task_on_the_same_stream(autojump_clock: MockClock) -> None:
    async with serving() as (server, controller), dialling(server) as call:
        await call.send(beat("a"))
        await trio.sleep(1.0)
        await call.send(beat("b"))
        await trio.sleep(1.0)
        (entry,) = controller.roster.entries()
        assert entry.worker.task.name == "b"
        await call.send(beat("a"))
        await trio.sleep(1.0)
        (entry,) = controller.roster.entries()
        assert (entry.worker.task.name, set(controller.roster.tasks)) == ("a", {"a", "b"})


async def test_a_stream_is_of_whom_it_says_last(autojump_clock: MockClock) -> None:
    async with serving() as (server, controller), dialling(server) as call:
        for worker_id in ("w-1", "w-2"):
            await call.send(beat("a", worker_id))
            await answer(call, await asked(call, "get_sessions"), b"{}")
            await trio.sleep(1.0)
        statuses = {entry.name: entry.status for entry in controller.roster.entries()}
        assert statuses == {"grpc://w-1": WorkerStatus.COMA, "grpc://w-2": WorkerStatus.ALIVE}
