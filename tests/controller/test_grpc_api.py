"""Workers that dial in over gRPC, in memory: registration, calls, notices, streams that end and come back."""

import gzip
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import h2.config
import h2.connection
import msgspec
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock, memory_stream_pair

from agentrl_jax.controller.monitor import LoopMonitor
from agentrl_jax.controller.remote_config import ListenConfig
from agentrl_jax.controller.remote_controller import RemoteController, open_remote_controller
from agentrl_jax.controller.remote_server import ControllerServer
from agentrl_jax.controller.wire_http2 import GrpcError, GrpcStream, open_grpc_call
from agentrl_jax.controller.wire_proto import (
    MAX_MESSAGE_BYTES,
    REQUEST,
    RESPONSE,
    STREAM_PATH,
    cancel_notice_envelope,
    heartbeat_envelope,
    parse_envelope,
    response_envelope,
)
from agentrl_jax.controller.wire_types import SampleIndex
from agentrl_jax.controller.workers import WorkerStatus
from agentrl_jax.testing.virtual import run_virtual
from tests.controller.remote_world import SAY, FakeRemote, num_taken, problem_of

BEAT = heartbeat_envelope("ENVELOPE", "w", "NAME", concurrency=1, indices=["INDEX"])


class DialledWorker:
    """A `FakeRemote` behind a stream, as the stock worker's transport: what it cannot send waits for the next one."""

    def __init__(self, worker: FakeRemote, *, indices: Sequence[SampleIndex] = range(10)) -> None:
        self.worker, self.indices = worker, indices
        self._outbox, self._inbox = trio.open_memory_channel[bytes](1000)
        self.replies: list[tuple[str, int, str]] = []

    async def run(self, server: ControllerServer) -> None:
        """One stream, until cancelled or closed; begins with a heartbeat."""
        async with dialling(server) as call, trio.open_nursery() as nursery:
            nursery.start_soon(self._send, call)
            nursery.start_soon(self._beat)
            while (message := await call.receive(max_bytes=MAX_MESSAGE_BYTES)) is not None:
                envelope = parse_envelope(message)
                if envelope.type == REQUEST:
                    nursery.start_soon(self._answer, envelope)
                else:
                    assert envelope.type == RESPONSE
                    response = envelope.worker_response
                    self.replies.append((envelope.id, response.code, response.message))
            nursery.cancel_scope.cancel()

    async def _beat(self) -> None:
        while True:
            places = self.worker.num_places
            self.post(heartbeat_envelope("h", "w-1", "three", concurrency=places, indices=self.indices))
            await trio.sleep(8.0)

    def post(self, message: bytes) -> None:
        self._outbox.send_nowait(message)

    async def _send(self, call: GrpcStream) -> None:
        async for message in self._inbox:
            await call.send(message)

    async def _answer(self, envelope: Any) -> None:
        request = envelope.worker_request
        with trio.CancelScope(shield=True):  # it works on while its stream is gone
            answer = await self.worker.call(request.endpoint, request.json)
        if answer.status == 200:
            self.post(response_envelope(envelope.id, 200, body=answer.body))
        else:
            detail = msgspec.json.decode(answer.body)["detail"]
            self.post(response_envelope(envelope.id, answer.status, message=detail))


@asynccontextmanager
async def dialling(server: ControllerServer, path: str = STREAM_PATH) -> AsyncIterator[GrpcStream]:
    ours, theirs = memory_stream_pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(server.serve_connection, theirs, "127.0.0.1")
        async with open_grpc_call(ours, path, authority="h") as call:
            yield call


@asynccontextmanager
async def serving(listen: ListenConfig | None = None) -> AsyncIterator[tuple[ControllerServer, RemoteController]]:
    async with open_remote_controller() as controller:
        yield ControllerServer(controller, listen or ListenConfig(), LoopMonitor()), controller


async def test_a_session_over_a_stream(autojump_clock: MockClock) -> None:
    worker = FakeRemote()
    async with serving() as (server, controller), trio.open_nursery() as nursery:
        nursery.start_soon(DialledWorker(worker).run, server)
        await controller.roster.wait_served("three")
        (entry,) = controller.roster.entries()
        assert entry.name == "grpc://w-1"
        record, answer = await controller.start("three", 7)
        assert answer.messages[0].content == "index 7"
        for expected in ("running", "running", "completed"):
            answer = await controller.interact(record, SAY)
            assert answer.status == expected
        assert (answer.reward, worker.calls) == (0.5, ["get_sessions", "start_sample", *["interact"] * 3])
        assert num_taken(controller) == 0
        nursery.cancel_scope.cancel()


async def test_many_sessions_share_a_stream(autojump_clock: MockClock) -> None:
    worker = FakeRemote(num_places=64)
    done = 0

    async def one(controller: RemoteController, index: int) -> None:
        nonlocal done
        record, answer = await controller.start("three", index)
        assert answer.messages[0].content == f"index {index}"
        while answer.status == "running":
            answer = await controller.interact(record, SAY)
        done += 1

    async with serving() as (server, controller), trio.open_nursery() as nursery:
        nursery.start_soon(DialledWorker(worker).run, server)
        async with trio.open_nursery() as sessions:
            await controller.roster.wait_served("three")
            for number in range(100):
                sessions.start_soon(one, controller, number % 10)
        assert (done, worker.peak) == (100, 64)
        nursery.cancel_scope.cancel()


async def test_a_cancel_notice_frees_the_place_and_is_answered(autojump_clock: MockClock) -> None:
    worker = FakeRemote()
    dialled = DialledWorker(worker)
    worker.gives_notice = lambda session_id: dialled.post(cancel_notice_envelope("n-1", session_id))
    async with serving() as (server, controller), trio.open_nursery() as nursery:
        nursery.start_soon(dialled.run, server)
        await controller.roster.wait_served("three")
        record, _ = await controller.start("three", 0)
        controller.book.cancel(record)
        dialled.post(cancel_notice_envelope("n-2", 5))
        await trio.sleep(1.0)
        assert num_taken(controller) == 0
        assert sorted(dialled.replies) == [("n-1", 200, ""), ("n-2", 400, "session not found")]
        nursery.cancel_scope.cancel()


async def test_an_answer_may_come_on_the_next_stream(autojump_clock: MockClock) -> None:
    worker = FakeRemote(step_s=5.0)
    dialled = DialledWorker(worker)
    answers = []

    async def turn(controller: RemoteController, record: Any) -> None:
        answers.append(await controller.interact(record, SAY))

    async with serving() as (server, controller), trio.open_nursery() as nursery:
        async with trio.open_nursery() as first:
            first.start_soon(dialled.run, server)
            await controller.roster.wait_served("three")
            record, _ = await controller.start("three", 0)
            nursery.start_soon(turn, controller, record)
            await trio.sleep(1.0)
            first.cancel_scope.cancel()
        (entry,) = controller.roster.entries()
        assert entry.status is WorkerStatus.COMA
        assert not answers
        nursery.start_soon(dialled.run, server)
        await trio.sleep(8.0)
        assert [answer.status for answer in answers] == ["running"]
        assert entry.status is WorkerStatus.ALIVE
        assert (await controller.interact(record, SAY)).status == "running"
        assert worker.turns == {record.session_id: 2}
        nursery.cancel_scope.cancel()


async def test_a_worker_that_does_not_come_back_has_lost_its_answers(autojump_clock: MockClock) -> None:
    dialled = DialledWorker(FakeRemote(step_s=5.0))
    found = []

    async def turn(controller: RemoteController, record: Any) -> None:
        found.append(await problem_of(partial(controller.interact, record, SAY)))

    async with serving() as (server, controller), trio.open_nursery() as nursery:
        async with trio.open_nursery() as stream:
            stream.start_soon(dialled.run, server)
            await controller.roster.wait_served("three")
            record, _ = await controller.start("three", 0)
            nursery.start_soon(turn, controller, record)
            await trio.sleep(1.0)
            stream.cancel_scope.cancel()
        await trio.sleep(30.0)
        assert found == [(500, "failed to interact with session", "answer_lost")]
        await trio.sleep(300.0)
        assert (controller.roster.entries(), controller.book.store.live) == ([], {})


async def test_the_newest_stream_of_a_worker_is_the_one_that_counts(autojump_clock: MockClock) -> None:
    worker = FakeRemote()
    async with serving() as (server, controller), trio.open_nursery() as nursery:
        older, newer = DialledWorker(FakeRemote()), DialledWorker(worker)
        nursery.start_soon(older.run, server)
        await controller.roster.wait_served("three")
        nursery.start_soon(newer.run, server)
        await trio.sleep(1.0)
        await controller.start("three", 0)
        assert len(worker.sessions) == 1
        assert not older.worker.sessions
        nursery.cancel_scope.cancel()


async def test_string_indices_and_custom_tasks(autojump_clock: MockClock) -> None:
    worker = FakeRemote()
    async with serving() as (server, controller), trio.open_nursery() as nursery:
        nursery.start_soon(DialledWorker(worker, indices=[-1, "é", "b"]).run, server)
        task = await controller.roster.wait_served("three")
        assert task.indices == [-1, "é", "b"]
        await controller.start("three", 0)
        assert list(worker.sessions.values()) == ["é"]
        nursery.cancel_scope.cancel()


async def test_health(autojump_clock: MockClock) -> None:
    async with serving() as (server, _), dialling(server, "/grpc.health.v1.Health/Check") as call:
        assert await call.receive(max_bytes=9) == b"\x08\x01"


@pytest.mark.parametrize(
    ("path", "sent", "code"),
    [
        ("/nothing/Here", b"", "12"),
        (STREAM_PATH, b"\xff\xff\xff", "3"),
        (STREAM_PATH, BEAT.replace(b"NAME", b"\xff" * 4), "3"),
        (STREAM_PATH, BEAT.replace(b"INDEX", b"\xff" * 5), "3"),
        (STREAM_PATH, BEAT.replace(b"ENVELOPE", b"\xff" * 8), "3"),
    ],
    ids=["unknown method", "no message", "name not UTF-8", "index not UTF-8", "id not UTF-8"],
)
async def test_what_is_refused_has_a_code(path: str, sent: bytes, code: str, autojump_clock: MockClock) -> None:
    async with serving() as (server, _), dialling(server, path) as call:
        await call.send(sent)
        with pytest.raises(GrpcError, match=f"gRPC {code}:"):
            await call.receive(max_bytes=9)


async def test_a_compressed_heartbeat_is_refused_with_its_code(autojump_clock: MockClock) -> None:
    ours, theirs = memory_stream_pair()
    peer = h2.connection.H2Connection(h2.config.H2Configuration(header_encoding="utf-8"))
    peer.initiate_connection()
    fields = [(":method", "POST"), (":scheme", "http"), (":path", STREAM_PATH), (":authority", "h")]
    peer.send_headers(1, [*fields, ("grpc-encoding", "gzip")])
    peer.send_data(1, b"\x01\x00\x00\x00\x04" + gzip.compress(b"")[:4])
    trailers: dict[str, str] = {}
    async with serving() as (server, controller), trio.open_nursery() as nursery:
        nursery.start_soon(server.serve_connection, theirs, "127.0.0.1")
        await ours.send_all(peer.data_to_send())
        while "grpc-status" not in trailers:
            for event in peer.receive_data(bytes(await ours.receive_some())):
                trailers |= dict(getattr(event, "headers", None) or ())
        assert controller.roster.entries() == []
        nursery.cancel_scope.cancel()
    assert trailers["grpc-status"] == "12"
    assert "compressed by gzip" in trailers["grpc-message"]


async def test_a_stream_needs_the_token(autojump_clock: MockClock) -> None:
    async with serving(ListenConfig(token="s3cret")) as (server, _), dialling(server) as call:
        with pytest.raises(GrpcError, match="gRPC 16"):
            await call.receive(max_bytes=9)
    trusting = ListenConfig(token="s3cret", trusted=("127.0.0.0/8",))
    async with serving(trusting) as (server, _), dialling(server, "/grpc.health.v1.Health/Check") as call:
        assert await call.receive(max_bytes=9) == b"\x08\x01"


@given(
    st.lists(
        st.binary(max_size=30)
        | st.builds(
            heartbeat_envelope,
            st.text(max_size=3),
            st.text(max_size=3),
            st.text(max_size=3),
            concurrency=st.integers(0, 3),
            indices=st.lists(st.integers(-1, 3) | st.text(max_size=2), max_size=3),
        )
        | st.builds(cancel_notice_envelope, st.text(max_size=3), st.integers(-5, 2**62))
        | st.builds(response_envelope, st.text(max_size=3), st.integers(-1, 999), body=st.binary(max_size=9)),
        max_size=5,
    )
)
def test_whatever_a_worker_says_the_controller_lives_on(messages: list[bytes]) -> None:
    async def main() -> None:
        async with serving() as (server, controller):
            with trio.move_on_after(100.0):
                async with dialling(server) as call:
                    for message in messages:
                        try:
                            await call.send(message)
                        except GrpcError:
                            break
                    await trio.sleep(50.0)
            assert controller.statistics() is not None

    run_virtual(main)
