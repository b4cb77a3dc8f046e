"""The ids that one episode sends to its engines, turn after turn. Tokens are facts: what was sampled is never changed.

An append-only stream is one segment. A stream whose template rewrites earlier turns begins a new segment whenever the
next prompt no longer begins with the ids that stand; each segment is then exactly what an engine was given and sampled.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from agentrl_jax.env import Message, Tool
from agentrl_jax.errors import RecordError
from agentrl_jax.rendering.protocol import Context, Renderer
from agentrl_jax.types import Ids

QUICK_CHARS = 2_000
"""Text that is rendered and encoded within a millisecond of CPU."""


class AppendedStream:
    """Prompt, then replies, one after the other.

    quick_chars: a text longer than this takes time.
    """

    def __init__(self, renderer: Renderer, tools: Sequence[Tool], *, quick_chars: float = math.inf) -> None:
        self._renderer, self._tools, self._quick_chars = renderer, tools, quick_chars

    def is_slow(self, messages: Sequence[Message], *, is_first: bool) -> bool:
        """See `rendering.protocol.Stream`."""
        return num_chars(messages, self._tools if is_first else ()) > self._quick_chars

    def begin(self, messages: Sequence[Message]) -> Ids:
        """See `rendering.protocol.Stream`."""
        return self._renderer.prompt(messages, self._tools)

    def follow(self, sampled: Ids, messages: Sequence[Message]) -> Context:
        """See `rendering.protocol.Stream`."""
        return Context(ids=self._renderer.reply(messages, after=int(sampled[-1])), starts_segment=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class RewritingTexts:
    """What a rewritten stream needs of its renderer.

    render: (messages, tools) to the text of a prompt. encode: text to ids. encode_reply: (text from the token that
    ended a turn on, that token's id) to the ids behind it.
    as_history: (sampled ids, what answers them) to the message that later prompts are rendered from, its text, and the
    token that ended it.
    """

    render: Callable[[Sequence[Message], Sequence[Tool]], str]
    encode: Callable[[str], Ids]
    encode_reply: Callable[[str, int], Ids]
    as_history: Callable[[Ids, Sequence[Message]], tuple[Message, str, str]]


class RewrittenStream:
    """Every prompt is the template's rendering of the whole conversation, as when the policy is served."""

    def __init__(self, texts: RewritingTexts, tools: Sequence[Tool]) -> None:
        self._texts, self._tools = texts, tools
        self._messages: list[Message] = []
        self._standing = ""

    def is_slow(self, messages: Sequence[Message], *, is_first: bool) -> bool:
        """See `rendering.protocol.Stream`."""
        return len(self._standing) + num_chars(messages, self._tools if is_first else ()) > QUICK_CHARS

    def begin(self, messages: Sequence[Message]) -> Ids:
        """See `rendering.protocol.Stream`."""
        self._messages = list(messages)
        self._standing = self._texts.render(self._messages, self._tools)
        return self._texts.encode(self._standing)

    def follow(self, sampled: Ids, messages: Sequence[Message]) -> Context:
        """See `rendering.protocol.Stream`."""
        if not messages:
            raise RecordError("a reply needs at least one message; only an episode that is over has none")
        turn, said, end = self._texts.as_history(sampled, messages)
        self._messages += [turn, *messages]
        stood, self._standing = self._standing + said, self._texts.render(self._messages, self._tools)
        if self._standing.startswith(stood + end):
            rest = self._standing[len(stood) :]
            return Context(ids=self._texts.encode_reply(rest, int(sampled[-1])), starts_segment=False)
        return Context(ids=self._texts.encode(self._standing), starts_segment=True)


def num_chars(messages: Sequence[Message], tools: Sequence[Tool]) -> int:
    """Roughly how long the rendered text of these will be."""
    described = sum(len(tool.description) + len(str(tool.parameters)) for tool in tools)
    return described + sum(len(message.content) for message in messages)
