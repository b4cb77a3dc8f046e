"""What an assistant turn says: thinking, content, calls in its family's form, and JSON that should have been a call.

Parsing never raises and never guesses: a call is one valid call or one error text for the policy.
"""

import re
from collections.abc import Collection, Iterator
from dataclasses import replace

from agentrl_jax.env import Action, ToolCall
from agentrl_jax.rendering.call_formats import READERS
from agentrl_jax.rendering.config import ToolCallFormat, ToolCallPolicy
from agentrl_jax.rendering.json_calls import Malformed, decode_json, numbered, skip_space, to_call

THINK_OPEN = "<think>"
THINK_CLOSE = "</think>"
_FENCE_OPEN = re.compile(r"^```[\w-]*[ \t]*\n", re.MULTILINE)
_FENCE_CLOSE = re.compile(r"^```[ \t]*$", re.MULTILINE)


def parse_tool_calls(
    text: str,
    *,
    tool_calls: ToolCallPolicy,
    declared: Collection[str],
    tool_call_format: ToolCallFormat = "hermes",
    is_thinking: bool = False,
) -> Action:
    """Return the action that an assistant's `text` (stop token removed) spells. Never raises.

    Calls are those of `tool_call_format` (`call_formats`), each one call or one error, in order. Names need not be
    declared: the env answers unknown ones. Thinking (a leading `<think>`, or `is_thinking`: the generation prompt ends
    in one; up to the first `</think>`) is content whatever it contains: what is only thought of is not called.
    lenient: in a text without calls, JSON with a "name" of `declared` and "arguments" that is fenced, or is all there
    is, counts as a call too (`Action.num_bare_calls`). strict: such text is content.
    """
    start = _end_of_thinking(text, is_thinking=is_thinking)
    said = text[start:]
    action = READERS[tool_call_format](said, declared)
    if tool_calls == "lenient" and not action.calls and not action.errors:
        action = _parse_fenced(said, declared) or _parse_bare(said, declared) or action
    return replace(action, content=text[:start] + action.content) if start else action


def _end_of_thinking(text: str, *, is_thinking: bool) -> int:
    if not is_thinking and not text.startswith(THINK_OPEN, skip_space(text, 0)):
        return 0
    end = text.find(THINK_CLOSE)
    return len(text) if end < 0 else end + len(THINK_CLOSE)


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
    errors = tuple(numbered(item, number) for number, item in enumerate(found, 1) if not isinstance(item, ToolCall))
    return Action(content=content, calls=calls, errors=errors, num_bare_calls=len(calls))


def _declared_calls(text: str, declared: Collection[str]) -> list[ToolCall | str]:
    """The calls (or their errors) if `text` is nothing but JSON objects that name declared tools, else []."""
    found: list[ToolCall | str] = []
    position = skip_space(text, 0)
    while position < len(text):
        try:
            value, position = decode_json(text, position)
        except Malformed:
            return []
        position = skip_space(text, position)
        if not (isinstance(value, dict) and isinstance(value.get("name"), str) and value["name"] in declared):
            return []
        try:
            found.append(to_call(value))
        except Malformed as problem:
            found.append(str(problem))
    return found
