"""The names that AgentRL's task classes import from `agentrl.worker`, for machines without that package.

Where the package is installed, tasks get its own classes, and only their host is ours. The package's environment
framework (`agentrl.worker.environment`) is not provided: tasks that use it need the package.
"""

import asyncio
import importlib.util
import sys
import threading
from dataclasses import dataclass, field
from enum import StrEnum
from types import ModuleType
from typing import Any

SampleIndex = int | str


class SampleStatus(StrEnum):
    """How a session stands; all but RUNNING are final."""

    RUNNING = "running"
    COMPLETED = "completed"
    AGENT_CONTEXT_LIMIT = "agent context limit"
    AGENT_VALIDATION_FAILED = "agent validation failed"
    AGENT_INVALID_ACTION = "agent invalid action"
    TASK_LIMIT_REACHED = "task limit reached"
    UNKNOWN = "unknown"
    TASK_ERROR = "task error"
    CANCELLED = "cancelled"


class AgentOutputStatus(StrEnum):
    """Whether the agent answered."""

    NORMAL = "normal"
    CANCELLED = "cancelled"


@dataclass(kw_only=True)
class RewardHistoryItem:
    """A reward beside the messages of a history. A score is one of its metrics."""

    reward: float
    score: float | None = None
    metrics: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.score is not None:
            self.metrics = {"score": self.score, **self.metrics}


@dataclass(kw_only=True)
class TaskOutput:
    """A finished session, as `Task.calculate_overall` gets it."""

    index: SampleIndex | None = None
    status: SampleStatus = SampleStatus.RUNNING
    result: Any = None
    history: list[Any] = field(default_factory=list)
    history_ptr: int = 0


@dataclass(kw_only=True)
class TaskSampleExecutionResult:
    """What a task returns for a session."""

    status: SampleStatus = SampleStatus.COMPLETED
    result: Any = None


@dataclass(kw_only=True)
class AgentOutput:
    """What `Session.action` returns: the assistant messages of a turn."""

    status: AgentOutputStatus = AgentOutputStatus.NORMAL
    messages: list[dict[str, Any]] | None = None


class AgentCancelledException(BaseException):
    """Raised by `Session.action` in a session that was cancelled. No Exception: tasks must not handle it as one."""

    def __init__(self, detail: str | None = None) -> None:
        super().__init__("agent_cancelled", detail)


class Task:
    """Base of task classes. name, concurrency: what the worker registers. tools: in OpenAI's form.

    full_async: a session may be cancelled by cancelling its coroutine.
    """

    def __init__(
        self, name: str, concurrency: int = 16, tools: list[Any] | None = None, full_async: bool = False, **_: Any
    ) -> None:
        self.name, self.concurrency, self.tools, self.full_async = name, concurrency, tools, full_async

    def get_indices(self) -> list[SampleIndex]:
        """The indices of the task's samples."""
        raise NotImplementedError

    def sync_start_sample(self, index: SampleIndex, session: Any) -> Any:
        """Play a whole session on a thread of its own; return a TaskSampleExecutionResult."""
        raise NotImplementedError

    async def start_sample(self, index: SampleIndex, session: Any) -> Any:
        """The same as a coroutine; by default `sync_start_sample` on a thread."""
        if self.full_async:
            raise NotImplementedError("a full_async task must implement start_sample")
        loop = asyncio.get_running_loop()
        session.loop = loop
        outcome: asyncio.Future[tuple[Any, BaseException | None]] = loop.create_future()

        def run() -> None:
            result, problem = None, None
            try:
                result = self.sync_start_sample(index, session)
            # The thread is this session's alone: whatever ends it ends the session.
            except BaseException as error:  # noqa: BLE001
                problem = error
            loop.call_soon_threadsafe(_settle, outcome, (result, problem))

        # A daemon: a task that hangs must not keep the worker from ending.
        threading.Thread(target=run, name=f"session {session.id}", daemon=True).start()
        result, problem = await outcome
        if problem is not None:
            raise problem
        return result

    async def start_sample_custom(self, task: dict[str, Any], session: Any) -> Any:
        """Play a task that the caller describes, for those with -1 among their indices."""
        raise NotImplementedError

    def calculate_overall(self, results: list[Any]) -> Any:
        """A summary of TaskOutputs."""
        raise NotImplementedError

    def release(self) -> None:
        """Called when the worker ends."""


def _settle(outcome: "asyncio.Future[Any]", value: Any) -> None:
    if not outcome.cancelled():
        outcome.set_result(value)


_TYPINGS = (
    *("AgentCancelledException", "AgentOutput", "AgentOutputStatus", "RewardHistoryItem", "SampleIndex"),
    *("SampleStatus", "TaskOutput", "TaskSampleExecutionResult"),
)


def provide(session: type) -> ModuleType:
    """Make `agentrl.worker.task` and `agentrl.worker.typings` importable; return the latter.

    session: what `agentrl.worker.task.Session` is, unless the package is installed.
    """
    if not _is_installed():
        modules = {
            "agentrl.worker": {},
            "agentrl.worker.typings": {name: globals()[name] for name in _TYPINGS},
            "agentrl.worker.task": {"Task": Task, "Session": session},
        }
        if "agentrl" not in sys.modules and importlib.util.find_spec("agentrl") is None:
            modules = {"agentrl": {}, **modules}
        for name, contents in modules.items():
            module = ModuleType(name, "Provided by agentrl_jax.")
            module.__dict__.update(contents)
            module.__path__ = []
            sys.modules[name] = module
            parent, _, child = name.rpartition(".")
            if parent:
                setattr(importlib.import_module(parent), child, module)
    return importlib.import_module("agentrl.worker.typings")


def _is_installed() -> bool:
    if "agentrl.worker" in sys.modules:
        return True
    return importlib.util.find_spec("agentrl") is not None and importlib.util.find_spec("agentrl.worker") is not None
