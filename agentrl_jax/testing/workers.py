"""A worker behind a network that loses requests and answers."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Literal, TypeVar

import trio

from agentrl_jax.controller.hosted_sessions import Worker
from agentrl_jax.env import Action, Message, StepResult
from agentrl_jax.errors import WorkerUnreachable
from agentrl_jax.types import Task

T = TypeVar("T")

Loss = Literal["none", "request", "answer"]


@dataclass(kw_only=True)
class FlakyWorker:
    """Implements `Worker`: `worker`, but what `loses` says of the n-th call, from 0, is lost after `delay_s`."""

    worker: Worker
    loses: Callable[[int], Loss] = lambda call: "none"
    delay_s: float = 0.0
    num_calls: int = 0

    async def start(self, session_id: str, task: Task) -> tuple[Message, ...]:
        return await self._send(lambda: self.worker.start(session_id, task))

    async def interact(self, session_id: str, request_id: int, action: Action) -> StepResult:
        return await self._send(lambda: self.worker.interact(session_id, request_id, action))

    async def close(self, session_id: str) -> None:
        await self._send(lambda: self.worker.close(session_id))

    async def _send(self, call: Callable[[], Awaitable[T]]) -> T:
        loss = self.loses(self.num_calls)
        self.num_calls += 1
        await trio.sleep(self.delay_s)
        if loss == "request":
            raise WorkerUnreachable("the request was lost")
        answer = await call()
        if loss == "answer":
            raise WorkerUnreachable("the answer was lost")
        return answer
