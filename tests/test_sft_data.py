"""Conversations in OpenAI's format: read as environments exchange messages, or refused by line."""

import json
from pathlib import Path
from random import Random
from typing import Any

import pytest

from agentrl_jax.env import FamilyOptions, Message, Tool, ToolCall
from agentrl_jax.errors import ConfigError
from agentrl_jax.sft_data import (
    LineError,
    conversation_json,
    parse_conversation,
    read_conversations,
    write_conversations,
)
from envs.knowledge_graph import family

TOOL = {"type": "function", "function": {"name": "add", "description": "a + b", "parameters": {"type": "object"}}}
USER = {"role": "user", "content": "1 + 2?"}
ANSWER = {"role": "assistant", "content": "3"}


def call(name: str, arguments: Any, id_: str | None = None) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "arguments": arguments}} | ({"id": id_} if id_ else {})


def calling(*calls: dict[str, Any], content: str | None = None) -> dict[str, Any]:
    return {"role": "assistant", "content": content, "tool_calls": list(calls)}


def answer(content: str, id_: str | None = None) -> dict[str, Any]:
    return {"role": "tool", "content": content} | ({"tool_call_id": id_} if id_ else {})


def test_a_conversation_is_what_its_line_says() -> None:
    line = {
        "messages": [
            {"role": "developer", "content": "be brief"},
            {"role": "user", "content": [{"type": "text", "text": "1 + "}, {"type": "text", "text": "2?"}]},
            calling(call("add", '{"a": 1, "b": 2}', "x")),
            answer("3", "x"),
            {"role": "assistant", "content": "It is 3.", "weight": 0, "refusal": None},
        ],
        "tools": [TOOL],
        "parallel_tool_calls": False,
    }
    found = parse_conversation(line)
    assert found.messages == (
        Message(role="system", content="be brief"),
        Message(role="user", content="1 + 2?"),
        Message(role="assistant", tool_calls=(ToolCall(name="add", arguments={"a": 1, "b": 2}),)),
        Message(role="tool", content="3"),
        Message(role="assistant", content="It is 3."),
    )
    assert found.tools == (Tool(name="add", description="a + b", parameters={"type": "object"}),)
    assert found.is_learnt == (True, False)


def test_answers_are_put_into_the_order_of_their_calls() -> None:
    calls = calling(call("add", {}, "x"), call("add", {}, "y"))
    messages = [USER, calls, answer("of y", "y"), answer("of x", "x"), ANSWER]
    assert [m.content for m in parse_conversation({"messages": messages}).messages[2:4]] == ["of x", "of y"]
    unnamed = [USER, calls, answer("first"), answer("second"), ANSWER]
    assert [m.content for m in parse_conversation({"messages": unnamed}).messages[2:4]] == ["first", "second"]


def test_a_conversation_may_end_with_calls_or_with_their_answers() -> None:
    calls = calling(call("add", "", "x"))
    assert len(parse_conversation({"messages": [USER, calls]}).messages) == 2
    assert len(parse_conversation({"messages": [USER, calls, answer("3", "x")], "tools": None}).messages) == 3


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ([], "expected a list of messages that is not empty, got []"),
        ([USER], "expected at least one assistant message"),
        ([ANSWER], "a user or tool message before message 1"),
        ([USER, ANSWER, ANSWER], "a user or tool message before message 3"),
        ([{"role": "function", "content": ""}], "expected one of the roles system, developer, user, assistant, tool"),
        ([USER, {"role": "assistant", "function_call": {"name": "f"}}], "tool_calls instead of function_call"),
        ([{"role": "user", "content": [{"type": "image_url"}]}, ANSWER], "parts of type text in the content of mess"),
        ([{"role": "user", "content": 3}, ANSWER], "expected text as content of message 1, got 3"),
        ([USER, calling(call("add", "{"))], "expected JSON as arguments of add in message 2, but"),
        ([USER, calling(call("add", "[1]"))], "expected an object as arguments of add in message 2, got [1]"),
        ([USER, calling(call("", {}))], "a function's name in message 2"),
        ([USER, answer("3"), ANSWER], "expected a tool call that message 2 answers"),
        ([USER, calling(call("add", {}, "x")), USER, ANSWER], "expected 1 tool messages, one a call, before message 3"),
        ([USER, calling(call("add", {}, "x")), answer("", "z"), ANSWER], "tool messages of the calls ['x']"),
        ([USER, calling(call("add", {}), call("add", {})), answer("")], "expected 2 tool messages"),
        ([USER | {"tool_calls": [1]}, ANSWER], "tool_calls in assistant messages only"),
        ([USER, ANSWER | {"weight": 0.5}], "expected a weight of 0 or 1 in message 2, got 0.5"),
    ],
)
def test_what_a_template_could_only_misplace_is_refused(messages: list[Any], message: str) -> None:
    with pytest.raises(LineError) as caught:
        parse_conversation({"messages": messages})
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "tools", [3, [{}], [{"function": {"name": ""}}], [{"function": {"name": "f", "parameters": 1}}]]
)
def test_tools_must_be_functions(tools: Any) -> None:
    with pytest.raises(LineError, match="tool"):
        parse_conversation({"messages": [USER, ANSWER], "tools": tools})


def test_wrong_lines_are_named(tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl"
    good = json.dumps({"messages": [USER, ANSWER | {"content": "a\u2028b"}]}, ensure_ascii=False)
    path.write_text(f"{good}\n\n{{\n{good}\n[]\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"data.jsonl has wrong lines: line 3: expected JSON.*; line 5: .*got \[\]$"):
        read_conversations(path)
    path.write_text("\n".join(["{}"] * 12), encoding="utf-8")
    with pytest.raises(ConfigError, match=r"line 10: .*; and 2 more lines$"):
        read_conversations(path)
    path.write_text(f"{good}\r\n{good}", encoding="utf-8")
    assert [(c.line, c.messages[1].content) for c in read_conversations(path)] == [(1, "a\u2028b"), (2, "a\u2028b")]
    for content in (b"\xff", b"\n"):
        path.write_bytes(content)
        with pytest.raises(ConfigError, match=r"cannot be read: (No such file|no UTF-8 text)|has no conversation"):
            read_conversations(path)
    with pytest.raises(ConfigError, match=r"none.jsonl cannot be read"):
        read_conversations(tmp_path / "none.jsonl")


def test_expert_episodes_come_back_from_their_lines(tmp_path: Path) -> None:
    kg = family(FamilyOptions(seed=1))
    played = [(kg.demonstrate(kg.task("train", i), Random(i), noise=0.5), kg.tools) for i in range(20)]
    write_conversations(tmp_path / "c.jsonl", played)
    found = read_conversations(tmp_path / "c.jsonl")
    assert [(c.messages, c.tools) for c in found] == [(tuple(m), tuple(t)) for m, t in played]
    assert max(len(m.tool_calls) for c in found for m in c.messages) >= 1
    assert json.loads(json.dumps(conversation_json(*played[0])))["messages"][0]["role"] in ("system", "user")
