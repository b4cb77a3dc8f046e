"""A toy chat template over bytes: every id is a special token or one byte. Implements `rendering.Renderer`.

    <role> content <end> <separator> <role> content <end> <separator> ... <assistant>

An assistant turn spells its calls as lines `!name {"argument": ...}`; other lines are its content. Consecutive
tool messages are rendered one by one, since nothing is gained by grouping here.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from agentrl_jax.env import Action, Message, Tool, ToolCall
from agentrl_jax.rendering.streams import AppendedStream
from agentrl_jax.types import Ids, as_ids

END, SEPARATOR = 0, 1
_ROLES = {"system": 11, "user": 12, "assistant": 13, "tool": 14}
_FIRST_BYTE = 16
VOCABULARY_SIZE = _FIRST_BYTE + 256


@dataclass(frozen=True, slots=True, kw_only=True)
class FakeRenderer:
    """See the module. Ids 2 to 10 mean nothing, so that a toy policy's turns are content without any calls."""

    @property
    def stop_ids(self) -> tuple[int, ...]:
        return (END,)

    def prompt(self, messages: Sequence[Message], tools: Sequence[Tool]) -> Ids:
        """See `Renderer.prompt`; tools become one system message of their names."""
        names = "tools: " + " ".join(tool.name for tool in tools)
        declared = (Message(role="system", content=names),) if tools else ()
        return as_ids([*self._closed((*declared, *messages)), _ROLES["assistant"]])

    def reply(self, messages: Sequence[Message], *, after: int | None = None) -> Ids:
        """See `Renderer.reply`."""
        return as_ids([SEPARATOR, *self._closed(messages), _ROLES["assistant"]])

    def stream(self, tools: Sequence[Tool]) -> AppendedStream:
        """See `Renderer.stream`; nothing is slow."""
        return AppendedStream(self, tools)

    def parse(self, ids: Ids) -> Action:
        """See `Renderer.parse`."""
        lines, calls, errors = [], [], []
        for line in _text(ids).split("\n"):
            if not line.startswith("!"):
                lines.append(line)
                continue
            name, _, arguments = line[1:].partition(" ")
            try:
                parsed = json.loads(arguments or "{}")
            except json.JSONDecodeError as error:
                errors.append(f"call of {name!r}: {error}")
                continue
            if isinstance(parsed, dict):
                calls.append(ToolCall(name=name, arguments=parsed))
            else:
                errors.append(f"call of {name!r}: arguments must be an object, got {arguments}")
        return Action(content="\n".join(lines), calls=tuple(calls), errors=tuple(errors))

    def spell(self, message: Message) -> Ids:
        """The ids a policy samples to say `message`, the stop id included: for scripts."""
        return as_ids([*_bytes(_spelled(message)), END])

    def _closed(self, messages: Sequence[Message]) -> list[int]:
        ids: list[int] = []
        for message in messages:
            ids += [_ROLES[message.role], *_bytes(_spelled(message)), END, SEPARATOR]
        return ids


def _spelled(message: Message) -> str:
    lines = [message.content] if message.content or not message.tool_calls else []
    return "\n".join([*lines, *(f"!{call.name} {json.dumps(dict(call.arguments))}" for call in message.tool_calls)])


def _bytes(text: str) -> list[int]:
    return [_FIRST_BYTE + byte for byte in text.encode()]


def _text(ids: Ids) -> str:
    codes = np.asarray(ids)
    codes = codes[(codes >= _FIRST_BYTE) & (codes < VOCABULARY_SIZE)] - _FIRST_BYTE
    return bytes(codes.astype(np.uint8)).decode(errors="replace")
