"""Messages, calls and ends between an episode here and a task on a remote worker."""

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from agentrl_jax.controller.call_budget import NOT_EXECUTED
from agentrl_jax.controller.wire_types import RUNNING, ChatMessage, WorkerAnswer
from agentrl_jax.env import Action, Message, Role, StepResult, Tool, ToolCall
from agentrl_jax.errors import EnvError
from agentrl_jax.types import EpisodeEnd

_ROLES: Mapping[str, Role] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
}
_ENDS: Mapping[str, EpisodeEnd | None] = {
    RUNNING: None,
    "completed": EpisodeEnd.COMPLETED,
    "agent context limit": EpisodeEnd.CONTEXT_LIMIT,
    "agent validation failed": EpisodeEnd.VALIDATION_FAILED,
    "agent invalid action": EpisodeEnd.INVALID_ACTION,
    "task limit reached": EpisodeEnd.MAX_TURNS,
}
"""The ends that the policy caused; for any other status (task error, cancelled, unknown) it is not to blame."""


class _Function(msgspec.Struct):
    name: str
    arguments: str = "{}"


class _Call(msgspec.Struct):
    function: _Function


class _Part(msgspec.Struct):
    type: str
    text: str = ""


class _Described(msgspec.Struct):
    """A function as OpenAI's `tools` describe it, or as Anthropic's."""

    name: str
    description: str = ""
    parameters: dict[str, Any] | None = None
    input_schema: dict[str, Any] | None = None


def tools_of(answer: WorkerAnswer) -> tuple[Tool, ...]:
    """The tools that a start offers. Raises EnvError if they are none."""
    try:
        offered = msgspec.json.decode(answer.tools, type=list[dict[str, Any]] | None) or []
        found = []
        for item in offered:
            described = msgspec.convert(item.get("function", item), _Described)
            parameters = described.parameters or described.input_schema or {"type": "object", "properties": {}}
            found.append(Tool(name=described.name, description=described.description, parameters=parameters))
    except msgspec.DecodeError as error:
        raise EnvError(f"expected tools, got {bytes(answer.tools)[:200]!r}: {error}") from error
    return tuple(found)


def first_messages(answer: WorkerAnswer) -> tuple[Message, ...]:
    """What an episode begins with. Raises EnvError if the task ended at once, or said nothing that can be rendered."""
    if answer.is_over or not answer.messages:
        raise EnvError(f"the task began with status {answer.status!r} and {len(answer.messages)} messages")
    return tuple(_message(message) for message in answer.messages)


def assistant_turn(action: Action, turn: int) -> tuple[list[ChatMessage], list[str]]:
    """What the task is told of an assistant turn, and the ids of its calls, in their order."""
    ids = [f"call_{turn}_{number}" for number in range(len(action.calls))]
    calls = [
        msgspec.Raw(msgspec.json.encode({"id": call_id, "type": "function", "function": _function(call)}))
        for call_id, call in zip(ids, action.calls, strict=True)
    ]
    return [ChatMessage(role="assistant", content=action.content, tool_calls=calls)], ids


def step_result(answer: WorkerAnswer, call_ids: Sequence[str]) -> StepResult:
    """The task's answer to a turn with these calls: one tool message for each, then what else it says.

    Calls that it does not answer get the notice. Raises EnvError for an end that the policy did not cause, and for
    a history that is written anew.
    """
    if answer.status not in _ENDS:
        raise EnvError(f"the task ended with status {answer.status!r}")
    by_id: dict[str, Message] = {}
    others: list[Message] = []
    strays: list[Message] = []
    for sent in answer.messages:
        message = _message(sent)
        if message.role in ("system", "assistant"):
            raise EnvError(
                f"the task rewrites its history: it sent a message of role {message.role!r} within an episode"
            )
        call_id = sent.tool_call_id
        if message.role != "tool":
            others.append(message)
        elif isinstance(call_id, str) and call_id in call_ids and call_id not in by_id:
            by_id[call_id] = message
        else:
            strays.append(message)
    answers = [by_id.get(call_id) or (strays.pop(0) if strays else None) for call_id in call_ids]
    notice = Message(role="tool", content=NOT_EXECUTED)
    spoken = [Message(role="user", content=message.content) for message in strays]
    messages = (*[message or notice for message in answers], *spoken, *others)
    return StepResult(messages=messages, reward=answer.reward, end=_ENDS[answer.status], metrics=_figures(answer))


def _figures(answer: WorkerAnswer) -> dict[str, float]:
    """What of its metrics is a number (a boolean is 0 or 1); tasks may say anything there."""
    try:
        said = msgspec.json.decode(answer.metric, type=dict[str, Any] | None) or {}
    except msgspec.DecodeError:
        return {}
    figures = {name: value for name, value in said.items() if isinstance(value, int | float)}
    return {name: float(value) for name, value in figures.items() if abs(value) <= sys.float_info.max}


def _function(call: ToolCall) -> dict[str, str]:
    return {"name": call.name, "arguments": msgspec.json.encode(call.arguments).decode()}


def _message(sent: ChatMessage) -> Message:
    role = _ROLES.get(sent.role)
    if role is None:
        raise EnvError(f"the task sent a message of role {sent.role!r}")
    calls = sent.tool_calls if isinstance(sent.tool_calls, list) and role == "assistant" else []
    try:
        return Message(role=role, content=_text(sent), tool_calls=tuple(_call(call) for call in calls))
    except msgspec.DecodeError as error:
        raise EnvError(f"the task sent a message that cannot be read: {error}") from error


def _text(sent: ChatMessage) -> str:
    if isinstance(sent.content, list):
        parts = [msgspec.json.decode(part, type=_Part) for part in sent.content]
        strangers = sorted({part.type for part in parts} - {"text"})
        if strangers:
            raise EnvError(f"the task sent {', '.join(strangers)}: only text can be rendered")
        return "".join(part.text for part in parts)
    return sent.content or ""


def _call(raw: bytes) -> ToolCall:
    function = msgspec.json.decode(raw, type=_Call).function
    return ToolCall(name=function.name, arguments=msgspec.json.decode(function.arguments, type=dict[str, Any]))
