"""Where the turns of a chat template begin and end, as text: the canonical turn, and what follows a turn.

Both come from the template itself: dummy conversations are rendered with and without a message, and what stands behind
the dummy turn's last word is what the template puts there, whatever the real history is.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

from agentrl_jax.env import Message, Role
from agentrl_jax.errors import RecordError, TemplateError
from agentrl_jax.rendering.probe import ANSWER, USER, Findings, RenderText, calling, last_sentinel, opening
from agentrl_jax.rendering.templates import to_json

# Contents that templates are known to trim, escape or interpret.
_AWKWARD_CONTENTS = (
    "",
    " \n odd space \n ",
    '{"a": "<b> & \\n \'"}',
    "<think>a</think>b",
    "é\u2028😀",
    "{{ x }}{% y %}",
)

_COPIES: tuple[Callable[[str], str], ...] = (str, str.strip, lambda content: to_json(content)[1:-1])
"""How templates are known to copy a content: as it is, trimmed (Llama), as a JSON string (Llama's tool results)."""

_Skeleton = tuple[tuple[str, ...], Callable[[str], str]]


class TurnTexts:
    """The texts around the turns of one template. Safe to use from several threads.

    render: see `probe`. mark: what `render` does to contents before the template sees them.
    special_tokens, eos_tokens: spellings, see `ChatTokenizer`.

    Most templates close a turn with a token of its own, `closing`. Where none does (GLM), the token that begins the
    next message is also what ends the turn: `closing` is "", and `end_tokens` are a user's and a tool message's header.
    Raises TemplateError if a turn ends neither way.
    """

    def __init__(
        self,
        render: RenderText,
        findings: Findings,
        *,
        mark: Callable[[Any], Any],
        special_tokens: Sequence[str],
        eos_tokens: Sequence[str],
    ) -> None:
        self._render, self._findings, self._mark = render, findings, mark
        self._special_tokens = sorted(special_tokens, key=len, reverse=True)
        self.generation_prompt = render([USER], (), True)
        self._skeleton = lru_cache(maxsize=256)(self._derive_skeleton)
        self.closing = ""
        self.closing = self._find_closing(eos_tokens)
        self.end_tokens = (self.closing,) if self.closing else (self._header("user"), self._header("tool"))

    def end_of(self, turn: Message, following: Sequence[Message] = ()) -> str:
        """The token that ends `turn` when `following` come next (nothing: what the turn itself asks for)."""
        if self.closing:
            return self.closing
        asked: Role = "tool" if turn.tool_calls else "user"
        return self._header(following[0].role if following and following[0].role in ("user", "tool") else asked)

    def turn(self, message: Message, following: Sequence[Message] = ()) -> str:
        """An assistant turn as the template writes it, from behind the generation prompt to the token that ends it.

        Raises RecordError for another role, TemplateError for a turn that the template cannot write in full.
        """
        if message.role != "assistant":
            raise RecordError(f"a turn is an assistant message, got role {message.role!r}")
        if message.content and message.tool_calls and self._findings.drops_text:
            raise TemplateError(
                f"the chat template drops the text of a turn with tool calls, got {message.content[:40]!r}: "
                "leave it out, or use another template"
            )
        text = self._render([USER, message], (), False)
        end = text.rfind(self.closing) if self.closing else len(text)
        if end < len(self.generation_prompt) or not text.startswith(self.generation_prompt):
            raise TemplateError(
                f"the chat template renders an assistant turn without its generation prompt or {self.closing}: {text!r}"
            )
        return text[len(self.generation_prompt) : end] + self.end_of(message, following)

    def reply(self, messages: Sequence[Message], *, add_generation_prompt: bool) -> str:
        """What the template writes from the token that ends a turn on when `messages` follow, that token included.

        The cost depends on `messages` alone. Raises RecordError for an assistant message among them.
        """
        skeleton = self._skeleton(tuple(message.role for message in messages), add_generation_prompt)
        if skeleton is None:
            return self._derive(messages, add_generation_prompt)
        pieces, copy = skeleton
        return _fill(pieces, [copy(self._mark(message.content)) for message in messages])

    def _find_closing(self, eos_tokens: Sequence[str]) -> str:
        text = self._render([USER, ANSWER], (), False)
        tail = text[text.rindex(ANSWER.content) + len(ANSWER.content) :]
        closing = self._token_at_start(tail)
        if closing:
            return closing
        headers = {self._token_at_start(self._behind([USER, ANSWER], [USER], False))}
        headers.add(self._token_at_start(self._behind([USER, calling(1)], [Message(role="tool", content="x")], False)))
        if tail or not headers <= set(eos_tokens):
            raise TemplateError(
                "the chat template does not close an assistant turn with a special token: expected one right after "
                f"the turn's text, or that the tokens of the next role are among the model's ends {list(eos_tokens)}, "
                f"got {tail[:40]!r}"
            )
        return ""

    def _token_at_start(self, text: str) -> str:
        return next((token for token in self._special_tokens if text.startswith(token)), "")

    def _header(self, role: Role) -> str:
        return self._token_at_start(self.reply([Message(role=role, content="x")], add_generation_prompt=False))

    def _derive(self, messages: Sequence[Message], add_generation_prompt: bool) -> str:
        return self._behind(opening(messages, self._findings.max_calls), messages, add_generation_prompt)

    def _behind(self, base: Sequence[Message], messages: Sequence[Message], add_generation_prompt: bool) -> str:
        """What stands behind the turn that ends `base` once `messages` follow, from the token that ends it on."""
        sentinel = last_sentinel(base[-1])
        alone = self._render(base, (), False).rpartition(sentinel)[2]
        end = alone.rfind(self.closing) if self.closing else len(alone)
        if end < 0:
            raise TemplateError(
                f"the chat template closes an answer with {self.closing}, but not every turn: got {alone[-60:]!r} "
                f"behind {sentinel!r}"
            )
        rest_of_turn = alone[:end]
        _, found, rest = self._render([*base, *messages], (), add_generation_prompt).partition(sentinel)
        if not found or not rest.startswith(rest_of_turn + self.closing):
            roles = ", ".join(message.role for message in messages)
            raise TemplateError(
                f"the chat template rewrites the end of a turn when messages of roles [{roles}] follow: expected "
                f"{(rest_of_turn + self.closing)[-60:]!r} behind {sentinel!r}, got {rest[:60]!r}"
            )
        return rest[len(rest_of_turn) :]

    def _derive_skeleton(self, roles: tuple[Role, ...], add_generation_prompt: bool) -> _Skeleton | None:
        """The constant text around the contents of such messages, and how they are copied; None if they are not."""
        if "assistant" in roles:
            raise RecordError(f"a reply has no assistant message, got roles {list(roles)}")
        sentinels = [f"qzContent{number}zq" for number in range(len(roles))]
        rest = self._derive(_messages(roles, sentinels), add_generation_prompt)
        pieces = []
        for sentinel in sentinels:
            before, found, rest = rest.partition(sentinel)
            if not found or sentinel in rest:
                return None
            pieces.append(before)
        pieces.append(rest)
        awkward = {
            content: self._derive(_messages(roles, [content] * len(roles)), add_generation_prompt)
            for content in _AWKWARD_CONTENTS
        }
        for copy in _COPIES:
            if all(
                text == _fill(pieces, [copy(self._mark(content))] * len(roles)) for content, text in awkward.items()
            ):
                return tuple(pieces), copy
        return None


def _messages(roles: Sequence[Role], contents: Sequence[str]) -> list[Message]:
    return [Message(role=role, content=content) for role, content in zip(roles, contents, strict=True)]


def _fill(pieces: Sequence[str], contents: Sequence[str]) -> str:
    filled = [text for pair in zip(pieces, contents, strict=False) for text in pair]
    return "".join(filled) + pieces[-1]
