"""The controller's HTTP API, as AgentRL's clients and workers know it: JSON under /api.

Answers have what the original's have. Beyond it: the header `session-id` beside `session_id`, because reverse proxies
drop names with underscores; id, status and finish in a start's answer; a `reason` beside an error's message, where
there is one; and the header `request-id`, with which a turn may be sent again without being carried out again.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from functools import partial
from typing import Any, TypeAlias

import msgspec
import trio

from agentrl_jax.controller.remote_controller import RemoteController
from agentrl_jax.controller.remote_sessions import RemoteRecord
from agentrl_jax.controller.remote_workers import RemoteWorker, http_transport
from agentrl_jax.controller.wire_types import (
    NULL,
    HeartbeatRequest,
    InteractRequest,
    MarkStaleRequest,
    SampleIndex,
    StartRequest,
    WireProblem,
    decoded,
    read_request,
)
from agentrl_jax.controller.workers import Entry
from agentrl_jax.engines.http_server import Answer, HttpProblem, HttpRequest, json_answer

Endpoint: TypeAlias = Callable[[HttpRequest], Awaitable[Answer]]

PREFIX = "/api"
_VOID = json_answer(None)
_UTC8 = timezone(timedelta(hours=8))
_ECHO = {404: "Not Found", 405: "Method Not Allowed", 413: "Request Entity Too Large", 401: "Unauthorized"}


def explain(problem: HttpProblem) -> Answer:
    """A refusal in the words of the original."""
    return json_answer({"message": _ECHO.get(problem.status, str(problem))}, problem.status)


@dataclass(frozen=True, slots=True)
class _Route:
    method: str
    endpoint: Endpoint


class HttpApi:
    """Answers requests whose paths begin with /api; `handle` is a `Handler` of `http_server`."""

    def __init__(self, controller: RemoteController) -> None:
        self._controller, self._book, self._roster = controller, controller.book, controller.roster
        gets: Mapping[str, Endpoint] = {
            "list_workers": self._list_workers,
            "list_sessions": self._list_sessions,
            "get_indices": self._get_indices,
            "version": self._version,
        }
        posts: Mapping[str, Endpoint] = {
            "mark_stale": self._mark_stale,
            "start_sample": self._start_sample,
            "interact": self._interact,
            "cancel": self._cancel,
            "cancel_all": self._cancel_all,
            "cancel_notice": self._cancel_notice,
            "receive_heartbeat": self._receive_heartbeat,
            "clean_worker": self._clean,
            "clean_session": self._clean,
            "sync_all": self._sync_all,
        }
        self._routes = {
            f"{PREFIX}/{name}": _Route(method, endpoint)
            for method, endpoints in (("GET", gets), ("POST", posts))
            for name, endpoint in endpoints.items()
        }

    async def handle(self, request: HttpRequest) -> Answer:
        """Raises HttpProblem for a path or method that there is not; every other refusal is an answer."""
        route = self._routes.get(request.path)
        if route is None:
            raise HttpProblem(404, f"there is no {request.path} here")
        if route.method != request.method:
            raise HttpProblem(405, f"{request.path} takes {route.method}, got {request.method}")
        try:
            return await route.endpoint(request)
        except WireProblem as problem:
            return json_answer(problem.body(), problem.status)

    async def _start_sample(self, request: HttpRequest) -> Answer:
        asked = read_request(request.body, StartRequest)
        custom = None if bytes(asked.custom_task) == bytes(NULL) else bytes(asked.custom_task)
        record, answer = await self._controller.start(asked.name, asked.index, custom)
        headers = dict.fromkeys(("session_id", "session-id"), str(record.session_id))
        return Answer(body=msgspec.json.encode(answer.as_started(record.session_id)), headers=headers)

    async def _interact(self, request: HttpRequest) -> Answer:
        request_id = request.headers.get("request-id")
        record = await self._controller.session(_session_id(request), request_id=request_id)
        messages = read_request(request.body, InteractRequest).messages
        if messages is None:
            # The original takes it for a start, which the worker then refuses.
            problem = WireProblem(500, "failed to interact with session", "no_messages_sent")
            raise self._book.failed(record.name, problem)
        answer = await self._controller.interact(record, messages, request_id=request_id)
        return Answer(body=msgspec.json.encode(answer.as_turn()))

    async def _cancel(self, request: HttpRequest) -> Answer:
        self._book.cancel(await self._session(request))
        return _VOID

    async def _cancel_all(self, request: HttpRequest) -> Answer:
        await trio.lowlevel.checkpoint()
        name = request.query.get("name", "")
        if not name and request.query.get("force") != "true" and len(self._roster.tasks) > 1:
            raise WireProblem(403, "there are several tasks: give a name, or force=true", "several_tasks")
        if name:
            self._roster.task(name)
        for record in list(self._book.store.live.values()):
            if name in ("", record.name):
                self._book.cancel(record)
        return _VOID

    async def _cancel_notice(self, request: HttpRequest) -> Answer:
        await trio.lowlevel.checkpoint()
        self._book.noticed(_session_id(request))
        return _VOID

    async def _receive_heartbeat(self, request: HttpRequest) -> Answer:
        await trio.lowlevel.checkpoint()
        beat = read_request(request.body, HeartbeatRequest)
        raw = bytes(beat.indices)
        self._roster.heartbeat(
            beat.name,
            beat.address,
            beat.concurrency,
            raw=raw,
            read_indices=lambda: _indices(raw),
            make_transport=partial(http_transport, beat.address),
        )
        return _VOID

    async def _mark_stale(self, request: HttpRequest) -> Answer:
        await trio.lowlevel.checkpoint()
        asked = read_request(request.body, MarkStaleRequest)
        entry = self._roster.worker(asked.name, asked.worker_id)
        (self._book.pool.drain if asked.stale else self._book.pool.resume)(entry.name)
        return _VOID

    async def _clean(self, request: HttpRequest) -> Answer:
        """Nothing waits for a sweep here: whatever is due goes at once."""
        await trio.lowlevel.checkpoint()
        return _VOID

    async def _sync_all(self, request: HttpRequest) -> Answer:
        await self._roster.sync_all()
        return _VOID

    async def _get_indices(self, request: HttpRequest) -> Answer:
        await trio.lowlevel.checkpoint()
        return json_answer(self._roster.task(request.query.get("name", "")).indices)

    async def _version(self, request: HttpRequest) -> Answer:
        await trio.lowlevel.checkpoint()
        return json_answer({"variant": "nova", "version": 1})

    async def _list_workers(self, request: HttpRequest) -> Answer:
        await trio.lowlevel.checkpoint()
        listed: dict[str, Any] = {
            name: {"indices": task.indices, "workers": {}} for name, task in self._roster.tasks.items()
        }
        for entry in self._roster.entries():
            worker = entry.worker
            listed[worker.task.name]["workers"][str(worker.worker_id)] = _described(entry)
        return json_answer(listed)

    async def _list_sessions(self, request: HttpRequest) -> Answer:
        await trio.lowlevel.checkpoint()
        live = self._book.store.live
        return json_answer({str(session_id): _listed(record) for session_id, record in live.items()})

    async def _session(self, request: HttpRequest) -> RemoteRecord:
        return await self._controller.session(_session_id(request))


def _session_id(request: HttpRequest) -> int:
    text = request.headers.get("session_id") or request.headers.get("session-id") or ""
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise WireProblem(400, "invalid session id")
    return int(text)


def _indices(raw: bytes) -> list[SampleIndex]:
    try:
        return decoded(raw, list[SampleIndex])
    except ValueError as error:
        raise WireProblem(400, "invalid request", "invalid_request", str(error)) from error


def _described(entry: Entry[RemoteWorker]) -> dict[str, Any]:
    worker = entry.worker
    name = worker.task.name
    return {
        "id": worker.worker_id,
        "address": worker.address,
        "capacity": entry.places.capacity[name],
        "current": entry.places.taken[name],
        "last_visit": _time(worker.last_visit),
        "status": entry.status.value,
        "stale": entry.is_draining,
        "locked": False,
    }


def _listed(record: RemoteRecord) -> dict[str, Any]:
    return {
        "name": record.name,
        "index": record.index,
        "custom_task": NULL if record.custom_task is None else msgspec.Raw(record.custom_task),
        "start": _time(record.started_at),
        "last_update": _time(record.used_at),
        "worker_id": record.entry.worker.worker_id,
        "locked": record.is_busy or record.is_cancelling,
        "cancelling": record.is_cancelling,
    }


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, _UTC8).strftime("%Y-%m-%d %H:%M:%S")
