"""A worker that behaves as the stock one does, without a network, and a controller that knows it."""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec
import trio

from agentrl_jax.controller.remote_config import RemoteConfig
from agentrl_jax.controller.remote_controller import RemoteController, open_remote_controller
from agentrl_jax.controller.remote_workers import AnswerLost, NotDelivered
from agentrl_jax.controller.wire_types import ChatMessage, SampleIndex, WireProblem
from agentrl_jax.engines.http import HttpResponse

Loss = Literal["none", "request", "answer"]
CONFIG = RemoteConfig()
SAY = [ChatMessage(role="assistant", content="hi")]
NO_SESSION = HttpResponse(400, b'{"detail":"No such session"}')


def ok(value: Any) -> HttpResponse:
    return HttpResponse(200, msgspec.json.encode(value))


@dataclass(eq=False, kw_only=True)
class FakeRemote:
    """Implements `Transport`. A session takes `num_turns` turns of `step_s` and then gives 0.5.

    sessions: index by id. turns: calls that were carried out, by id. loses: what is lost of the n-th call, from 0.
    gives_notice: told of sessions that have ended after cancel_with_notice; until it is set, no notice is given.
    """

    num_places: int = 4
    num_turns: int = 3
    step_s: float = 1.0
    loses: Callable[[str, int], Loss] = lambda endpoint, call: "none"
    gives_notice: Callable[[int], None] | None = None
    sessions: dict[int, SampleIndex] = field(default_factory=dict)
    turns: dict[int, int] = field(default_factory=dict)
    calls: list[str] = field(default_factory=list)
    bodies: list[Any] = field(default_factory=list)
    peak: int = 0
    is_closed: bool = False

    async def call(self, endpoint: str, body: bytes) -> HttpResponse:
        loss = self.loses(endpoint, len(self.calls))
        self.calls.append(endpoint)
        await trio.sleep(0.01)
        if loss == "request":
            raise NotDelivered("refused")
        request = msgspec.json.decode(body) if body else {}
        self.bodies.append(request)
        answer = await getattr(self, endpoint)(**request)
        if loss == "answer":
            raise AnswerLost("broke off")
        assert isinstance(answer, HttpResponse)
        return answer

    async def close(self) -> None:
        await trio.lowlevel.checkpoint()
        self.is_closed = True

    async def get_sessions(self) -> HttpResponse:
        await trio.lowlevel.checkpoint()
        return ok({str(session_id): index for session_id, index in self.sessions.items()})

    async def start_sample(self, index: SampleIndex, session_id: int, custom_task: Any = None) -> HttpResponse:
        if len(self.sessions) >= self.num_places:
            return HttpResponse(406, b'{"detail":"Sample concurrency limit reached"}')
        assert session_id not in self.turns
        self.sessions[session_id], self.turns[session_id] = index, 0
        self.peak = max(self.peak, len(self.sessions))
        await trio.sleep(self.step_s)
        first = {"role": "user", "content": f"index {index}"}
        return ok({"messages": [first], "tools": [], "status": "running", "finish": False, "reward": 0, "metric": {}})

    async def interact(self, session_id: int, messages: list[Any]) -> HttpResponse:
        if session_id not in self.sessions:
            return NO_SESSION
        self.turns[session_id] += 1
        is_over = self.turns[session_id] >= self.num_turns
        await trio.sleep(self.step_s)
        if is_over:
            self.sessions.pop(session_id, None)
        answer = {
            "messages": [{"role": "user", "content": "next"}],
            "tools": None,
            "status": "completed" if is_over else "running",
            "finish": is_over,
            "reward": 0.5 if is_over else 0,
            "metric": {"score": 0.25} if is_over else {},
        }
        return ok({"session_id": session_id, "env_out": answer})

    async def cancel_with_notice(self, session_id: int) -> HttpResponse:
        await trio.lowlevel.checkpoint()
        if session_id not in self.sessions:
            return NO_SESSION
        if self.gives_notice is not None:
            del self.sessions[session_id]
            with suppress(WireProblem):  # the stock worker only logs it
                self.gives_notice(session_id)
        return ok({"session_id": session_id})

    async def cancel(self, session_id: int) -> HttpResponse:
        if session_id not in self.sessions:
            return NO_SESSION
        await trio.sleep(20.0)
        self.sessions.pop(session_id, None)
        return ok({"session_id": session_id})


def beat(
    controller: RemoteController,
    worker: FakeRemote,
    *,
    name: str = "three",
    address: str = "http://w/api",
    indices: Sequence[SampleIndex] = range(10),
) -> None:
    """One heartbeat."""
    controller.roster.heartbeat(
        name,
        address,
        worker.num_places,
        raw=msgspec.json.encode(list(indices)),
        read_indices=lambda: list(indices),
        make_transport=lambda: worker,
    )


async def beat_forever(controller: RemoteController, worker: FakeRemote, **settings: Any) -> None:
    """A heartbeat every 8 s, as stock workers send them."""
    while True:
        beat(controller, worker, **settings)
        await trio.sleep(8.0)


@asynccontextmanager
async def controlling(
    *workers: FakeRemote, config: RemoteConfig = CONFIG, gives_notice: bool = True
) -> AsyncIterator[RemoteController]:
    """A controller with these workers of the task `three`, once they are ALIVE."""
    async with open_remote_controller(config) as controller, trio.open_nursery() as nursery:
        for number, worker in enumerate(workers):
            if gives_notice:
                worker.gives_notice = controller.book.noticed
            address = f"http://w{number}/api"
            nursery.start_soon(lambda worker=worker, address=address: beat_forever(controller, worker, address=address))
        await trio.sleep(0.5)
        yield controller
        nursery.cancel_scope.cancel()


async def play(controller: RemoteController, index: SampleIndex = 0) -> list[str]:
    """A whole session; the statuses of its answers."""
    record, answer = await controller.start("three", index)
    statuses = [answer.status]
    while statuses[-1] == "running":
        statuses.append((await controller.interact(record, SAY)).status)
    return statuses


def num_taken(controller: RemoteController) -> int:
    return sum(entry.places.num_taken for entry in controller.roster.entries())


async def problem_of(call: Callable[[], Awaitable[object]]) -> tuple[int, str, str]:
    """Status, message and reason of the WireProblem that `call` raises."""
    try:
        await call()
    except WireProblem as problem:
        return problem.status, problem.message, problem.reason
    raise AssertionError("expected a WireProblem")
