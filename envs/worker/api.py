"""The worker's API, whatever carries it: sessions by id, each request answered by a status and JSON.

Invariants:
- A session is busy, idle or being cancelled; only an idle one takes a turn.
- A request once begun is carried out, also if its caller goes away: the session belongs to the controller, which asks
  for it with `get_sessions` and ends it with `cancel`.
- A request with a `request_id` may be sent again and then has one effect and one answer (an addition of ours; stock
  controllers send none).
"""

import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import trio

from agentrl_jax.errors import EnvError
from envs.worker.bodies import BadBody, body_of, index_of, integer_of
from envs.worker.service import Index, ServedSession, Service
from envs.worker.wire import CANCELLED, TASK_ERROR, BadTurn, NoSuchSession, Output, dump

_log = logging.getLogger(__name__)

_MAX_FINISHED = 1000
"""Sessions that are over and whose last answer can still be asked for again."""

CancelNotice = Callable[[int], Awaitable[None]]
"""Tells the controller that a session it cancelled with notice has ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """status: as of HTTP. body: JSON. session_id: for the header of that name."""

    status: int = 200
    body: bytes = b"null"
    session_id: int | None = None


class Refusal(Exception):
    """Why a request is refused: an HTTP status, and a detail for the caller."""

    def __init__(self, status: int, detail: Any) -> None:
        super().__init__(detail)
        self.status, self.detail = status, detail


@dataclass(eq=False, kw_only=True)
class _Pending:
    """A request that is being carried out: its answer, for however many wait for it."""

    request_id: int | None
    is_done: trio.Event = field(default_factory=trio.Event)
    reply: Reply = field(default_factory=Reply)

    async def wait(self) -> Reply:
        await self.is_done.wait()
        return self.reply

    def finish(self, reply: Reply) -> None:
        if not self.is_done.is_set():
            self.reply = reply
            self.is_done.set()


@dataclass(eq=False, kw_only=True)
class _Session:
    session_id: int
    index: Index
    served: ServedSession
    last: _Pending
    output: Output = field(default_factory=Output)
    is_cancelling: bool = False
    is_gone: trio.Event = field(default_factory=trio.Event)

    @property
    def is_busy(self) -> bool:
        return not self.last.is_done.is_set()


class WorkerApi:
    """Answers the requests of a controller for one service. Sessions live in `nursery`."""

    def __init__(self, service: Service, nursery: trio.Nursery, notify: CancelNotice) -> None:
        self.service = service
        self._nursery, self._notify = nursery, notify
        self._sessions: dict[int, _Session] = {}
        self._finished: OrderedDict[int, _Pending] = OrderedDict()
        self._is_draining = False
        self._changed = trio.Event()
        self._endpoints: dict[str, Callable[[dict[str, Any]], Awaitable[Reply]]] = {
            "get_indices": self._get_indices,
            "get_sessions": self._get_sessions,
            "worker_status": self._worker_status,
            "sample_status": self._sample_status,
            "start_sample": self._start_sample,
            "interact": self._interact,
            "cancel": self._cancel,
            "cancel_with_notice": self._cancel_with_notice,
            "cancel_all": self._cancel_all,
            "cancel_all_with_notice": self._cancel_all_with_notice,
            "calculate_overall": self._calculate_overall,
        }

    @property
    def num_sessions(self) -> int:
        return len(self._sessions)

    def knows(self, endpoint: str) -> bool:
        return endpoint in self._endpoints

    async def call(self, endpoint: str, body: bytes) -> Reply:
        """The answer to a request. Never raises; a caller that goes away cancels nothing but the waiting."""
        try:
            if endpoint not in self._endpoints:
                raise Refusal(404, "Not Found")
            return await self._endpoints[endpoint](body_of(body))
        except Refusal as refusal:
            return Reply(status=refusal.status, body=dump({"detail": refusal.detail}))
        except BadBody as bad:
            return Reply(status=422, body=dump({"detail": bad.detail}))

    async def drain(self) -> None:
        """Take no new sessions, and return when the last one is over."""
        self._is_draining = True
        while self._sessions:
            await self._changed.wait()

    async def close_all(self) -> None:
        """End every session; in-flight turns are answered as cancelled."""
        await self._cancel_all({})

    async def _get_indices(self, body: dict[str, Any]) -> Reply:
        return Reply(body=dump(list(self.service.indices)))

    async def _get_sessions(self, body: dict[str, Any]) -> Reply:
        return Reply(body=dump({str(number): session.index for number, session in self._sessions.items()}))

    async def _worker_status(self, body: dict[str, Any]) -> Reply:
        return Reply(body=dump({"concurrency": self.service.concurrency, "current": len(self._sessions)}))

    async def _sample_status(self, body: dict[str, Any]) -> Reply:
        session = self._known(body)
        output = session.output
        state = {
            "waiting_for_env": session.is_busy,
            "waiting_for_agent": not session.is_busy,
            "env_input": None,
            "env_output": {
                "index": session.index,
                "status": output.status,
                "result": output.result,
                "history": list(output.messages),
                "history_ptr": 0,
            },
        }
        return Reply(body=dump({"session_id": session.session_id, "index": session.index, "status": state}))

    async def _start_sample(self, body: dict[str, Any]) -> Reply:
        index, number = index_of(body, "index"), integer_of(body, "session_id")
        custom = body.get("custom_task")
        if not isinstance(custom, dict | None):
            raise BadBody.of("custom_task", "dict_type", "Input should be a valid dictionary")
        request_id = _request_id(body)
        if number in self._sessions:
            last = self._sessions[number].last
            if request_id is not None and last.request_id == request_id:
                return await last.wait()
            raise Refusal(400, "Session ID already exists")
        repeated = self._finished.get(number)
        if repeated is not None and request_id is not None and repeated.request_id == request_id:
            return repeated.reply
        if self._is_draining or len(self._sessions) >= self.service.concurrency:
            raise Refusal(406, f"Sample concurrency limit reached: {self.service.concurrency}")
        pending = _Pending(request_id=request_id)
        session = _Session(
            session_id=number, index=index, served=self.service.open(number, index, custom), last=pending
        )
        self._sessions[number] = session
        self._nursery.start_soon(self._carry_out, session, pending, session.served.start, _start_reply)
        return await pending.wait()

    async def _interact(self, body: dict[str, Any]) -> Reply:
        number, request_id = integer_of(body, "session_id"), _request_id(body)
        if "messages" not in body:
            raise BadBody.of("messages", "missing", "Field required")
        session = self._sessions.get(number)
        last = self._finished.get(number) if session is None else session.last
        if last is not None and request_id is not None and last.request_id == request_id:
            return await last.wait()
        if session is None:
            raise Refusal(400, "No such session")
        if session.is_busy or session.is_cancelling:
            raise Refusal(400, "Task Executing, please do not send new request.")
        session.last = pending = _Pending(request_id=request_id)
        messages = body["messages"]
        served = session.served
        self._nursery.start_soon(self._carry_out, session, pending, lambda: served.interact(messages), _turn_reply)
        return await pending.wait()

    async def _cancel(self, body: dict[str, Any]) -> Reply:
        session = self._known(body)
        self._begin_cancel(session, with_notice=False)
        await session.is_gone.wait()
        return Reply(body=dump({"session_id": session.session_id}))

    async def _cancel_with_notice(self, body: dict[str, Any]) -> Reply:
        session = self._known(body)
        self._begin_cancel(session, with_notice=True)
        return Reply(body=dump({"session_id": session.session_id}))

    async def _cancel_all(self, body: dict[str, Any]) -> Reply:
        sessions = list(self._sessions.values())
        for session in sessions:
            self._begin_cancel(session, with_notice=False)
        for session in sessions:
            await session.is_gone.wait()
        return Reply()

    async def _cancel_all_with_notice(self, body: dict[str, Any]) -> Reply:
        for session in list(self._sessions.values()):
            self._begin_cancel(session, with_notice=True)
        return Reply()

    async def _calculate_overall(self, body: dict[str, Any]) -> Reply:
        results = body.get("results")
        if not isinstance(results, list) or not all(isinstance(result, dict) for result in results):
            raise BadBody.of("results", "list_type", "Input should be a valid list of objects")
        try:
            return Reply(body=dump(await self.service.overall(results)))
        except (EnvError, ValueError, TypeError) as error:
            raise Refusal(500, f"the summary failed: {error}") from error

    def _known(self, body: dict[str, Any]) -> _Session:
        session = self._sessions.get(integer_of(body, "session_id"))
        if session is None:
            raise Refusal(400, "No such session")
        return session

    async def _carry_out(
        self,
        session: _Session,
        pending: _Pending,
        call: Callable[[], Awaitable[Output]],
        to_reply: Callable[[_Session, Output], Reply],
    ) -> None:
        reply = await self._outcome(session, call, to_reply)
        if session.is_cancelling:
            if session.output.is_over and session.output.status != TASK_ERROR:
                pending.finish(reply)  # it ended by itself, and its reward is not lost
            return
        if not session.output.is_over:
            pending.finish(reply)
            return
        self._forget(session)
        pending.finish(reply)
        await session.served.close()
        session.is_gone.set()

    async def _outcome(
        self, session: _Session, call: Callable[[], Awaitable[Output]], to_reply: Callable[[_Session, Output], Reply]
    ) -> Reply:
        try:
            session.output = await call()
            return to_reply(session, session.output)
        except BadTurn as bad:
            return Reply(status=500, body=dump({"detail": str(bad)}))
        except NoSuchSession:
            session.output = Output(status=CANCELLED)
            return Reply(status=400, body=dump({"detail": "No such session"}))
        except (ValueError, TypeError, RecursionError) as error:  # what was served is no JSON
            _log.error("session %s: its answer cannot be sent: %s", session.session_id, error)
            session.output = Output(status=TASK_ERROR, result=str(error))
            return to_reply(session, session.output)

    def _begin_cancel(self, session: _Session, *, with_notice: bool) -> None:
        if not session.is_cancelling:
            session.is_cancelling = True
            self._nursery.start_soon(self._end, session, with_notice)

    async def _end(self, session: _Session, with_notice: bool) -> None:
        await session.served.close()
        session.output = Output(status=CANCELLED)
        session.last.finish(_turn_reply(session, session.output))
        self._forget(session)
        session.is_gone.set()
        if with_notice:
            await self._notify(session.session_id)

    def _forget(self, session: _Session) -> None:
        del self._sessions[session.session_id]
        self._finished[session.session_id] = session.last
        if len(self._finished) > _MAX_FINISHED:
            self._finished.popitem(last=False)
        self._changed.set()
        self._changed = trio.Event()


def _request_id(body: dict[str, Any]) -> int | None:
    return integer_of(body, "request_id") if "request_id" in body else None


def _start_reply(session: _Session, output: Output) -> Reply:
    return Reply(body=dump(output.to_json()), session_id=session.session_id)


def _turn_reply(session: _Session, output: Output) -> Reply:
    return Reply(body=dump({"session_id": session.session_id, "env_out": output.to_json()}))
