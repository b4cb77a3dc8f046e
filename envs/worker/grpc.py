"""The worker over gRPC: it dials out to its controller, which asks through the stream; nothing listens here."""

import logging
from collections import deque
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import msgspec
import trio

from agentrl_jax.controller.wire_http2 import GrpcError, GrpcStream, open_grpc_call
from agentrl_jax.controller.wire_proto import (
    MAX_MESSAGE_BYTES,
    REQUEST,
    STREAM_PATH,
    cancel_notice_envelope,
    heartbeat_envelope,
    parse_envelope,
    response_envelope,
)
from agentrl_jax.errors import ConfigError, RecordError
from envs.worker.api import WorkerApi
from envs.worker.http import HEARTBEAT_S
from envs.worker.service import Index
from envs.worker.wire import dump

_log = logging.getLogger(__name__)

_REDIAL_S = 1.0
_CONNECT_S = 10.0


class GrpcLink:
    """One controller at `grpc://host:port`, dialled again whenever the stream ends.

    An answer or a notice that cannot be sent waits for the next stream: the controller asks nothing twice. Heartbeats
    do not: each stream begins with one.
    """

    def __init__(self, url: str, *, token: str | None, name: str, concurrency: int, indices: Sequence[Index]) -> None:
        parts = urlsplit(url)
        if parts.scheme != "grpc" or not parts.hostname:
            raise ConfigError(f"expected a URL like grpc://host:port, got {url!r}")
        self._host, self._port = parts.hostname, parts.port or 5020
        self._token, self._worker_id = token, str(uuid4())
        self._name, self._concurrency, self._indices = name, concurrency, indices
        self._outbox: deque[bytes] = deque()
        self._filled = trio.Event()
        self._problem = ""

    async def notify(self, session_id: int) -> None:
        """Say, now or on the next stream, that a session cancelled with notice has ended."""
        self._put(cancel_notice_envelope(str(uuid4()), session_id))
        await trio.lowlevel.checkpoint()

    async def retire(self) -> None:
        """The stream has no word for it: a worker that is being drained refuses starts."""
        await trio.lowlevel.checkpoint()

    async def serve_forever(self, api: WorkerApi) -> None:
        """Dial, and answer what the controller asks, until cancelled."""
        async with trio.open_nursery() as answers:
            while True:
                try:
                    await self._serve_stream(api, answers)
                    self._tell("it ended the stream")
                except* (OSError, trio.TooSlowError, GrpcError, RecordError) as errors:
                    self._tell(str(_first(errors)) or type(_first(errors)).__name__)
                await trio.sleep(_REDIAL_S)

    def _tell(self, problem: str) -> None:
        """Log what is new."""
        if problem != self._problem:
            _log.warning("controller %s:%s: %s", self._host, self._port, problem)
        self._problem = problem

    def _put(self, envelope: bytes) -> None:
        self._outbox.append(envelope)
        self._filled.set()

    async def _serve_stream(self, api: WorkerApi, answers: trio.Nursery) -> None:
        with trio.fail_after(_CONNECT_S):
            stream = await trio.open_tcp_stream(self._host, self._port)
        authority = f"{self._host}:{self._port}"
        async with open_grpc_call(stream, STREAM_PATH, authority=authority, token=self._token) as call:
            _log.info("connected to controller %s:%s", self._host, self._port)
            self._problem = ""
            async with trio.open_nursery() as nursery:
                await nursery.start(self._beat, call)
                nursery.start_soon(self._send_all, call)
                while (data := await call.receive(max_bytes=MAX_MESSAGE_BYTES)) is not None:
                    envelope = parse_envelope(data)
                    if envelope.type == REQUEST and envelope.HasField("worker_request"):
                        answers.start_soon(self._answer, api, envelope)
                nursery.cancel_scope.cancel()

    async def _beat(self, call: GrpcStream, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        while True:
            beat = heartbeat_envelope(
                str(uuid4()), self._worker_id, self._name, concurrency=self._concurrency, indices=self._indices
            )
            await call.send(beat)
            task_status.started()
            await trio.sleep(HEARTBEAT_S)

    async def _send_all(self, call: GrpcStream) -> None:
        while True:
            while self._outbox:
                await call.send(self._outbox[0])  # what breaks off comes whole on the next stream
                self._outbox.popleft()
            self._filled = trio.Event()
            await self._filled.wait()

    async def _answer(self, api: WorkerApi, envelope: Any) -> None:
        reply = await api.call(envelope.worker_request.endpoint, envelope.worker_request.json)
        if reply.status == 200:
            answer = response_envelope(envelope.id, 200, body=reply.body)
        else:
            detail = msgspec.json.decode(reply.body)["detail"]
            text = detail if isinstance(detail, str) else dump(detail).decode()
            answer = response_envelope(envelope.id, reply.status, message=text)
        self._put(answer)


def _first(errors: BaseExceptionGroup[Exception]) -> BaseException:
    first = errors.exceptions[0]
    return _first(first) if isinstance(first, BaseExceptionGroup) else first
