"""What the tests of the env worker share: a task class in AgentRL's style, and a worker API over it."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import trio

from agentrl_jax.controller.hosted_sessions import HostConfig
from agentrl_jax.env import SessionKind
from envs.worker.api import WorkerApi
from envs.worker.task_service import open_task_service

TOOL = {"type": "function", "function": {"name": "act", "description": "d", "parameters": {"type": "object"}}}

MINI = f'''
"""A task in the style of AgentRL's, with an index for everything that may go wrong."""
import time
import threading
from agentrl.worker.task import Session, Task
from agentrl.worker.typings import (
    AgentCancelledException, RewardHistoryItem, SampleStatus, TaskOutput, TaskSampleExecutionResult,
)

TOOL = {TOOL!r}
gate = threading.Event()
seen = []


class Mini(Task):
    def __init__(self, name="mini", concurrency=3, **kwargs):
        super().__init__(name, concurrency=concurrency, tools=[TOOL], **kwargs)

    def get_indices(self):
        return [0, 1, 2, 3, 4, 5, 6, "s"]

    def sync_start_sample(self, index, session: Session):
        if index == 1:
            return TaskSampleExecutionResult(status=SampleStatus.UNKNOWN)
        if index == 2:
            raise ValueError("on purpose")
        if index == 3:
            raise SystemExit(0)
        if index == 4:
            raise AgentCancelledException()
        session.inject({{"role": "system", "content": "You act."}})
        session.inject([{{"role": "user", "content": f"Task {{index}}."}}])
        try:
            for turn in range(2):
                output = session.sync_action()
                seen.append(output.messages)
                if index == 5:
                    gate.wait(20)
                if index == 6:
                    session.inject(RewardHistoryItem(reward=float("nan")))
                call = (output.messages[0].get("tool_calls") or [{{"id": "none"}}])[0]
                session.inject({{"content": f"obs{{turn}}", "role": "tool", "tool_call_id": call["id"]}})
        except AgentCancelledException:
            seen.append("cancelled")
            raise
        session.inject(RewardHistoryItem(reward=0.5, score=0.25, metrics={{"m": 1}}))
        return TaskSampleExecutionResult(status=SampleStatus.COMPLETED, result={{"turns": 2}})

    def calculate_overall(self, results):
        return {{"turns": sum(result.result["turns"] for result in results)}}

    def release(self):
        seen.append("released")


class Async(Mini):
    async def start_sample(self, index, session):
        session.set_tools([])
        await session.action({{"role": "user", "content": f"Task {{index}}."}})
        session.inject(RewardHistoryItem(reward=1.0))
        return TaskSampleExecutionResult()

    async def start_sample_custom(self, task, session):
        await session.action({{"role": "user", "content": task["text"]}})
        return TaskSampleExecutionResult(status=SampleStatus.TASK_LIMIT_REACHED)
'''


class Caller:
    """Sends requests to a `WorkerApi` as a controller would."""

    def __init__(self, api: WorkerApi) -> None:
        self.api = api
        self.notices: list[int] = []
        self.notified = trio.Event()

    async def __call__(self, endpoint: str, body: Any = None) -> tuple[int, Any]:
        reply = await self.api.call(endpoint, b"" if body is None else json.dumps(body).encode())
        return reply.status, json.loads(reply.body)

    async def turn(self, session_id: int, *calls: Any, content: Any = None, **extra: Any) -> tuple[int, Any]:
        message = {"role": "assistant", "content": content, "tool_calls": list(calls)}
        return await self("interact", {"session_id": session_id, "messages": [message], **extra})


@asynccontextmanager
async def open_api(service: Any) -> AsyncIterator[Caller]:
    callers: list[Caller] = []

    async def notify(session_id: int) -> None:
        callers[0].notices.append(session_id)
        callers[0].notified.set()

    async with trio.open_nursery() as nursery:
        callers.append(Caller(WorkerApi(service, nursery, notify)))
        yield callers[0]
        await callers[0].api.close_all()
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def open_mini(
    module: str, *, kind: SessionKind = "thread", close_deadline_s: float = 10.0, **parameters: Any
) -> AsyncIterator[Caller]:
    config = HostConfig(close_deadline_s=close_deadline_s)
    async with open_task_service(module, parameters, kind=kind, config=config) as service, open_api(service) as caller:
        yield caller


def call(name: str, arguments: Any, call_id: str | None = "c") -> dict[str, Any]:
    function = {"name": name, "arguments": arguments}
    return {"function": function} if call_id is None else {"id": call_id, "function": function}
