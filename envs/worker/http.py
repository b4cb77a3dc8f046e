"""The worker over HTTP: its API under /api, and heartbeats and notices to the controller.

The protocol has no authentication. With a token, requests must carry it as a bearer token or as the first part of the
path (`/TOKEN/api/…`): the address that the worker registers contains it, so that stock controllers send it too.
"""

import hmac
import logging
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import trio

from agentrl_jax.engines.http import HttpClient, HttpError, HttpResponse
from agentrl_jax.engines.http_hosts import host_problem
from agentrl_jax.engines.http_server import Answer, HttpRequest
from envs.worker.api import Reply, WorkerApi
from envs.worker.service import Index
from envs.worker.wire import dump

_log = logging.getLogger(__name__)

HEARTBEAT_S = 8.0
"""AgentRL's own: its controller gives a worker up after 11 s."""

_CALL_S = 5.0
_PREFIX = "/api/"
_READS = frozenset({"get_indices", "get_sessions", "worker_status"})


class HttpWorker:
    """Answers HTTP requests by a `WorkerApi`."""

    def __init__(self, api: WorkerApi, *, token: str | None = None, names: Sequence[str] = ()) -> None:
        """names: by which a worker without a token may be asked for, besides those of a loopback address."""
        self._api, self._token, self._names = api, token, names

    def refusal(self, request: HttpRequest) -> Answer | None:
        """For `serve_http`: of a caller without the token nothing is read."""
        if self._permitted(request) is None:
            return _answer(Reply(status=401, body=dump({"detail": "this worker needs a token"})))
        problem = host_problem(request, *self._names) if self._token is None else None
        if problem is None:
            return None
        return _answer(Reply(status=problem.status, body=dump({"detail": str(problem)})))

    async def handle(self, request: HttpRequest) -> Answer:
        """For `serve_http`, of callers that are not refused."""
        path = self._permitted(request) or ""
        endpoint = path.removeprefix(_PREFIX) if path.startswith(_PREFIX) else None
        if endpoint is None or not self._api.knows(endpoint):
            return _answer(Reply(status=404, body=dump({"detail": "Not Found"})))
        if request.method != ("GET" if endpoint in _READS else "POST"):
            return _answer(Reply(status=405, body=dump({"detail": "Method Not Allowed"})))
        return _answer(await self._api.call(endpoint, request.body))

    def _permitted(self, request: HttpRequest) -> str | None:
        """The path without a token; None if there must be one and there is not."""
        if self._token is None:
            return request.path
        first, _, rest = request.path.removeprefix("/").partition("/")
        if _equal(first, self._token):
            return f"/{rest}"
        sent = request.headers.get("authorization", "").removeprefix("Bearer ")
        return request.path if _equal(sent, self._token) else None


def _equal(sent: str, token: str) -> bool:
    return hmac.compare_digest(sent.encode("utf-8", "surrogatepass"), token.encode())


def _answer(reply: Reply) -> Answer:
    headers = {} if reply.session_id is None else {"session_id": str(reply.session_id)}
    return Answer(status=reply.status, body=reply.body, headers=headers)


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    """What a heartbeat says. address: of the worker's API, as the controller reaches it."""

    name: str
    address: str
    concurrency: int
    indices: Sequence[Index]


class HttpLink:
    """The worker's side of its controller's HTTP API. What fails is logged; the next heartbeat tries again."""

    def __init__(self, client: HttpClient, registration: Registration) -> None:
        self._client, self._registration = client, registration
        self._body = dump(
            {
                "name": registration.name,
                "address": registration.address,
                "concurrency": registration.concurrency,
                "indices": list(registration.indices),
            }
        )
        self._problem = "not registered yet"

    async def beat_forever(self) -> None:
        """Register with the controller, again and again: it forgets those that fall silent."""
        while True:
            await self._beat()
            await trio.sleep(HEARTBEAT_S)

    async def notify(self, session_id: int) -> None:
        """Say that a session cancelled with notice has ended. A controller that misses it finds out by asking."""
        await self._post("/cancel_notice", dump({"session_id": session_id}), session_id=session_id)

    async def retire(self) -> None:
        """Ask the controller to send no more sessions here."""
        workers = await self._get_workers()
        name, address = self._registration.name, self._registration.address
        for worker in workers.get(name, {}).get("workers", {}).values():
            if worker.get("address") == address:
                await self._post("/mark_stale", dump({"name": name, "worker_id": worker["id"], "stale": True}))

    async def _beat(self) -> None:
        problem = await self._post("/receive_heartbeat", self._body)
        if problem != self._problem:
            if problem:
                _log.warning("controller %s: %s", self._client.url, problem)
            else:
                _log.info("registered with controller %s", self._client.url)
        self._problem = problem

    async def _post(self, target: str, body: bytes, *, session_id: int | None = None) -> str:
        """What went wrong, or nothing."""
        headers = [] if session_id is None else [("session_id", str(session_id))]
        with trio.move_on_after(_CALL_S):
            try:
                answer = await self._client.request("POST", target, body, is_idempotent=True, headers=headers)
            except HttpError as error:
                return str(error)
            return "" if answer.status == 200 else f"{target}: status {answer.status}, {_shown(answer)}"
        return f"{target}: no answer within {_CALL_S} s"

    async def _get_workers(self) -> dict[str, dict[str, dict[str, dict[str, object]]]]:
        with suppress(HttpError), trio.move_on_after(_CALL_S):
            return (await self._client.get("/list_workers")).decode(dict)
        return {}


def _shown(answer: HttpResponse) -> str:
    if answer.body.lstrip()[:1] == b"<":
        return "and a web page: is this the address of a controller, with its /api?"
    return answer.body[:200].decode("utf-8", "replace")
