"""A worker in operation: its API, its link to the controller, and its end."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from urllib.parse import urlsplit

import trio

from agentrl_jax.engines.http import open_http_client
from agentrl_jax.engines.http_server import ServerLimits, serve_http
from agentrl_jax.errors import ConfigError
from envs.worker.api import WorkerApi
from envs.worker.grpc import GrpcLink
from envs.worker.http import HttpLink, HttpWorker, Registration
from envs.worker.service import Service

_LAST_WORDS_S = 0.2
"""For the answers of the last sessions to reach the controller."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a worker listens, and whom it serves.

    controller: `http://host:port/api`, to which the worker says where it listens, or `grpc://host:port`, which it
    dials and then listens nowhere. controller_token: what the controller asks for. host, port: of the worker's API.
    address: of the same, as the controller reaches it; None: made of host and port. token: what callers of the API must
    send. drain_s: how long sessions may go on once the worker is to end.
    """

    controller: str
    controller_token: str | None = None
    host: str = "127.0.0.1"
    port: int = 5021
    address: str | None = None
    token: str | None = None
    drain_s: float = 30.0

    def __post_init__(self) -> None:
        parts = urlsplit(self.controller)
        if parts.scheme not in ("http", "https", "grpc") or not parts.hostname:
            raise ConfigError(f"--controller must be http://host:port/api or grpc://host:port, got {self.controller!r}")
        if self.is_dialled and (self.address, self.token) != (None, None):
            raise ConfigError("--address and --token have no effect with a grpc:// controller: nothing listens then")
        if self.token is not None and not re.fullmatch(r"[\w.~-]+", self.token, re.ASCII):
            raise ConfigError("--token goes into a path: it may have letters, digits and . _ ~ - only")
        if not self.drain_s >= 0:
            raise ConfigError(f"--drain-s must be >= 0, got {self.drain_s}")

    @property
    def is_dialled(self) -> bool:
        """Whether the worker reaches its controller, and not the other way round."""
        return urlsplit(self.controller).scheme == "grpc"

    @property
    def names(self) -> tuple[str, ...]:
        """By which the API is asked for."""
        return tuple(filter(None, (self.host, urlsplit(self.address or "").hostname)))

    def reached_at(self, port: int) -> str:
        """What the controller is told: the address of the API, with the token as the first part of its path."""
        parts = urlsplit(self.address or f"http://{_in_url(self.host)}:{port}/api")
        return parts.geturl() if self.token is None else parts._replace(path=f"/{self.token}{parts.path}").geturl()


async def serve(
    service: Service,
    place: Place,
    say: Callable[[str], None],
    stop: trio.Event,
    *,
    task_status: trio.TaskStatus[int] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve until `stop` is set and the sessions that live then have ended, or their time is up; then close them all.

    Reports the port once the API listens (0: it does not). Raises ConfigError if it cannot.
    """
    run = _serve_dialled if place.is_dialled else _serve_http
    await run(service, place, say, stop, task_status)


async def _serve_http(
    service: Service, place: Place, say: Callable[[str], None], stop: trio.Event, task_status: trio.TaskStatus[int]
) -> None:
    async with (
        open_http_client(place.controller, token=place.controller_token) as client,
        trio.open_nursery() as nursery,
        trio.open_nursery() as sessions,
    ):
        links: list[HttpLink] = []
        api = WorkerApi(service, sessions, lambda session_id: links[0].notify(session_id))
        worker = HttpWorker(api, token=place.token, names=place.names)
        listen = partial(
            serve_http,
            worker.handle,
            host=place.host,
            port=place.port,
            limits=ServerLimits(),
            refuse=worker.refusal,
        )
        port: int = await nursery.start(listen)
        registration = Registration(
            name=service.name,
            address=place.reached_at(port),
            concurrency=service.concurrency,
            indices=service.indices,
        )
        links.append(HttpLink(client, registration))
        nursery.start_soon(links[0].beat_forever)
        say(f"serving {service.name} ({len(service.indices)} tasks) at http://{_in_url(place.host)}:{port}/api")
        task_status.started(port)
        await stop.wait()
        await links[0].retire()
        await _end(api, place, say)
        sessions.cancel_scope.cancel()
        nursery.cancel_scope.cancel()


async def _serve_dialled(
    service: Service, place: Place, say: Callable[[str], None], stop: trio.Event, task_status: trio.TaskStatus[int]
) -> None:
    link = GrpcLink(
        place.controller,
        token=place.controller_token,
        name=service.name,
        concurrency=service.concurrency,
        indices=list(service.indices),
    )
    async with trio.open_nursery() as nursery, trio.open_nursery() as sessions:
        api = WorkerApi(service, sessions, link.notify)
        nursery.start_soon(link.serve_forever, api)
        say(f"serving {service.name} ({len(service.indices)} tasks) to {place.controller}")
        task_status.started(0)
        await stop.wait()
        await _end(api, place, say)
        sessions.cancel_scope.cancel()
        nursery.cancel_scope.cancel()


async def _end(api: WorkerApi, place: Place, say: Callable[[str], None]) -> None:
    if not api.num_sessions:
        return
    say(f"draining: {api.num_sessions} sessions may go on for {place.drain_s:g} s (once more ends them at once)")
    with trio.move_on_after(place.drain_s):
        await api.drain()
    await api.close_all()
    await trio.sleep(_LAST_WORDS_S)


def _in_url(host: str) -> str:
    return f"[{host}]" if ":" in host else host
