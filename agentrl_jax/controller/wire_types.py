"""The JSON of AgentRL's two HTTP APIs, the controller's and the worker's, and its errors.

Values that the controller only passes on (tools, metrics, message parts, tool calls, custom tasks) stay the bytes that
they came as: they are neither read nor written anew.
"""

import re
from typing import Any, TypeAlias, TypeVar

import msgspec
from msgspec import UNSET, Raw, UnsetType

from agentrl_jax.errors import EnvError

T = TypeVar("T")

SampleIndex: TypeAlias = int | str

RUNNING = "running"
"""The status of a session that goes on; with any other it is over."""

NO_INDEX = -1
"""The index of a custom task."""

NULL = Raw(b"null")


class WireProblem(EnvError):
    """Why a request is refused, or a session has failed: an HTTP status, a sentence, and a word that programs can read.

    The sentence is the original's; `detail`, which it would only log, is for the log here too.
    """

    def __init__(self, status: int, message: str, reason: str = "", detail: str = "") -> None:
        super().__init__("; ".join(filter(None, [message, reason, detail])))
        self.status, self.message, self.reason, self.detail = status, message, reason, detail

    def body(self) -> dict[str, Any]:
        """What the client is told."""
        return {"message": self.message, "reason": self.reason} if self.reason else {"message": self.message}


class ChatMessage(msgspec.Struct):
    """What of a message gets through the controller; `content` always, the others where there is something."""

    role: str
    content: str | list[Raw] | None = None
    tool_calls: list[Raw] | UnsetType | None = UNSET
    name: str | UnsetType | None = UNSET
    tool_call_id: str | UnsetType | None = UNSET

    def __post_init__(self) -> None:
        self.tool_calls = self.tool_calls or UNSET
        self.name = self.name or UNSET
        self.tool_call_id = self.tool_call_id or UNSET


class StartRequest(msgspec.Struct):
    name: str
    index: SampleIndex
    custom_task: Raw = NULL


class InteractRequest(msgspec.Struct):
    messages: list[ChatMessage] | None = None


class HeartbeatRequest(msgspec.Struct):
    """indices: a JSON list; kept as it came, because it is the same thousands of numbers every time."""

    name: str
    address: str
    concurrency: int
    indices: Raw


class MarkStaleRequest(msgspec.Struct):
    name: str
    worker_id: int
    stale: bool


class WorkerAnswer(msgspec.Struct):
    """What a worker says to a start or a turn. reward: the last one given since its previous answer."""

    status: str
    messages: list[ChatMessage] = []
    tools: Raw = NULL
    reward: float = 0.0
    metric: Raw = Raw(b"{}")

    @property
    def is_over(self) -> bool:
        return self.status != RUNNING

    def as_started(self, session_id: int) -> dict[str, Any]:
        """The controller's answer to a start; the original stops after `tools`."""
        return {"messages": self.messages, "tools": self.tools, "session_id": session_id, **self._outcome()}

    def as_turn(self) -> dict[str, Any]:
        """The controller's answer to a turn."""
        outcome = self._outcome()
        metrics = outcome.pop("metrics")
        return {**outcome, "messages": self.messages, "metrics": metrics}

    def _outcome(self) -> dict[str, Any]:
        return {"finish": self.is_over, "reward": self.reward, "status": self.status, "metrics": self.metric}


class WorkerTurn(msgspec.Struct):
    env_out: WorkerAnswer


class WorkerProblem(msgspec.Struct):
    detail: Any = None


_ESCAPES = re.compile(rb"(\\u[dD][89abAB]..\\u[dD][c-fC-F]..)|(\\u[dD][89a-fA-F][0-9a-fA-F]{2})|(\\.)", re.DOTALL)


def decoded(body: bytes, kind: type[T]) -> T:
    """Halves of surrogate pairs, which Python's writers let through, are read as U+FFFD: Go's reader does so too.

    Raises ValueError if `body` is not JSON of `kind`.
    """
    try:
        return _decoded(body, kind)
    except ValueError:
        whole = _ESCAPES.sub(lambda found: rb"\ufffd" if found[2] else found[0], body)
        if whole == body:
            raise
        return _decoded(whole, kind)


def _decoded(body: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ValueError(str(error)) from error
    except RecursionError as error:
        raise ValueError("JSON that is nested too deeply") from error


def read_request(body: bytes, kind: type[T]) -> T:
    """What a client sent. Raises WireProblem if it is not JSON of `kind`."""
    try:
        return decoded(body, kind)
    except ValueError as error:
        raise WireProblem(400, "invalid request", "invalid_request", str(error)) from error


def start_body(index: SampleIndex, session_id: int, custom_task: bytes | None) -> bytes:
    """A worker's start_sample."""
    request: dict[str, Any] = {"index": index, "session_id": session_id}
    if custom_task is not None:
        request["custom_task"] = Raw(custom_task)
    return msgspec.json.encode(request)


def interact_body(session_id: int, messages: list[ChatMessage]) -> bytes:
    """A worker's interact."""
    return msgspec.json.encode({"session_id": session_id, "messages": messages})


def session_body(session_id: int) -> bytes:
    """A worker's cancel and cancel_with_notice."""
    return msgspec.json.encode({"session_id": session_id})
