"""The controller's gRPC API: the stream by which workers register, are called and give notice; and a health check."""

from contextlib import suppress
from typing import Any

import trio

from agentrl_jax.controller.cancellation import unwrapped_errors
from agentrl_jax.controller.remote_controller import RemoteController
from agentrl_jax.controller.remote_grpc import Pending, StreamTransport, response_of
from agentrl_jax.controller.remote_workers import RemoteWorker
from agentrl_jax.controller.wire_http2 import (
    UNIMPLEMENTED,
    GrpcError,
    GrpcMessageError,
    GrpcRefusal,
    GrpcStream,
)
from agentrl_jax.controller.wire_proto import (
    HEARTBEAT,
    MAX_MESSAGE_BYTES,
    REQUEST,
    RESPONSE,
    STREAM_PATH,
    checked_text,
    heartbeat_indices,
    parse_envelope,
    response_envelope,
)
from agentrl_jax.controller.wire_types import WireProblem
from agentrl_jax.controller.workers import Entry
from agentrl_jax.errors import RecordError

_HEALTH_PATH = "/grpc.health.v1.Health/Check"
_SERVING = b"\x08\x01"
_MAX_REPLIES = 1_000
INVALID_ARGUMENT = 3


class GrpcApi:
    """Serves the calls of one controller's workers."""

    def __init__(self, controller: RemoteController) -> None:
        self._controller = controller
        self._pending: Pending = {}

    async def serve(self, call: GrpcStream) -> None:
        """Raises GrpcRefusal for a method that there is not, and for what is no envelope; GrpcMessageError for what is
        no message."""
        path = call.headers.get(":path", "")
        if path == _HEALTH_PATH:
            await call.send(_SERVING)
        elif path == STREAM_PATH:
            await _WorkerStream(self._controller, call, self._pending).serve()
        else:
            raise GrpcRefusal(UNIMPLEMENTED, f"there is no {path} here")


class _WorkerStream:
    """One stream of one worker. Its first heartbeat tells whose it is."""

    def __init__(self, controller: RemoteController, call: GrpcStream, pending: Pending) -> None:
        self._roster, self._book = controller.roster, controller.book
        self._call, self._pending = call, pending
        self._replies_out, self._replies_in = trio.open_memory_channel[bytes](_MAX_REPLIES)
        self._entry: Entry[RemoteWorker] | None = None
        self._transport: StreamTransport | None = None
        self._attached: trio.CancelScope | None = None

    async def serve(self) -> None:
        """Until the stream ends."""
        with unwrapped_errors():
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._reply)
                try:
                    while (message := await self._call.receive(max_bytes=MAX_MESSAGE_BYTES)) is not None:
                        await self._handle(parse_envelope(message), nursery)
                except RecordError as error:
                    raise GrpcRefusal(INVALID_ARGUMENT, str(error)) from error
                except GrpcMessageError:
                    raise
                except GrpcError:
                    pass  # it has left, perhaps for a moment
                finally:
                    self._detach("its stream has ended")
                    nursery.cancel_scope.cancel()

    async def _handle(self, envelope: Any, nursery: trio.Nursery) -> None:
        if envelope.type == HEARTBEAT and envelope.HasField("receive_heartbeat_request"):
            self._beat(envelope.receive_heartbeat_request, nursery)
        elif envelope.type == RESPONSE and envelope.HasField("worker_response"):
            response, outcome = envelope.worker_response, self._pending.get(envelope.id)
            if outcome is not None:  # else nobody waits for it any more
                outcome.succeed(response_of(response.code, response.message, response.json))
        elif envelope.type == REQUEST and envelope.HasField("session_cancel_notice"):
            await self._notice(envelope.id, envelope.session_cancel_notice.session_id)

    def _beat(self, beat: Any, nursery: trio.Nursery) -> None:
        worker_id, name, concurrency = checked_text(beat.id), checked_text(beat.name), beat.concurrency
        for field in ("id", "name", "concurrency"):
            beat.ClearField(field)
        try:
            entry = self._roster.heartbeat(
                name,
                f"grpc://{worker_id}" if worker_id else "",
                concurrency,
                raw=beat.SerializeToString(),
                read_indices=lambda: heartbeat_indices(beat),
                make_transport=lambda: StreamTransport(self._pending),
            )
        except WireProblem as problem:
            self._book.failed(name, problem)
            return
        transport = entry.worker.transport
        if transport is not self._transport and isinstance(transport, StreamTransport):
            self._detach("it is another one now")
            self._entry, self._transport, self._attached = entry, transport, transport.attach()
            nursery.start_soon(transport.write, self._call, self._attached)

    def _detach(self, why: str) -> None:
        if self._entry is None or self._transport is None or self._attached is None:
            return
        if self._transport.detach(self._attached):
            self._roster.suspend(self._entry, why)
        self._entry = self._transport = self._attached = None

    async def _notice(self, request_id: str, session_id: int) -> None:
        try:
            self._book.noticed(session_id)
            reply = response_envelope(request_id, 200, body=b"null")
        except WireProblem as problem:
            reply = response_envelope(request_id, problem.status, message=problem.message)
        await self._replies_out.send(reply)

    async def _reply(self) -> None:
        with suppress(GrpcError):  # whoever reads from it says so
            async for reply in self._replies_in:
                await self._call.send(reply)
