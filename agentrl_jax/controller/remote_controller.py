"""AgentRL's controller: sessions of tasks that remote workers serve, for whoever starts them here or over HTTP.

Invariants:
- A start or a turn is sent once. If its answer is lost, the session ends: nothing is ever carried out twice.
- What a worker says to a call counts even if the caller has gone away meanwhile.
- A place is given back exactly once: when its session's end is known, or its worker is lost.
"""

from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import TypeVar

import trio

from agentrl_jax.controller.cancellation import unwrapped_errors
from agentrl_jax.controller.outcomes import Outcome
from agentrl_jax.controller.remote_book import Report, SessionBook
from agentrl_jax.controller.remote_config import RemoteConfig
from agentrl_jax.controller.remote_roster import Roster
from agentrl_jax.controller.remote_sessions import RemoteRecord
from agentrl_jax.controller.remote_statistics import TaskStatistics
from agentrl_jax.controller.remote_workers import AnswerLost, NotDelivered, RemoteWorker
from agentrl_jax.controller.wire_types import (
    ChatMessage,
    SampleIndex,
    WireProblem,
    WorkerAnswer,
    WorkerProblem,
    WorkerTurn,
    decoded,
    interact_body,
    start_body,
)
from agentrl_jax.controller.workers import Entry
from agentrl_jax.engines.http import HttpResponse
from agentrl_jax.errors import EnvError

T = TypeVar("T")

START_FAILED = "failed to start sample"
INTERACT_FAILED = "failed to interact with session"

_FULL = 406
_FIRST_PAUSE_S = 0.1
_FULL_PAUSE_S = 0.5


class RemoteController:
    """Opened by `open_remote_controller`. Its calls raise WireProblem for whatever is refused or fails.

    book: the sessions. roster: the workers.
    """

    def __init__(self, config: RemoteConfig, nursery: trio.Nursery, report: Report) -> None:
        self.config, self._nursery = config, nursery
        self.book = SessionBook(config, nursery, report)
        self.roster = Roster(self.book, nursery)

    async def reserve(self, name: str) -> Entry[RemoteWorker]:
        """A place on a worker that serves the task `name`; for `start`, or `release`."""
        return await self._reserve(name, trio.current_time() + self.config.queue_s)

    async def _reserve(self, name: str, give_up: float) -> Entry[RemoteWorker]:
        problem = partial(WireProblem, 400, f"no workers available for task {name}")
        if self.config.full == "refuse":
            entry = self.book.pool.take_now(name)
            if entry is None:
                raise self.book.failed(name, problem("full"))
            return entry
        with trio.move_on_at(give_up):
            try:
                return await self.book.pool.take(name)
            except EnvError as error:
                raise self.book.failed(name, problem("queue_full", str(error))) from error
        raise self.book.failed(name, problem("queue_timeout"))

    async def session(self, session_id: int, *, request_id: str | None = None) -> RemoteRecord:
        """A live session, or one whose last turn was `request_id`: the answer that ended it may be asked for again.

        Raises WireProblem if there is none, with the reason if that is known.
        """
        fate = self.book.store.fate(session_id)
        if fate is not None and fate[0].was_asked(request_id):
            return fate[0]
        return await self.book.store.find(session_id)

    def release(self, entry: Entry[RemoteWorker], name: str) -> None:
        """Give a place back that no `start` has used."""
        self.book.pool.give_back(entry, name)

    async def start(
        self,
        name: str,
        index: SampleIndex,
        custom_task: bytes | None = None,
        *,
        place: Entry[RemoteWorker] | None = None,
        expires: bool = True,
    ) -> tuple[RemoteRecord, WorkerAnswer]:
        """Start a session, once there is a place for it.

        place: one that `reserve` gave; it is used up. expires: False for a caller in this process, who closes it.
        If this is cancelled, no session is left.
        """
        try:
            index, custom_task = self.roster.task(name).resolved(index, custom_task)
        except WireProblem:
            if place is not None:
                self.release(place, name)
            raise
        give_up = trio.current_time() + self.config.queue_s
        while True:
            entry, place = place or await self._reserve(name, give_up), None
            if entry.lost:  # since it gave its place
                continue
            record = self.book.add(index, custom_task, entry, expires=expires)
            outcome = self._begin(record, START_FAILED, partial(self._start, record))
            try:
                return record, await outcome.wait()
            except trio.Cancelled:
                self.book.cancel(record)
                raise
            except _NoPlace as full:
                may_wait = self.config.full == "wait" and trio.current_time() + full.pause_s < give_up
                if full.pause_s and not may_wait:
                    raise self.book.failed(name, WireProblem(500, START_FAILED, "worker_full")) from full
                await trio.sleep(full.pause_s)

    async def interact(
        self, record: RemoteRecord, messages: list[ChatMessage], *, request_id: str | None = None
    ) -> WorkerAnswer:
        """Carry out one turn. A repeated `request_id` (the last one's) gets that one's answer."""
        if record.last_request is not None and record.was_asked(request_id):
            return await record.last_request[1].wait()
        if record.is_over:
            record = await self.session(record.session_id)  # says why
        if record.is_busy or record.is_cancelling:
            reason = "cancelling" if record.is_cancelling else "busy"
            raise self.book.failed(record.name, WireProblem(500, INTERACT_FAILED, reason))
        body = interact_body(record.session_id, messages)
        outcome = self._begin(record, INTERACT_FAILED, partial(self._turn, record, body))
        record.last_request = None if request_id is None else (request_id, outcome)
        return await outcome.wait()

    def statistics(self) -> dict[str, TaskStatistics]:
        """By task, also those whose workers are all lost."""
        sessions, lines = self.book.num_sessions(), self.book.pool.statistics().lines
        found = {}
        for name, task in self.roster.tasks.items():
            entries = [entry for entry in self.roster.entries() if entry.worker.task.name == name]
            found[name] = TaskStatistics(
                workers=Counter(entry.status.value for entry in entries),
                num_draining=sum(entry.is_draining for entry in entries),
                capacity=sum(entry.places.capacity[name] for entry in entries),
                num_taken=sum(entry.places.taken[name] for entry in entries),
                num_sessions=sessions[name],
                num_waiting=lines[name].num_waiting if name in lines else 0,
                num_indices=len(task.indices),
                counts=self.book.counts(name),
            )
        return found

    def _begin(
        self, record: RemoteRecord, failure: str, call: Callable[[], Awaitable[WorkerAnswer]]
    ) -> Outcome[WorkerAnswer]:
        """Have `call` carried out in a task of its own, whoever waits for it."""
        self.book.begin_call(record)
        outcome: Outcome[WorkerAnswer] = Outcome()
        self._nursery.start_soon(self._conduct, record, failure, call, outcome)
        return outcome

    async def _conduct(
        self,
        record: RemoteRecord,
        failure: str,
        call: Callable[[], Awaitable[WorkerAnswer]],
        outcome: Outcome[WorkerAnswer],
    ) -> None:
        async def guarded() -> WorkerAnswer:
            with record.entry.switch.scope():
                try:
                    return await call()
                except WireProblem as problem:
                    raise self.book.failed(record.name, problem) from problem.__cause__
            raise self.book.failed(record.name, WireProblem(500, failure, "worker_lost", record.entry.lost))

        await outcome.record(guarded)
        self.book.end_call(record)

    async def _start(self, record: RemoteRecord) -> WorkerAnswer:
        body = start_body(record.index, record.session_id, record.custom_task)
        try:
            response = await self._asked(record, START_FAILED, "start_sample", body)
        except NotDelivered as error:
            self.roster.suspend(record.entry, str(error))
            self.book.finish(record, "worker_unreachable")
            raise _NoPlace(0.0) from error
        if response.status == _FULL:  # it has sessions that we do not know
            self.book.finish(record, "worker_full")
            await self.roster.sync(record.entry)
            raise _NoPlace(_FULL_PAUSE_S)
        try:
            answer = self._answer(record, response, START_FAILED, WorkerAnswer)
        except WireProblem as problem:
            self.book.finish(record, problem.reason)  # there is none, or one that cannot be used
            if response.status == 200:
                self.book.order_end(record.session_id, record.entry.worker)
            raise
        if answer.is_over:
            self.book.finish(record, answer.status)
        return answer

    async def _turn(self, record: RemoteRecord, body: bytes) -> WorkerAnswer:
        begun = trio.current_time()
        give_up, pause_s = begun + self.config.retry_s, _FIRST_PAUSE_S
        while True:
            try:
                response = await self._asked(record, INTERACT_FAILED, "interact", body)
                break
            except NotDelivered as error:
                self.roster.suspend(record.entry, str(error))
                if trio.current_time() + pause_s > give_up:
                    raise WireProblem(500, INTERACT_FAILED, "worker_unreachable", str(error)) from error
            await trio.sleep(pause_s)
            pause_s *= 2
        answer = self._answer(record, response, INTERACT_FAILED, WorkerTurn).env_out
        if answer.is_over:
            self.book.finish(record, answer.status)
        elif not answer.messages:
            raise WireProblem(500, INTERACT_FAILED, "no_messages", "worker returned no messages")
        self.book.counts(record.name).count_turn(trio.current_time() - begun)
        return answer

    async def _asked(self, record: RemoteRecord, failure: str, endpoint: str, body: bytes) -> HttpResponse:
        """The worker's response in time. Whatever else happens to a call that may have arrived ends the session."""
        try:
            with trio.move_on_after(self.config.interact_s):
                return await record.entry.worker.transport.call(endpoint, body)
        except AnswerLost as error:
            self.book.cancel(record, "answer_lost")
            raise WireProblem(500, failure, "answer_lost", str(error)) from error
        self.book.cancel(record, "env_timeout")
        detail = f"{endpoint} took longer than {self.config.interact_s} s"
        raise WireProblem(500, failure, "env_timeout", detail)

    def _answer(self, record: RemoteRecord, response: HttpResponse, failure: str, kind: type[T]) -> T:
        """What the worker said. Raises WireProblem for anything but a good answer."""
        if response.status == 200:
            try:
                return decoded(response.body, kind)
            except ValueError as error:
                raise WireProblem(500, failure, "bad_answer", str(error)) from error
        try:
            detail = decoded(response.body, WorkerProblem).detail
        except ValueError:
            detail = response.body[:200]
        if response.status == 400 and detail == "No such session":
            self.book.finish(record, "session_lost")
            raise WireProblem(500, failure, "session_lost")
        self._nursery.start_soon(self.roster.sync, record.entry)
        raise WireProblem(500, failure, "worker_error", f"{record.entry.name} answered {response.status}: {detail}")


class _NoPlace(EnvError):
    """A worker had no place after all."""

    def __init__(self, pause_s: float) -> None:
        super().__init__("the worker had no place")
        self.pause_s = pause_s


@asynccontextmanager
async def open_remote_controller(
    config: RemoteConfig | None = None, *, report: Report = lambda line: None
) -> AsyncIterator[RemoteController]:
    """A controller without workers. report: what its log says of failures.

    Sessions that are not over at the end of the block stay on their workers: another controller may go on with them.
    """
    with unwrapped_errors():
        async with trio.open_nursery() as nursery:
            yield RemoteController(config or RemoteConfig(), nursery, report)
            nursery.cancel_scope.cancel()
