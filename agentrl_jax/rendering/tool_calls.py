"""Hermes tool calls: `<tool_call>` blocks of JSON in assistant text, written and read exactly.

Parsing never raises and never guesses: a block is one valid call or one error text for the policy. The JSON itself
is scanned, so a string argument may contain quotes, braces or `</tool_call>`.
"""

import json
import math
import re
from collections.abc import Collection, Iterator
from typing import Any, Literal, NoReturn

from agentrl_jax.env import Action, ToolCall

ToolCallPolicy = Literal["strict", "lenient"]

_OPEN = "<tool_call>"
_CLOSE = "</tool_call>"
_FENCE_OPEN = re.compile(r"^```[\w-]*[ \t]*\n", re.MULTILINE)
_FENCE_CLOSE = re.compile(r"^```[ \t]*$", re.MULTILINE)
_MAX_NESTING = 64


class _Malformed(ValueError):
    """Why a block is no call, in words for the policy."""


def format_tool_call(call: ToolCall) -> str:
    """Return the canonical text of a call, as Qwen2.5's template writes it.

    >>> format_tool_call(ToolCall(name="go", arguments={"to": "dock 1"}))
    '<tool_call>\\n{"name": "go", "arguments": {"to": "dock 1"}}\\n</tool_call>'
    """
    name = json.dumps(call.name, ensure_ascii=False)
    arguments = json.dumps(dict(call.arguments), ensure_ascii=False)
    return f'{_OPEN}\n{{"name": {name}, "arguments": {arguments}}}\n{_CLOSE}'


def parse_tool_calls(text: str, *, tool_calls: ToolCallPolicy, declared: Collection[str]) -> Action:
    """Return the action that an assistant's `text` (stop token removed) spells. Never raises.

    Every block gives one call or one error, in order; a bad block does not cost the good ones. Names need not be
    declared: the env answers unknown ones. The content is the text outside blocks, without the newline that the
    template writes before each block.
    lenient: in a text without tags, JSON that names a tool of `declared` and is fenced, or is all there is, counts
    as a call too (`Action.num_bare_calls`). strict: such text is content.
    """
    if _OPEN in text:
        return _parse_tagged(text)
    if tool_calls == "lenient":
        return _parse_fenced(text, declared) or _parse_bare(text, declared) or Action(content=text)
    return Action(content=text)


def _parse_tagged(text: str) -> Action:
    content: list[str] = []
    calls: list[ToolCall] = []
    errors: list[str] = []
    position = 0
    while (start := text.find(_OPEN, position)) >= 0:
        content.append(text[position:start].removesuffix("\n"))
        payload = start + len(_OPEN)
        try:
            call, position = _parse_block(text, payload)
            calls.append(call)
        except _Malformed as problem:
            errors.append(f"tool call {len(calls) + len(errors) + 1}: {problem}")
            position = _resume(text, payload)
    content.append(text[position:])
    return Action(content="".join(content), calls=tuple(calls), errors=tuple(errors))


def _parse_block(text: str, payload: int) -> tuple[ToolCall, int]:
    value, end = _decode_json(text, payload)
    end = _skip_space(text, end)
    if not text.startswith(_CLOSE, end):
        found = text[end : end + 20].partition("\n")[0]
        raise _Malformed(f"expected {_CLOSE} after the JSON object, got {found!r}")
    return _to_call(value), end + len(_CLOSE)


def _resume(text: str, payload: int) -> int:
    """Where to go on after a bad block: behind its closing tag, or at the next opening tag if that comes first."""
    close = text.find(_CLOSE, payload)
    following = text.find(_OPEN, payload)
    if following >= 0 and (close < 0 or following < close):
        return following
    return close + len(_CLOSE) if close >= 0 else len(text)


def _parse_fenced(text: str, declared: Collection[str]) -> Action | None:
    found: list[ToolCall | str] = []
    content: list[str] = []
    position = 0
    for start, end, inside in _fences(text):
        calls = _declared_calls(inside, declared)
        if calls:
            found += calls
            content.append(text[position:start].removesuffix("\n"))
            position = end
    return _bare_action("".join(content) + text[position:], found) if found else None


def _fences(text: str) -> Iterator[tuple[int, int, str]]:
    """Start, end and inside of each fenced block; one pass, for a policy that opens thousands and closes none."""
    end = 0
    while (opening := _FENCE_OPEN.search(text, end)) and (closing := _FENCE_CLOSE.search(text, opening.end())):
        end = closing.end()
        yield opening.start(), end, text[opening.end() : closing.start()].removesuffix("\n")


def _parse_bare(text: str, declared: Collection[str]) -> Action | None:
    found = _declared_calls(text, declared)
    return _bare_action("", found) if found else None


def _bare_action(content: str, found: list[ToolCall | str]) -> Action:
    calls = tuple(item for item in found if isinstance(item, ToolCall))
    errors = tuple(
        f"tool call {number}: {item}" for number, item in enumerate(found, 1) if not isinstance(item, ToolCall)
    )
    return Action(content=content, calls=calls, errors=errors, num_bare_calls=len(calls))


def _declared_calls(text: str, declared: Collection[str]) -> list[ToolCall | str]:
    """The calls (or their errors) if `text` is nothing but JSON objects that name declared tools, else []."""
    found: list[ToolCall | str] = []
    position = _skip_space(text, 0)
    while position < len(text):
        try:
            value, position = _decode_json(text, position)
        except _Malformed:
            return []
        position = _skip_space(text, position)
        if not (isinstance(value, dict) and isinstance(value.get("name"), str) and value["name"] in declared):
            return []
        try:
            found.append(_to_call(value))
        except _Malformed as problem:
            found.append(str(problem))
    return found


def _to_call(value: Any) -> ToolCall:
    if not isinstance(value, dict):
        raise _Malformed(f'expected a JSON object with "name" and "arguments", got {_kind(value)}')
    name = value.get("name")
    if not isinstance(name, str) or not name:
        raise _Malformed(f'"name" must be a non-empty string, got {_kind(name)}')
    if "arguments" not in value:
        raise _Malformed('expected "arguments" beside "name"; use {} for a function without arguments')
    arguments = value["arguments"]
    if isinstance(arguments, str):
        arguments, end = _decode_json(arguments, 0)
        if _skip_space(value["arguments"], end) != len(value["arguments"]):
            raise _Malformed('"arguments" must be one JSON object, got text behind it')
    if not isinstance(arguments, dict):
        raise _Malformed(f'"arguments" must be a JSON object, got {_kind(arguments)}')
    return ToolCall(name=name, arguments=arguments)


def _decode_json(text: str, start: int) -> tuple[Any, int]:
    """Decode the JSON value at `start` (after space); return it and the position behind it."""
    start = _skip_space(text, start)
    try:
        value, end = _DECODER.raw_decode(text, start)
        # An escape such as \ud800 alone decodes to a string that no file or socket can carry.
        json.dumps(value, ensure_ascii=False).encode()
    except json.JSONDecodeError as error:
        raise _Malformed(f"invalid JSON: {error.msg} (at character {error.pos - start + 1})") from error
    except UnicodeEncodeError as error:
        raise _Malformed("invalid JSON: a \\u escape is half of a surrogate pair") from error
    except RecursionError as error:
        raise _Malformed("invalid JSON: nested too deeply") from error
    except ValueError as error:
        raise _Malformed(f"invalid JSON: {error}") from error
    if _nesting(value) > _MAX_NESTING:
        raise _Malformed(f"invalid JSON: nested more than {_MAX_NESTING} levels deep")
    return value, end


def _nesting(value: Any) -> int:
    level, depth = [value], 0
    while level := [child for item in level for child in _children(item)]:
        depth += 1
    return depth


def _children(value: Any) -> Collection[Any]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


def _skip_space(text: str, position: int) -> int:
    while position < len(text) and text[position] in " \t\r\n":
        position += 1
    return position


def _kind(value: Any) -> str:
    for kind, name in ((bool, "a boolean"), (dict, "an object"), (list, "an array"), (str, "a string")):
        if isinstance(value, kind):
            return name
    return "nothing" if value is None else "a number"


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) < len(pairs):
        keys = [key for key, _ in pairs]
        raise _Malformed(f"key {next(key for key in keys if keys.count(key) > 1)!r} appears twice")
    return result


def _finite(literal: str) -> float:
    number = float(literal)
    if not math.isfinite(number):
        raise _Malformed(f"{literal} is too large for a number")
    return number


def _no_constant(name: str) -> NoReturn:
    raise _Malformed(f"{name} is not JSON")


_DECODER = json.JSONDecoder(object_pairs_hook=_unique, parse_float=_finite, parse_constant=_no_constant)
