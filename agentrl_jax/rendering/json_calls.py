"""JSON of tool calls, read exactly: one valid call, or words for the policy. Nothing is guessed or evaluated.

The JSON itself is scanned, so a string argument may contain quotes, braces or any format's tags.
"""

import json
import math
from collections.abc import Collection, Mapping
from typing import Any, NoReturn

from agentrl_jax.env import ToolCall

_MAX_NESTING = 64


class Malformed(ValueError):
    """Why something is no call, in words for the policy."""


def to_call(value: Any, key: str = "arguments") -> ToolCall:
    """The call that a JSON value of a name and arguments is; `key` names the arguments. Raises Malformed."""
    if not isinstance(value, dict):
        raise Malformed(f'expected a JSON object with "name" and "{key}", got {kind(value)}')
    name = value.get("name")
    if not isinstance(name, str) or not name:
        raise Malformed(f'"name" must be a non-empty string, got {kind(name)}')
    if key not in value:
        raise Malformed(f'expected "{key}" beside "name"; use {{}} for a function without arguments')
    arguments = value[key]
    if isinstance(arguments, str):
        arguments, end = decode_json(arguments, 0)
        if skip_space(value[key], end) != len(value[key]):
            raise Malformed(f'"{key}" must be one JSON object, got text behind it')
    if not isinstance(arguments, dict):
        raise Malformed(f'"{key}" must be a JSON object, got {kind(arguments)}')
    return ToolCall(name=name, arguments=arguments)


def dump_json(value: Mapping[str, Any] | str) -> str:
    """JSON as chat templates write it."""
    return json.dumps(value if isinstance(value, str) else dict(value), ensure_ascii=False)


def decode_json(text: str, start: int) -> tuple[Any, int]:
    """Decode the JSON value at `start` (after space); return it and the position behind it. Raises Malformed."""
    start = skip_space(text, start)
    try:
        value, end = _DECODER.raw_decode(text, start)
        # An escape such as \ud800 alone decodes to a string that no file or socket can carry.
        json.dumps(value, ensure_ascii=False).encode()
    except json.JSONDecodeError as error:
        raise Malformed(f"invalid JSON: {error.msg} (at character {error.pos - start + 1})") from error
    except UnicodeEncodeError as error:
        raise Malformed("invalid JSON: a \\u escape is half of a surrogate pair") from error
    except RecursionError as error:
        raise Malformed("invalid JSON: nested too deeply") from error
    except ValueError as error:
        raise Malformed(f"invalid JSON: {error}") from error
    if _nesting(value) > _MAX_NESTING:
        raise Malformed(f"invalid JSON: nested more than {_MAX_NESTING} levels deep")
    return value, end


def skip_space(text: str, position: int) -> int:
    """The position of the first character from `position` on that JSON does not count as space."""
    while position < len(text) and text[position] in " \t\r\n":
        position += 1
    return position


def kind(value: Any) -> str:
    """What a JSON value is, with its article."""
    for type_, name in ((bool, "a boolean"), (dict, "an object"), (list, "an array"), (str, "a string")):
        if isinstance(value, type_):
            return name
    return "nothing" if value is None else "a number"


def numbered(problem: Malformed | str, number: int) -> str:
    """The error text of a turn's call number `number`, from 1."""
    return f"tool call {number}: {problem}"


def _nesting(value: Any) -> int:
    level, depth = [value], 0
    while level := [child for item in level for child in _children(item)]:
        depth += 1
    return depth


def _children(value: Any) -> Collection[Any]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) < len(pairs):
        keys = [key for key, _ in pairs]
        raise Malformed(f"key {next(key for key in keys if keys.count(key) > 1)!r} appears twice")
    return result


def _finite(literal: str) -> float:
    number = float(literal)
    if not math.isfinite(number):
        raise Malformed(f"{literal} is too large for a number")
    return number


def _no_constant(name: str) -> NoReturn:
    raise Malformed(f"{name} is not JSON")


_DECODER = json.JSONDecoder(object_pairs_hook=_unique, parse_float=_finite, parse_constant=_no_constant)
