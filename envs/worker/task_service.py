"""Serves a task class of AgentRL, unchanged."""

import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import count
from typing import Any
from uuid import uuid4

import msgspec
import trio

from agentrl_jax.controller.hosted_sessions import HostConfig, SessionHost, open_session_host
from agentrl_jax.controller.process_sessions import open_process_sessions
from agentrl_jax.controller.sessions import thread_sessions
from agentrl_jax.env import Action, EnvSource, SessionKind
from agentrl_jax.errors import ConfigError, EnvError, SessionExpired, UnknownSession
from agentrl_jax.types import Task
from envs.worker.service import CUSTOM_INDEX, Index, ServedSession
from envs.worker.task_env import TaskRunner, decode_output, envs_of, hosted_task, load_task
from envs.worker.wire import TASK_ERROR, NoSuchSession, Output, check_assistant, dump

_log = logging.getLogger(__name__)

_ENV = "task"
"""What the host of sessions calls the one task."""

_MAX_THREADS = 1000
"""Of all sessions together, with those of calls that were given up and still run."""


class TaskService:
    """Implements `Service` for one task object, or for one per session process."""

    def __init__(
        self,
        host: SessionHost,
        *,
        name: str,
        concurrency: int,
        indices: Sequence[Index],
        runner: TaskRunner | None,
        close_s: float,
    ) -> None:
        self.name, self.concurrency, self.indices = name, concurrency, indices
        self.runner = runner
        self._host, self._close_s = host, close_s
        self._numbers = count(1)

    @property
    def num_left(self) -> int:
        """Sessions whose task runs on in this process, though nobody waits for it."""
        return 0 if self.runner is None else self.runner.num_sessions

    def open(self, session_id: int, index: Index, custom_task: Any) -> ServedSession:
        """See `Service`. Whether there is such an index is the task's business."""
        return _TaskSession(self, session_id, index, custom_task if index == CUSTOM_INDEX else None)

    async def overall(self, results: Sequence[Mapping[str, Any]]) -> Any:
        """The task's own summary."""
        return msgspec.json.decode(await _ask_once(self._host, {"call": "overall", "results": results}))


class _TaskSession:
    def __init__(self, service: TaskService, session_id: int, index: Index, custom: Any) -> None:
        self._service, self._number = service, next(service._numbers)
        self._key = f"{session_id}-{self._number}"
        self._request = {"call": "start", "session_id": session_id, "index": index, "custom_task": custom}
        self._num_requests = 0

    async def start(self) -> Output:
        task = Task(env=_ENV, split="eval", index=0, seed=self._number)
        try:
            await self._service._host.start(self._key, task)
            return await self._ask(self._request)
        except EnvError as error:
            return _failed(self._key, error)

    async def interact(self, messages: object) -> Output:
        turn = check_assistant(messages)
        try:
            return await self._ask({"call": "turn", "messages": turn})
        except (SessionExpired, UnknownSession) as error:
            raise NoSuchSession(str(error)) from error
        except EnvError as error:
            return _failed(self._key, error)

    async def close(self) -> None:
        """Tell the task, and give it some time to end; then its place is free, and its thread is left to itself."""
        runner = self._service.runner
        ended = None if runner is None else runner.cancel(self._number)
        if ended is not None:
            own = trio.CapacityLimiter(1)
            await trio.to_thread.run_sync(ended.wait, self._service._close_s, limiter=own, abandon_on_cancel=True)
        try:
            await self._service._host.close(self._key)
        except EnvError as error:
            _log.warning("session %s: %s", self._key, error)

    async def _ask(self, request: Mapping[str, Any]) -> Output:
        self._num_requests += 1
        action = Action(content=dump(request).decode())
        result = await self._service._host.interact(self._key, self._num_requests, action)
        return decode_output(result.messages[0].content)


def _failed(key: str, error: EnvError) -> Output:
    _log.error("session %s: %s", key, error)
    return Output(status=TASK_ERROR, result=str(error))


async def _ask_once(host: SessionHost, request: Mapping[str, Any]) -> str:
    """The answer to a request that belongs to no session. Raises EnvError."""
    key = str(uuid4())
    await host.start(key, Task(env=_ENV, split="eval", index=0, seed=0))
    try:
        result = await host.interact(key, 1, Action(content=dump(request).decode()))
        return result.messages[0].content
    finally:
        await host.close(key)


@asynccontextmanager
async def open_task_service(
    module: str, parameters: Mapping[str, Any], *, kind: SessionKind, config: HostConfig
) -> AsyncIterator[TaskService]:
    """The task class `module`, made with `parameters`. Raises ConfigError if it cannot be made or described."""
    runner: TaskRunner | None = None
    async with AsyncExitStack() as stack:
        if kind == "process":
            arguments = {"module": module, "parameters": dict(parameters)}
            source = EnvSource(target=f"{hosted_task.__module__}:{hosted_task.__name__}", arguments=arguments)
            sessions = await stack.enter_async_context(open_process_sessions(source))
        else:
            runner = load_task(module, parameters)
            stack.callback(runner.release)
            sessions = thread_sessions(envs_of(runner), trio.CapacityLimiter(_MAX_THREADS))
        host = await stack.enter_async_context(open_session_host({_ENV: sessions}, config))
        try:
            described: dict[str, Any] = msgspec.json.decode(await _ask_once(host, {"call": "describe"}))
        except EnvError as error:
            raise ConfigError(f"{module} does not say what it serves: {error}") from error
        yield TaskService(host, runner=runner, close_s=config.close_deadline_s, **described)
