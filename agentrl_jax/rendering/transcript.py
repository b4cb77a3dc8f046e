"""Token-in-token-out transcripts for templates that only append.

An episode's ids are `prompt + sampled + reply + sampled + …`; what was sampled is never decoded and encoded again.
The ids of a reply come from the template itself: a dummy conversation is rendered with and without the reply, and the
difference behind the closed turn's stop token is what the template puts there, whatever the real history is.
"""

from collections.abc import Sequence
from functools import lru_cache
from os import PathLike

import numpy as np

from agentrl_jax.env import Action, Message, Role, Tool
from agentrl_jax.errors import ConfigError, RecordError, TemplateError
from agentrl_jax.rendering.probe import ANSWER, USER, check_template, opening
from agentrl_jax.rendering.templates import ChatTemplate, conversation_to_json
from agentrl_jax.rendering.tokenizer import ChatTokenizer, load_tokenizer
from agentrl_jax.rendering.tool_calls import ToolCallPolicy, parse_tool_calls
from agentrl_jax.rendering.untrusted import SpecialTokenGuard
from agentrl_jax.types import Bools, Ids, as_ids

_NUM_PROMPTS = 64
"""Prompts whose ids are kept: the members of a group ask for the same one within moments."""

# Contents that templates are known to trim, escape or interpret.
_AWKWARD_CONTENTS = (
    "",
    " \n odd space \n ",
    '{"a": "<b> & \\n \'"}',
    "<think>a</think>b",
    "é\u2028😀",
    "{{ x }}{% y %}",
)


class TemplateRenderer:
    """One chat template with one tokenizer, as `rendering.protocol.Renderer`. Safe to use from several threads.

    tokenizer: a folder (see `load_tokenizer`) or a loaded tokenizer.
    tools: the tools of every env that is rendered with it; `lenient` accepts untagged JSON that names one of them.
    tool_calls: see `parse_tool_calls`; the same in training and evaluation.

    Special tokens that are spelled out in messages or tools are encoded as plain text, so no content can forge a
    turn. Raises TemplateError if the template loses tool calls or tool messages, rewrites history, or does not close
    an assistant turn with a special token; ConfigError if the folder is incomplete.
    """

    def __init__(
        self,
        tokenizer: ChatTokenizer | str | PathLike[str],
        *,
        tools: Sequence[Tool] = (),
        tool_calls: ToolCallPolicy = "lenient",
    ) -> None:
        self.tokenizer = tokenizer if isinstance(tokenizer, ChatTokenizer) else load_tokenizer(tokenizer)
        if tool_calls not in ("strict", "lenient"):
            raise ConfigError(f"tool_calls must be 'strict' or 'lenient', got {tool_calls!r}")
        self._declared = frozenset(tool.name for tool in tools)
        self._tool_calls: ToolCallPolicy = tool_calls
        self._guard = SpecialTokenGuard(self.tokenizer.special_tokens)
        self._template = ChatTemplate(self.tokenizer.chat_template, self.tokenizer.constants)
        check_template(self._render)
        self._opening_text = self._render([USER], (), True)
        self._closing = self._find_closing_token()
        ends = dict.fromkeys((self._closing, *self.tokenizer.eos_tokens))
        self._stop_ids = tuple(self.tokenizer.special_tokens[t] for t in ends if t in self.tokenizer.special_tokens)
        self._skeleton = lru_cache(maxsize=256)(self._derive_skeleton)
        self._encode_prompt = lru_cache(maxsize=_NUM_PROMPTS)(lambda text: as_ids(self._encode(text)))
        self._check_boundaries()

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """Ids that end an assistant turn: the one the template closes it with first, then the model's other ends."""
        return self._stop_ids

    def prompt(self, messages: Sequence[Message], tools: Sequence[Tool]) -> Ids:
        """int32 ids before the first assistant turn, generation prompt included."""
        return self._encode_prompt(self._render(messages, tools, True))

    def reply(self, messages: Sequence[Message]) -> Ids:
        """int32 ids between a turn that ended with a stop id and the next one, generation prompt included.

        The cost depends on `messages` alone. Raises RecordError without messages or with an assistant message.
        """
        if not messages:
            raise RecordError("a reply needs at least one message; only an episode that is over has none")
        return as_ids(self._encode_reply(self._reply_text(messages, add_generation_prompt=True)))

    def parse(self, ids: Ids) -> Action:
        """The assistant turn that `ids` spell, with or without a stop id at the end. Never raises."""
        end = len(ids) - 1 if len(ids) and int(ids[-1]) in self._stop_ids else len(ids)
        text = self.tokenizer.decode(ids[:end].tolist())
        return parse_tool_calls(text, tool_calls=self._tool_calls, declared=self._declared)

    def full_render(self, messages: Sequence[Message], tools: Sequence[Tool], *, add_generation_prompt: bool) -> Ids:
        """int32 ids of the template's rendering of a whole conversation: what recorded ids are compared with."""
        return as_ids(self._encode(self._render(messages, tools, add_generation_prompt)))

    def encode_turn(self, message: Message) -> Ids:
        """int32 ids of an assistant turn as the template writes it, stop id included: a canonical completion."""
        if message.role != "assistant":
            raise RecordError(f"a turn is an assistant message, got role {message.role!r}")
        closed = self._closed_text([USER, message])
        return as_ids(self._encode(closed[len(self._opening_text) :]))

    def render_demonstration(self, messages: Sequence[Message], tools: Sequence[Tool]) -> tuple[Ids, Bools]:
        """Return (ids int32 [T], loss_mask bool [T]) of a finished conversation, built turn by turn like an episode.

        The ids equal `full_render(messages, tools, add_generation_prompt=False)`; the mask is True exactly on
        assistant turns with their stop id, never on a generation prompt or separator. Raises RecordError if no
        assistant message is there or two follow each other.
        """
        turns = [index for index, message in enumerate(messages) if message.role == "assistant"]
        if not turns:
            raise RecordError("a demonstration needs an assistant message, got none")
        parts = [(self.prompt(messages[: turns[0]], tools), False)]
        for start, end in zip(turns, [*turns[1:], len(messages)], strict=True):
            parts.append((self.encode_turn(messages[start]), True))
            is_last = end == len(messages)
            text = self._reply_text(messages[start + 1 : end], add_generation_prompt=not is_last)
            parts.append((as_ids(self._encode_reply(text)), False))
        ids = np.concatenate([part for part, _ in parts])
        return ids, np.repeat([is_sampled for _, is_sampled in parts], [len(part) for part, _ in parts])

    def _render(self, messages: Sequence[Message], tools: Sequence[Tool], add_generation_prompt: bool) -> str:
        conversation, declared = conversation_to_json(messages, tools)
        return self._template.render(
            self._guard.mark(conversation), self._guard.mark(declared), add_generation_prompt=add_generation_prompt
        )

    def _encode(self, text: str) -> list[int]:
        ids: list[int] = []
        for piece, is_plain in self._guard.pieces(text):
            ids += self.tokenizer.encode_plain(piece) if is_plain else self.tokenizer.encode(piece)
        return ids

    def _encode_reply(self, text: str) -> list[int]:
        # In the context of the stop token, which in some tokenizers swallows white space behind it.
        return self._encode(self._closing + text)[1:]

    def _find_closing_token(self) -> str:
        text = self._render([USER, ANSWER], (), False)
        tail = text[text.rindex(ANSWER.content) + len(ANSWER.content) :]
        found = [token for token in self.tokenizer.special_tokens if tail.startswith(token)]
        if not found:
            raise TemplateError(
                "the chat template does not close an assistant turn with a special token: expected one right after "
                f"the turn's text, got {tail[:40]!r}"
            )
        return max(found, key=len)

    def _closed_text(self, conversation: Sequence[Message]) -> str:
        """The rendering of a conversation that ends with an assistant turn, up to that turn's stop token."""
        text = self._render(conversation, (), False)
        end = text.rfind(self._closing)
        if end < len(self._opening_text) or not text.startswith(self._opening_text):
            raise TemplateError(
                f"the chat template renders an assistant turn without its generation prompt or {self._closing}: "
                f"{text!r}"
            )
        return text[: end + len(self._closing)]

    def _check_boundaries(self) -> None:
        """Ids must not depend on where prompt, turn and reply meet."""
        prompt = self._encode(self._opening_text)
        for following in (USER, Message(role="tool", content=USER.content)):
            turn = opening([following])[1]
            parts = prompt + self.encode_turn(turn).tolist() + self.reply([following]).tolist()
            if self._encode(self._render([USER, turn, following], (), True)) != parts:
                raise TemplateError(
                    "the tokenizer merges text across the border of the generation prompt "
                    f"{self._opening_text[-20:]!r} or of {self._closing!r}: what is sampled could never equal the "
                    "template's rendering of it"
                )

    def _reply_text(self, messages: Sequence[Message], *, add_generation_prompt: bool) -> str:
        roles = tuple(message.role for message in messages)
        skeleton = self._skeleton(roles, add_generation_prompt)
        if skeleton is None:
            return self._derive_reply(messages, add_generation_prompt)
        return _fill(skeleton, [self._guard.mark(message.content) for message in messages])

    def _derive_reply(self, messages: Sequence[Message], add_generation_prompt: bool) -> str:
        """What the template puts behind a closed turn's stop token when `messages` follow."""
        base = opening(messages)
        closed = self._closed_text(base)
        text = self._render([*base, *messages], (), add_generation_prompt)
        if not text.startswith(closed):
            roles = ", ".join(message.role for message in messages)
            raise TemplateError(
                f"the chat template rewrites history when messages of roles [{roles}] follow: expected it to "
                f"continue {closed[-60:]!r}"
            )
        return text[len(closed) :]

    def _derive_skeleton(self, roles: tuple[Role, ...], add_generation_prompt: bool) -> tuple[str, ...] | None:
        """The constant text around contents of messages of these roles; None if contents are not copied verbatim."""
        if "assistant" in roles:
            raise RecordError(f"a reply has no assistant message, got roles {list(roles)}")
        sentinels = [f"qzContent{number}zq" for number in range(len(roles))]
        rest = self._derive_reply(_messages(roles, sentinels), add_generation_prompt)
        skeleton = []
        for sentinel in sentinels:
            before, found, rest = rest.partition(sentinel)
            if not found or sentinel in rest:
                return None
            skeleton.append(before)
        skeleton.append(rest)
        for content in _AWKWARD_CONTENTS:
            text = self._derive_reply(_messages(roles, [content] * len(roles)), add_generation_prompt)
            if text != _fill(skeleton, [self._guard.mark(content)] * len(roles)):
                return None
        return tuple(skeleton)


def _messages(roles: Sequence[Role], contents: Sequence[str]) -> list[Message]:
    return [Message(role=role, content=content) for role, content in zip(roles, contents, strict=True)]


def _fill(skeleton: Sequence[str], contents: Sequence[str]) -> str:
    pieces = [text for pair in zip(skeleton, contents, strict=False) for text in pair]
    return "".join(pieces) + skeleton[-1]
