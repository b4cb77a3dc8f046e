"""Conversations in OpenAI's format, one JSON object a line: `{"messages": [...], "tools": [...]}`.

Read into the messages that environments exchange, so that the same renderer makes ids of them. What a template could
only lose or misplace (pictures, answers without a call, two assistant messages in a row) is refused, by line.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from agentrl_jax.env import Message, Role, Tool, ToolCall
from agentrl_jax.errors import AgentRLError, ConfigError
from agentrl_jax.runlog import to_json, write_atomically

_MAX_LISTED = 10

_ROLES: Mapping[str, Role] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
}


class LineError(AgentRLError, ValueError):
    """What is wrong with one conversation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """A finished conversation.

    is_learnt: of each assistant message in order, whether it is imitated. line: of the file it stands in, 0 if in none.
    """

    messages: tuple[Message, ...]
    tools: tuple[Tool, ...] = ()
    is_learnt: tuple[bool, ...]
    line: int = 0


def read_conversations(path: Path) -> list[Conversation]:
    """The conversations of a JSONL file, in order; empty lines are passed over.

    Raises ConfigError naming the lines that are wrong, what was expected there and what came, or that there is none.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        problem = error.strerror if isinstance(error, OSError) else f"no UTF-8 text: {error}"
        raise ConfigError(f"{path} cannot be read: {problem}") from error
    found, wrong = [], []
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            found.append(replace(parse_conversation(_json(line)), line=number))
        except LineError as error:
            wrong.append(f"line {number}: {error}")
    if wrong:
        more = f"; and {len(wrong) - _MAX_LISTED} more lines" if len(wrong) > _MAX_LISTED else ""
        raise ConfigError(f"{path} has wrong lines: {'; '.join(wrong[:_MAX_LISTED])}{more}")
    if not found:
        raise ConfigError(f"{path} has no conversation in it; expected one JSON object a line")
    return found


def parse_conversation(value: Any) -> Conversation:
    """The conversation that a parsed line says.

    Content is text, null, or a list of text parts, which are joined. A call's arguments are JSON text or an object.
    Tool messages that name their calls (`tool_call_id`) are put into the calls' order, as environments answer. An
    assistant message of `weight` 0 is not imitated. `developer` is `system`. Raises LineError for everything else.
    """
    _expect(isinstance(value, dict), 'an object {"messages": [...], "tools": [...]}', value)
    raw = value.get("messages")
    _expect(isinstance(raw, list) and raw, "a list of messages that is not empty", raw)
    tools = value.get("tools") or []
    _expect(isinstance(tools, list), "a list of tools", tools)
    messages: list[Message] = []
    ids: list[str | None] = []  # of the calls that wait for their answers
    answers: list[tuple[str | None, Message]] = []
    is_learnt: list[bool] = []
    for number, item in enumerate(raw, start=1):
        where = f"message {number}"
        _expect(isinstance(item, dict), f"an object as {where}", item)
        role = _ROLES.get(str(item.get("role")))
        _expect(role is not None, f"one of the roles {', '.join(_ROLES)} in {where}", item.get("role"))
        assert role is not None
        if role != "tool":
            messages += _in_call_order(answers, ids, where)
            answers, ids = [], []
        if role == "assistant":
            _expect(bool(messages) and messages[-1].role != "assistant", f"a user or tool message before {where}", role)
            calls, ids = _calls(item, where)
            is_learnt.append(_weight(item, where))
            messages.append(Message(role=role, content=_text(item.get("content"), where), tool_calls=calls))
            continue
        _expect(not item.get("tool_calls"), f"tool_calls in assistant messages only, not in {where}", role)
        message = Message(role=role, content=_text(item.get("content"), where))
        if role == "tool":
            _expect(len(answers) < len(ids), f"a tool call that {where} answers", "none")
            answers.append((item.get("tool_call_id"), message))
        else:
            messages.append(message)
    messages += _in_call_order(answers, ids, "the end") if answers else []
    _expect(bool(is_learnt), "at least one assistant message", "none")
    return Conversation(
        messages=tuple(messages), tools=tuple(_tool(tool) for tool in tools), is_learnt=tuple(is_learnt)
    )


def conversation_json(messages: Sequence[Message], tools: Sequence[Tool]) -> dict[str, Any]:
    """The line that says this conversation: what `parse_conversation` reads."""
    lines: list[dict[str, Any]] = []
    num_calls = 0
    waiting: Iterator[str] = iter(())
    for message in messages:
        line: dict[str, Any] = {"role": message.role, "content": message.content}
        if message.tool_calls:
            ids = [f"call_{num_calls + number}" for number in range(1, len(message.tool_calls) + 1)]
            num_calls, waiting = num_calls + len(ids), iter(ids)
            line["tool_calls"] = [
                {"id": id_, "type": "function", "function": {"name": call.name, "arguments": _dumps(call.arguments)}}
                for id_, call in zip(ids, message.tool_calls, strict=True)
            ]
        elif message.role == "tool":
            line["tool_call_id"] = next(waiting)
        lines.append(line)
    return {"messages": lines, "tools": [tool.to_json() for tool in tools]}


def write_conversations(path: Path, conversations: Iterable[tuple[Sequence[Message], Sequence[Tool]]]) -> None:
    """Write a JSONL file of them, all or nothing."""
    lines = (to_json(conversation_json(messages, tools)) + "\n" for messages, tools in conversations)
    write_atomically(path, "".join(lines))


def _json(line: str) -> Any:
    try:
        return json.loads(line)
    except ValueError as error:
        raise LineError(f"expected JSON, but {error}") from error


def _in_call_order(
    answers: Sequence[tuple[str | None, Message]], ids: Sequence[str | None], where: str
) -> list[Message]:
    _expect(len(answers) == len(ids), f"{len(ids)} tool messages, one a call, before {where}", len(answers))
    named = [id_ for id_, _ in answers]
    if None in named or None in ids:
        return [message for _, message in answers]
    _expect(sorted(map(str, named)) == sorted(map(str, ids)), f"tool messages of the calls {ids} before {where}", named)
    return [dict(answers)[id_] for id_ in ids]


def _calls(item: Mapping[str, Any], where: str) -> tuple[tuple[ToolCall, ...], list[str | None]]:
    _expect(not item.get("function_call"), f"tool_calls instead of function_call in {where}", "function_call")
    raw = item.get("tool_calls") or []
    _expect(isinstance(raw, list), f"a list of tool_calls in {where}", raw)
    calls, ids = [], []
    for call in raw:
        function = call.get("function") if isinstance(call, dict) else None
        _expect(isinstance(function, dict), f"tool_calls with a function in {where}", call)
        assert isinstance(function, dict)
        name: Any = function.get("name")
        arguments: Any = function.get("arguments")
        _expect(isinstance(name, str) and name, f"a function's name in {where}", name)
        if isinstance(arguments, str):
            try:
                arguments = json.loads(arguments or "{}")
            except ValueError as error:
                raise LineError(f"expected JSON as arguments of {name} in {where}, but {error}") from error
        _expect(isinstance(arguments, dict), f"an object as arguments of {name} in {where}", arguments)
        calls.append(ToolCall(name=name, arguments=arguments))
        ids.append(call.get("id"))
    return tuple(calls), ids


def _weight(item: Mapping[str, Any], where: str) -> bool:
    weight = item.get("weight", 1)
    _expect(weight in (0, 1), f"a weight of 0 or 1 in {where}", weight)
    return bool(weight)


def _text(content: Any, where: str) -> str:
    if content is None:
        return ""
    if isinstance(content, list):
        for part in content:
            is_text = isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str)
            _expect(is_text, f"parts of type text in the content of {where}", part)
        return "".join(part["text"] for part in content)
    _expect(isinstance(content, str), f"text as content of {where}", content)
    return str(content)


def _tool(value: Any) -> Tool:
    function = value.get("function") if isinstance(value, dict) else None
    is_function = isinstance(function, dict) and isinstance(function.get("name"), str) and function["name"]
    _expect(is_function, 'tools such as {"type": "function", "function": {"name": …}}', value)
    assert isinstance(function, dict)
    description, parameters = function.get("description") or "", function.get("parameters") or {}
    _expect(isinstance(description, str), f"text as description of the tool {function['name']}", description)
    _expect(isinstance(parameters, dict), f"an object as parameters of the tool {function['name']}", parameters)
    return Tool(name=function["name"], description=description, parameters=parameters)


def _dumps(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _expect(condition: Any, expected: str, got: Any) -> None:
    if not condition:
        text = repr(got)
        raise LineError(f"expected {expected}, got {text if len(text) <= 80 else text[:77] + '...'}")
