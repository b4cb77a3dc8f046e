"""The worker over gRPC: it dials out to its controller, which asks through the stream; nothing listens here."""

import logging
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
_MAX_UNSENT = 10_000
"""Envelopes that wait for a stream. Answers of a stream that broke are dropped: the controller asks anew."""


class GrpcLink:
    """One controller at `grpc://host:port`, dialled again whenever the stream ends.

    A notice that cannot be sent waits for the next stream. Heartbeats do not: each stream begins with one.
    """

    def __init__(self, url: str, *, token: str | None, name: str, concurrency: int, indices: Sequence[Index]) -> None:
        parts = urlsplit(url)
        if parts.scheme != "grpc" or not parts.hostname:
            raise ConfigError(f"expected a URL like grpc://host:port, got {url!r}")
        self._host, self._port = parts.hostname, parts.port or 5020
        self._token, self._worker_id = token, str(uuid4())
        self._name, self._concurrency, self._indices = name, concurrency, indices
        self._notices: list[int] = []
        self._has_notices = trio.Event()
        self._problem = ""

    async def notify(self, session_id: int) -> None:
        """Say, now or on the next stream, that a session cancelled with notice has ended."""
        self._notices.append(session_id)
        self._has_notices.set()
        await trio.lowlevel.checkpoint()

    async def retire(self) -> None:
        """The stream has no word for it: a worker that is being drained refuses starts."""
        await trio.lowlevel.checkpoint()

    async def serve_forever(self, api: WorkerApi) -> None:
        """Dial, and answer what the controller asks, until cancelled."""
        while True:
            try:
                await self._serve_stream(api)
                self._tell("it ended the stream")
            except* (OSError, trio.TooSlowError, GrpcError, RecordError) as errors:
                self._tell(str(_first(errors)) or type(_first(errors)).__name__)
            await trio.sleep(_REDIAL_S)

    def _tell(self, problem: str) -> None:
        """Log what is new."""
        if problem != self._problem:
            _log.warning("controller %s:%s: %s", self._host, self._port, problem)
        self._problem = problem

    async def _serve_stream(self, api: WorkerApi) -> None:
        with trio.fail_after(_CONNECT_S):
            stream = await trio.open_tcp_stream(self._host, self._port)
        authority = f"{self._host}:{self._port}"
        async with open_grpc_call(stream, STREAM_PATH, authority=authority, token=self._token) as call:
            _log.info("connected to controller %s:%s", self._host, self._port)
            self._problem = ""
            sender, receiver = trio.open_memory_channel[bytes](_MAX_UNSENT)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_send_all, call, receiver)
                nursery.start_soon(self._beat, sender)
                nursery.start_soon(self._send_notices, sender)
                while (data := await call.receive(max_bytes=MAX_MESSAGE_BYTES)) is not None:
                    envelope = parse_envelope(data)
                    if envelope.type == REQUEST and envelope.HasField("worker_request"):
                        nursery.start_soon(_answer, api, envelope, sender)
                nursery.cancel_scope.cancel()

    async def _beat(self, sender: trio.MemorySendChannel[bytes]) -> None:
        while True:
            beat = heartbeat_envelope(
                str(uuid4()), self._worker_id, self._name, concurrency=self._concurrency, indices=self._indices
            )
            await sender.send(beat)
            await trio.sleep(HEARTBEAT_S)

    async def _send_notices(self, sender: trio.MemorySendChannel[bytes]) -> None:
        while True:
            while self._notices:
                await sender.send(cancel_notice_envelope(str(uuid4()), self._notices[0]))
                del self._notices[0]
            self._has_notices = trio.Event()
            await self._has_notices.wait()


async def _send_all(call: GrpcStream, receiver: trio.MemoryReceiveChannel[bytes]) -> None:
    async for envelope in receiver:
        await call.send(envelope)


async def _answer(api: WorkerApi, envelope: Any, sender: trio.MemorySendChannel[bytes]) -> None:
    reply = await api.call(envelope.worker_request.endpoint, envelope.worker_request.json)
    if reply.status == 200:
        answer = response_envelope(envelope.id, 200, body=reply.body)
    else:
        detail = msgspec.json.decode(reply.body)["detail"]
        text = detail if isinstance(detail, str) else dump(detail).decode()
        answer = response_envelope(envelope.id, reply.status, message=text)
    await sender.send(answer)


def _first(errors: BaseExceptionGroup[Exception]) -> BaseException:
    first = errors.exceptions[0]
    return _first(first) if isinstance(first, BaseExceptionGroup) else first
