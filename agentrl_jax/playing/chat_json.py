"""Conversations as OpenAI's chat interface writes and answers them. Pure functions."""

import json
from collections.abc import Sequence
from typing import Any

import msgspec

from agentrl_jax.env import Action, Message, ToolCall
from agentrl_jax.rendering.json_calls import Malformed, dump_json, numbered, to_call


class AnsweredFunction(msgspec.Struct, kw_only=True):
    name: str | None = None
    arguments: str | dict[str, Any] | None = None


class AnsweredCall(msgspec.Struct, kw_only=True):
    function: AnsweredFunction


class AnsweredMessage(msgspec.Struct, kw_only=True):
    content: str | None = None
    tool_calls: list[AnsweredCall] | None = None


class AnsweredChoice(msgspec.Struct, kw_only=True):
    message: AnsweredMessage
    finish_reason: str | None = None


class Usage(msgspec.Struct, kw_only=True):
    prompt_tokens: int = 0
    completion_tokens: int = 0


class ChatAnswer(msgspec.Struct, kw_only=True):
    """The part of a chat completion that is read."""

    choices: list[AnsweredChoice]
    usage: Usage | None = None


def chat_messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """The conversation, with an id for each call, and each answer named after its call: they stand in one order.

    An answer to a call that could not be read, and therefore stands as text, is shown as the user's: no endpoint takes
    a tool message without its call.
    """
    written: list[dict[str, Any]] = []
    open_ids: list[str] = []
    num_calls = 0
    for message in messages:
        shown: dict[str, Any] = {"role": message.role, "content": message.content}
        if message.role == "assistant":
            open_ids = [f"call_{num_calls + number}" for number in range(len(message.tool_calls))]
            num_calls += len(open_ids)
            if open_ids:
                calls = zip(open_ids, message.tool_calls, strict=True)
                shown["tool_calls"] = [_call(id_, call) for id_, call in calls]
                shown["content"] = message.content or None
        elif message.role == "tool":
            shown |= {"tool_call_id": open_ids.pop(0)} if open_ids else {"role": "user"}
        written.append(shown)
    return written


def _call(id_: str, call: ToolCall) -> dict[str, Any]:
    function = {"name": call.name, "arguments": json.dumps(dict(call.arguments), ensure_ascii=False)}
    return {"id": id_, "type": "function", "function": function}


def read_answer(answered: AnsweredMessage) -> tuple[Action, Message]:
    """What the env sees, and what later prompts show. A call that cannot be read is an error text, as everywhere."""
    calls: list[ToolCall] = []
    errors: list[str] = []
    unread: list[str] = []
    for number, asked in enumerate(answered.tool_calls or (), 1):
        written = {"name": asked.function.name, "arguments": asked.function.arguments or "{}"}
        try:
            calls.append(to_call(written))
        except Malformed as error:
            errors.append(numbered(error, number))
            unread.append(dump_json(written))
    content = answered.content or ""
    # Sent back as a call it would be refused; as text the policy sees what the errors speak of.
    shown = "\n".join(filter(None, [content, *unread]))
    action = Action(content=content, calls=tuple(calls), errors=tuple(errors))
    return action, Message(role="assistant", content=shown, tool_calls=tuple(calls))
