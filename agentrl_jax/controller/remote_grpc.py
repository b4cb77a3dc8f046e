"""A worker that has dialled in: calls to it travel as envelopes on the stream that it holds open.

A worker that reconnects keeps its id, and what it had not been able to send comes on the new stream. So a call outlives
the stream that it was sent on, for as long as a worker needs to come back.
"""

import math
from uuid import uuid4

import msgspec
import trio

from agentrl_jax.controller.outcomes import Outcome
from agentrl_jax.controller.remote_workers import AnswerLost, NotDelivered
from agentrl_jax.controller.wire_http2 import GrpcError, GrpcStream
from agentrl_jax.controller.wire_proto import request_envelope
from agentrl_jax.engines.http import HttpResponse

Pending = dict[str, Outcome[HttpResponse]]
"""Calls of all workers by the ids of their requests: an answer may come on a stream that has not said whose it is."""

_MAX_WAITING = 10_000
_RETURN_S = 11.0
"""How long calls wait for a worker whose stream has ended: it dials again after a second, and reports every 8."""


class StreamTransport:
    """Implements `Transport` on whichever stream of a worker is the last."""

    def __init__(self, pending: Pending) -> None:
        self._pending = pending
        self._outbox, self._inbox = trio.open_memory_channel[bytes](_MAX_WAITING)
        self._calls: set[trio.CancelScope] = set()
        self._stream: trio.CancelScope | None = None
        self._is_closed = False

    async def call(self, endpoint: str, body: bytes) -> HttpResponse:
        if self._is_closed or self._stream is None:
            await trio.lowlevel.checkpoint()
            raise NotDelivered("the worker's stream has ended")
        request_id = str(uuid4())
        try:
            self._outbox.send_nowait(request_envelope(request_id, endpoint, body))
        except trio.WouldBlock as error:
            raise NotDelivered(f"{_MAX_WAITING} messages wait for the worker to read them") from error
        outcome = self._pending[request_id] = Outcome[HttpResponse]()
        with trio.CancelScope() as scope:
            self._calls.add(scope)
            try:
                return await outcome.wait()
            finally:
                self._calls.discard(scope)
                del self._pending[request_id]
        raise AnswerLost("the worker's stream has ended, and it has not come back")

    async def close(self) -> None:
        self._is_closed = True
        for scope in self._calls:
            scope.cancel()
        if self._stream is not None:
            self._stream.cancel()
        await trio.lowlevel.checkpoint()

    def attach(self) -> trio.CancelScope:
        """The worker has a new stream, which replaces an earlier one; for `write`."""
        if self._stream is not None:
            self._stream.cancel()
        self._stream = trio.CancelScope()
        for scope in self._calls:
            scope.deadline = math.inf
        return self._stream

    def detach(self, attached: trio.CancelScope) -> bool:
        """A stream has ended; False if it had been replaced. Calls wait a while for another one."""
        if self._stream is not attached:
            return False
        self._stream = None
        for scope in self._calls:
            scope.deadline = trio.current_time() + _RETURN_S
        return True

    async def write(self, stream: GrpcStream, attached: trio.CancelScope) -> None:
        """Send calls on `stream`, until it ends or is replaced."""
        with attached:
            try:
                async for message in self._inbox:
                    await stream.send(message)
            except GrpcError:
                pass  # whoever reads from it says so


def response_of(code: int, message: str, body: bytes) -> HttpResponse:
    """A worker's response as its HTTP API would word it."""
    if code == 200:
        return HttpResponse(200, body or b"null")
    return HttpResponse(code, body or msgspec.json.encode({"detail": message}))
