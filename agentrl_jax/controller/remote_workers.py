"""Remote workers as the controller knows them: the task that each serves, and the way to call it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import trio

from agentrl_jax.controller.wire_types import NO_INDEX, SampleIndex, WireProblem
from agentrl_jax.engines.http import HttpClient, HttpConnectError, HttpError, HttpLimits, HttpResponse
from agentrl_jax.errors import ConfigError, EnvError

_LIMITS = HttpLimits(reuse_s=2.0)
"""Workers keep a connection for 5 s (uvicorn)."""

_GETS = ("get_sessions", "get_indices", "worker_status")


class NotDelivered(EnvError):
    """A worker cannot be reached: it has not seen the call, which may be made again."""


class AnswerLost(EnvError):
    """A worker may have carried out a call, and its answer will not come."""


class Transport(Protocol):
    """Calls the endpoints of one worker."""

    async def call(self, endpoint: str, body: bytes) -> HttpResponse:
        """Its answer, whatever the status. Raises NotDelivered or AnswerLost."""
        ...

    async def close(self) -> None:
        """Release everything; nothing is called afterwards."""
        ...


class HttpTransport:
    """A worker that listens itself. Raises ConfigError if its address is no URL."""

    def __init__(self, address: str) -> None:
        self._client = HttpClient(address.rstrip("/"), token=None, connect=None, limits=_LIMITS)

    async def call(self, endpoint: str, body: bytes) -> HttpResponse:
        is_read = endpoint in _GETS
        try:
            return await self._client.request("GET" if is_read else "POST", f"/{endpoint}", body, is_idempotent=is_read)
        except HttpConnectError as error:
            raise NotDelivered(str(error)) from error
        except HttpError as error:
            raise AnswerLost(str(error)) from error

    async def close(self) -> None:
        await self._client.close()


class ServedTask:
    """A task that workers serve, and its indices. raw: their JSON, to be recognised by."""

    def __init__(self, name: str, indices: Sequence[SampleIndex], raw: bytes) -> None:
        self.name, self.indices, self.raw = name, list(indices), raw
        self._known = frozenset(indices)
        own = [index for index in indices if index != NO_INDEX]
        self._by_position = own if own and all(isinstance(index, str) for index in own) else None

    def resolved(self, index: SampleIndex, custom_task: bytes | None) -> tuple[SampleIndex, bytes | None]:
        """The index that workers know, and the custom task if it is for that.

        Where all indices are strings, a number means a position among them. Raises WireProblem for an index that is
        not served, and for a custom task that is missing.
        """
        if index == NO_INDEX:
            if NO_INDEX not in self._known:
                raise WireProblem(400, f"task {self.name} does not support index {index}", "unknown_index")
            if custom_task is None:
                raise WireProblem(400, "no custom task provided", "no_custom_task")
            return index, custom_task
        if isinstance(index, int) and self._by_position is not None and 0 <= index < len(self._by_position):
            return self._by_position[index], None
        if index not in self._known:
            raise WireProblem(400, f"task {self.name} does not support index {index}", "unknown_index")
        return index, None


@dataclass(eq=False, kw_only=True)
class RemoteWorker:
    """One registered worker. last_visit: seconds since 1970. heartbeat: the indices as it last sent them."""

    worker_id: int
    address: str
    task: ServedTask
    transport: Transport
    last_visit: float
    heartbeat: bytes
    is_reviving: bool = False

    async def ask(self, endpoint: str, body: bytes, *, within_s: float) -> HttpResponse | None:
        """Its answer to a control call; None if there is none in time."""
        with trio.move_on_after(within_s):
            try:
                return await self.transport.call(endpoint, body)
            except (NotDelivered, AnswerLost):
                return None
        return None


def http_transport(address: str) -> HttpTransport:
    """Raises WireProblem if `address` is no URL."""
    try:
        return HttpTransport(address)
    except ConfigError as error:
        raise WireProblem(400, str(error), "invalid_address") from error
