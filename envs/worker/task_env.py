"""A task class of AgentRL as an `Env`, so that it runs wherever envs do: on threads, or in killable processes.

What passes through is not a conversation but envelopes: the content of an action is a request as JSON, the content of
the one message of its answer a reply as JSON.
"""

import asyncio
import importlib
import logging
import threading
import traceback
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from types import ModuleType
from typing import Any

import msgspec

from agentrl_jax.env import Action, Env, Message, StepResult
from agentrl_jax.errors import ConfigError, EnvError
from agentrl_jax.types import Task
from envs.worker.task_api import provide
from envs.worker.task_session import Session
from envs.worker.wire import CANCELLED, TASK_ERROR, Output, dump

_log = logging.getLogger(__name__)


class TaskRunner:
    """Runs the sessions of one task object; their coroutines share an event loop on a thread of its own.

    A task that blocks the loop holds up its other sessions, as it does in AgentRL's own worker; in processes each
    session has a loop of its own.
    """

    def __init__(self, task: Any, types: ModuleType) -> None:
        self.task, self.types = task, types
        self._sessions: dict[int, tuple[Session, Future[None]]] = {}
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None

    def start(self, key: int, session_id: int, index: int | str, custom: Mapping[str, Any] | None) -> Session:
        """Let the task play. key: the caller's choice, unique. session_id: the controller's."""
        loop = self._running_loop()
        session = Session(session_id, self.types, self.task.tools, loop)
        with self._lock:  # it may be over before its place is known
            playing = asyncio.run_coroutine_threadsafe(self._play(key, session, index, custom), loop)
            self._sessions[key] = (session, playing)
        return session

    def cancel(self, key: int) -> threading.Event | None:
        """Let a session end at its next action; one of a task that allows it at once. Returns what its end sets."""
        with self._lock:
            found = self._sessions.get(key)
        if found is None:
            return None
        session, playing = found
        session.cancel()
        if getattr(self.task, "full_async", False):
            playing.cancel()
        return session.ended

    def release(self) -> None:
        """Release the task, and end the loop unless a session still runs on it."""
        self.task.release()
        with self._lock:
            loop, self._loop = self._loop, None
        if loop is not None and not self._sessions:
            loop.call_soon_threadsafe(loop.stop)

    @property
    def num_sessions(self) -> int:
        """Sessions whose task has not ended."""
        return len(self._sessions)

    async def _play(self, key: int, session: Session, index: int | str, custom: Mapping[str, Any] | None) -> None:
        status, result = TASK_ERROR, None
        try:
            started = (
                self.task.start_sample_custom(custom, session)
                if index == -1
                else self.task.start_sample(index, session)
            )
            done = await started
            status, result = getattr(done.status, "value", done.status), done.result
        except (asyncio.CancelledError, self.types.AgentCancelledException):
            status = CANCELLED
        # A SystemExit, or whatever else a task raises, is the end of its session and of nothing else.
        except BaseException:  # noqa: BLE001
            result = traceback.format_exc()
            _log.error("session %s: %s", session.id, result)
        finally:
            with self._lock:
                self._sessions.pop(key, None)
            session.finish(status, result)

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(target=_run_forever, args=(self._loop,), name="tasks", daemon=True).start()
            return self._loop


def _run_forever(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    while True:
        try:
            loop.run_forever()
            loop.close()
            return
        # A background task of a task's may raise SystemExit, which asyncio lets out: the loop must go on.
        except BaseException:  # noqa: BLE001
            _log.exception("a background task ended the event loop, which goes on")


class TaskEnv:
    """One session. Requests: describe, overall, start (once) and turn."""

    def __init__(self, runner: TaskRunner, key: int) -> None:
        self._runner, self._key = runner, key
        self._session: Session | None = None

    def reset(self) -> tuple[Message, ...]:
        return (Message(role="user", content="ready"),)

    def step(self, action: Action) -> StepResult:
        """Carry out a request. Raises EnvError for a summary that fails."""
        request: dict[str, Any] = msgspec.json.decode(action.content)
        return StepResult(messages=(Message(role="user", content=self._answer(request)),))

    def close(self) -> None:
        """Cancel the session, and wait for its end."""
        if self._session is not None:
            self._runner.cancel(self._key)
            self._session.ended.wait()

    def _answer(self, request: dict[str, Any]) -> str:
        task = self._runner.task
        match request["call"]:
            case "describe":
                described = {"concurrency": task.concurrency, "indices": list(task.get_indices()), "name": task.name}
                return dump(described).decode()
            case "overall":
                outputs = [self._runner.types.TaskOutput(**result) for result in request["results"]]
                return dump(task.calculate_overall(outputs)).decode()
            case "start":
                custom = request["custom_task"]
                self._session = self._runner.start(self._key, request["session_id"], request["index"], custom)
            case _:
                if self._session is None:
                    raise EnvError("a turn came before the start")
                self._session.push(request["messages"])
        assert self._session is not None
        return encode_output(self._session.pull())


def encode_output(output: Output) -> str:
    """An output as JSON. One that JSON cannot carry is a task error."""
    try:
        return dump({**output.to_json(), "result": output.result}).decode()
    except (ValueError, TypeError, RecursionError) as error:
        return dump({**Output(status=TASK_ERROR).to_json(), "result": f"an output is no JSON: {error}"}).decode()


def decode_output(text: str) -> Output:
    """The inverse of `encode_output`."""
    value: dict[str, Any] = msgspec.json.decode(text)
    del value["finish"]
    tools = value.pop("tools")
    # Not by conversion to the annotated types: a reward of 0 must stay the integer that the task gave.
    return Output(messages=tuple(value.pop("messages")), tools=None if tools is None else tuple(tools), **value)


def load_task(module: str, parameters: Mapping[str, Any]) -> TaskRunner:
    """Import `package.module.Class` (or `package.module:Class`) and make it. Raises ConfigError if there is none."""
    types = provide(Session)
    path, _, name = module.replace(":", ".").rpartition(".")
    try:
        found = getattr(importlib.import_module(path), name, None) if path else None
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("agentrl.worker"):
            raise ConfigError(f"{module} needs {error.name}: install the package agentrl-worker") from error
        raise ConfigError(f"{module} cannot be imported: {error}") from error
    if not callable(found):
        raise ConfigError(f"expected package.module.Class, but there is no {module}")
    return TaskRunner(found(**parameters), types)


def hosted_task(module: str, parameters: Mapping[str, Any]) -> Callable[[Task], Env]:
    """Envs of a task class, one session each: what `EnvSource` names for sessions in processes."""
    return envs_of(load_task(module, parameters))


def envs_of(runner: TaskRunner) -> Callable[[Task], Env]:
    """Envs that are sessions of one task object; a task's seed tells them apart."""
    return lambda task: TaskEnv(runner, task.seed)
