"""One TCP port for everything that the controller offers: HTTP/1.1 for its API, page and metrics, and gRPC.

What a connection speaks is known from its first bytes. A request needs the token, whatever it asks for.
"""

from functools import partial
from socket import gethostname

import trio

from agentrl_jax.controller.grpc_api import GrpcApi
from agentrl_jax.controller.http_api import PREFIX, HttpApi, explain
from agentrl_jax.controller.monitor import LoopMonitor
from agentrl_jax.controller.page import Pages
from agentrl_jax.controller.remote_config import ListenConfig
from agentrl_jax.controller.remote_controller import RemoteController
from agentrl_jax.controller.wire_access import Access
from agentrl_jax.controller.wire_http2 import UNAUTHENTICATED, GrpcRefusal, GrpcStream, serve_http2
from agentrl_jax.engines.http_hosts import host_problem
from agentrl_jax.engines.http_server import (
    Answer,
    EventStream,
    HttpRequest,
    ServerLimits,
    is_loopback,
    listen,
    serve_connection,
)

_LIMITS = ServerLimits(max_body_bytes=100 << 20, idle_s=300.0)
_BACKLOG = 4096
_CHUNK_BYTES = 65_536
_HTTP2 = b"PRI"
_GONE = (OSError, trio.BrokenResourceError, trio.ClosedResourceError)
_UNAUTHORIZED = Answer(
    status=401, body=b'{"message":"Unauthorized"}', headers={"www-authenticate": 'Basic realm="agentrl controller"'}
)


class ControllerServer:
    """Serves one controller. Raises ConfigError for an address that others can reach, and no token."""

    def __init__(self, controller: RemoteController, config: ListenConfig, monitor: LoopMonitor) -> None:
        self._config, self._access = config, Access(config)
        self._api, self._pages = HttpApi(controller), Pages(controller, monitor)
        self._grpc = GrpcApi(controller)

    async def serve(self, *, task_status: trio.TaskStatus[int] = trio.TASK_STATUS_IGNORED) -> None:
        """Answer until cancelled; reports the port once it listens. Raises ConfigError if the address cannot be had."""
        listeners = await listen(self._config.host, self._config.port, backlog=_BACKLOG)
        task_status.started(listeners[0].socket.getsockname()[1])
        await trio.serve_listeners(self._serve_socket, listeners)

    async def _serve_socket(self, stream: trio.SocketStream) -> None:
        try:
            peer = stream.socket.getpeername()[0]
        except OSError:
            await trio.aclose_forcefully(stream)  # it has left
            return
        await self.serve_connection(stream, peer)

    async def serve_connection(self, stream: trio.abc.Stream, peer: str) -> None:
        """Serve one connection from the address `peer` to its end."""
        received = b""
        with trio.move_on_after(_LIMITS.idle_s):
            received = await _first_bytes(stream)
        if received.startswith(_HTTP2):
            await serve_http2(stream, partial(self._serve_call, peer), received=received)
        elif received:
            await serve_connection(
                stream,
                handler=self._handle,
                limits=_LIMITS,
                explain=explain,
                refuse=partial(self._refusal, peer),
                received=received,
            )
        else:
            await trio.aclose_forcefully(stream)

    def _refusal(self, peer: str, request: HttpRequest) -> Answer | None:
        if not self._access.admits(request.headers, peer):
            return _UNAUTHORIZED
        if self._access.has_token(request.headers) or not is_loopback(peer.removeprefix("::ffff:")):
            return None
        # Whoever asks from here without a token may be a browser, and what it shows anybody's page.
        problem = host_problem(request, self._config.host, gethostname())
        return None if problem is None else explain(problem)

    async def _handle(self, request: HttpRequest) -> Answer | EventStream:
        if request.path.startswith(PREFIX + "/"):
            return await self._api.handle(request)
        return await self._pages.handle(request)

    async def _serve_call(self, peer: str, call: GrpcStream) -> None:
        if not self._access.admits(call.headers, peer):
            raise GrpcRefusal(UNAUTHENTICATED, "a token is needed, or an address that is trusted")
        await self._grpc.serve(call)


async def _first_bytes(stream: trio.abc.Stream) -> bytes:
    """Enough of what the client says to know its protocol; empty if it says nothing."""
    received = b""
    while len(received) < len(_HTTP2) and _HTTP2.startswith(received):
        try:
            data = bytes(await stream.receive_some(_CHUNK_BYTES))
        except _GONE:
            return b""
        if not data:
            return b""
        received += data
    return received
