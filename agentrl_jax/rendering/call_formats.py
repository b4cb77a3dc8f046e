"""How model families spell tool calls, each read exactly: Hermes (Qwen2.5, Qwen3), Llama 3.x and GLM-4.

A reader takes the text of an assistant turn and the names of declared tools, and returns what the turn says. It never
raises. A bad call is an error text and does not cost the good ones; text that speaks of no call is content.
"""

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from agentrl_jax.env import Action, ToolCall
from agentrl_jax.rendering.config import ToolCallFormat
from agentrl_jax.rendering.json_calls import Malformed, decode_json, dump_json, numbered, skip_space, to_call

ReadCalls = Callable[[str, Collection[str]], Action]

_OPEN = "<tool_call>"
_CLOSE = "</tool_call>"
_PYTHON_TAG = "<|python_tag|>"
_NAMED = re.compile(r'\{\s*"name"\s*:')
_NEXT = re.compile(r';\s*\{(?=\s*"name"\s*:)')
_ASSISTANT = "<|assistant|>"


@dataclass(slots=True)
class _Found:
    """What has been found of a turn's calls, in order: each is one call or one error text."""

    calls: list[ToolCall] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    def add(self, value: Any, key: str = "arguments") -> None:
        try:
            self.calls.append(to_call(value, key))
        except Malformed as problem:
            self.fail(problem)

    def fail(self, problem: Malformed) -> None:
        self.errors.append(numbered(problem, len(self.calls) + len(self.errors) + 1))

    def action(self, content: str) -> Action:
        return Action(content=content, calls=tuple(self.calls), errors=tuple(self.errors))


def format_tool_call(call: ToolCall) -> str:
    """Return the canonical text of a Hermes call, as Qwen2.5's template writes it.

    >>> format_tool_call(ToolCall(name="go", arguments={"to": "dock 1"}))
    '<tool_call>\\n{"name": "go", "arguments": {"to": "dock 1"}}\\n</tool_call>'
    """
    return f'{_OPEN}\n{{"name": {dump_json(call.name)}, "arguments": {dump_json(call.arguments)}}}\n{_CLOSE}'


def read_hermes(text: str, declared: Collection[str]) -> Action:
    """`<tool_call>` blocks of one JSON object each; other text is content, without the newline before a block.

    >>> read_hermes('Hm.\\n<tool_call>{"name": "go", "arguments": {}}</tool_call>', ())
    Action(content='Hm.', calls=(ToolCall(name='go', arguments={}),), errors=(), num_bare_calls=0)
    """
    content: list[str] = []
    found = _Found()
    position = 0
    while (start := text.find(_OPEN, position)) >= 0:
        content.append(text[position:start].removesuffix("\n"))
        payload = start + len(_OPEN)
        try:
            value, position = _read_block(text, payload)
        except Malformed as problem:
            found.fail(problem)
            position = _resume(text, payload)
        else:
            found.add(value)
    return found.action("".join(content) + text[position:])


def _read_block(text: str, payload: int) -> tuple[Any, int]:
    value, end = decode_json(text, payload)
    end = skip_space(text, end)
    if not text.startswith(_CLOSE, end):
        got = text[end : end + 20].partition("\n")[0]
        raise Malformed(f"expected {_CLOSE} after the JSON object, got {got!r}")
    return value, end + len(_CLOSE)


def _resume(text: str, payload: int) -> int:
    """Where to go on after a bad block: behind its closing tag, or at the next opening tag if that comes first."""
    close = text.find(_CLOSE, payload)
    following = text.find(_OPEN, payload)
    if following >= 0 and (close < 0 or following < close):
        return following
    return close + len(_CLOSE) if close >= 0 else len(text)


def read_llama3(text: str, declared: Collection[str]) -> Action:
    """`{"name": …, "parameters": …}` objects that begin the turn or follow `<|python_tag|>`; "; " may separate them.

    What stands behind the last object is content. Python after the tag is an error text: nothing is evaluated.

    >>> read_llama3('{"name": "go", "parameters": {"to": 1}}', ())
    Action(content='', calls=(ToolCall(name='go', arguments={'to': 1}),), errors=(), num_bare_calls=0)
    """
    before, tag, payload = "", "", text
    if not _NAMED.match(text, skip_space(text, 0)):
        before, tag, payload = text.partition(_PYTHON_TAG)
    if (not tag and before) or _spells_arguments(payload):
        return Action(content=text)
    found = _Found()
    position = skip_space(payload, 0)
    while payload.startswith("{", position) or (tag and not found.calls and not found.errors):
        try:
            value, end = decode_json(payload, position)
        except Malformed as problem:
            found.fail(problem)
            following = _NEXT.search(payload, position)
            position = len(payload) if following is None else following.end() - 1
        else:
            found.add(value, "parameters")
            separated = _behind_separator(payload, end)
            position = separated if payload.startswith("{", separated) else end
    return found.action(before + payload[position:])


def _spells_arguments(text: str) -> bool:
    try:
        value, _ = decode_json(text, 0)
    except Malformed:
        return False
    return isinstance(value, dict) and "arguments" in value and "parameters" not in value


def _behind_separator(text: str, position: int) -> int:
    position = skip_space(text, position)
    return skip_space(text, position + 1) if text.startswith(";", position) else position


def read_glm4(text: str, declared: Collection[str]) -> Action:
    """Pieces between `<|assistant|>` headers: a name, a newline and its arguments as JSON; or a newline and content.

    >>> read_glm4('\\nHm.<|assistant|>go\\n{"to": 1}', ())
    Action(content='Hm.', calls=(ToolCall(name='go', arguments={'to': 1}),), errors=(), num_bare_calls=0)
    """
    content: list[str] = []
    found = _Found()
    position = 0
    while position <= len(text):
        end = text.find(_ASSISTANT, position)
        end = len(text) if end < 0 else end
        name, newline, payload = text[position:end].partition("\n")
        if name.strip() in declared or (len(name.split()) == 1 and payload.lstrip(" \t\r\n").startswith("{")):
            try:
                arguments, end = _read_arguments(text, position + len(name) + len(newline), name.strip())
            except Malformed as problem:
                found.fail(problem)
            else:
                found.add({"name": name.strip(), "arguments": arguments})
        else:
            content.append(name + newline + payload if name else payload)
        position = end + len(_ASSISTANT)
    return found.action("".join(content))


def _read_arguments(text: str, payload: int, name: str) -> tuple[Any, int]:
    arguments, end = decode_json(text, payload)
    end = skip_space(text, end)
    if end < len(text) and not text.startswith(_ASSISTANT, end):
        got = text[end : end + 20].partition("\n")[0]
        raise Malformed(f"expected nothing after the JSON object of {name}, got {got!r}")
    return arguments, end


READERS: Mapping[ToolCallFormat, ReadCalls] = {"hermes": read_hermes, "llama3": read_llama3, "glm4": read_glm4}
