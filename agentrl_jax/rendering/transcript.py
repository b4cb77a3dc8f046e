"""Token-in-token-out transcripts from a model's own chat template and tokenizer.

An episode's ids are `prompt + sampled + reply + sampled + …`; what was sampled is never decoded and encoded again.
The ids of a reply come from the template itself (`turn_texts`), whatever the real history is; a template that rewrites
history is used as `history_thinking` says.
"""

from collections.abc import Sequence
from functools import lru_cache
from os import PathLike

import numpy as np

from agentrl_jax.env import Action, Message, Tool
from agentrl_jax.errors import RecordError, TemplateError
from agentrl_jax.rendering.call_formats import READERS
from agentrl_jax.rendering.choices import choose_format, choose_history, choose_shape
from agentrl_jax.rendering.config import HistoryThinking, RenderingConfig
from agentrl_jax.rendering.probe import ANSWER, USER, calling, examine, opening
from agentrl_jax.rendering.protocol import Stream
from agentrl_jax.rendering.shapes import MessageShape
from agentrl_jax.rendering.streams import QUICK_CHARS, AppendedStream, RewritingTexts, RewrittenStream
from agentrl_jax.rendering.templates import TEMPLATES, ChatTemplate
from agentrl_jax.rendering.tokenizer import ChatTokenizer, load_tokenizer
from agentrl_jax.rendering.tool_calls import THINK_CLOSE, THINK_OPEN, parse_tool_calls
from agentrl_jax.rendering.turn_texts import TurnTexts
from agentrl_jax.rendering.untrusted import SpecialTokenGuard
from agentrl_jax.types import Bools, Ids, as_ids

_NUM_PROMPTS = 64
"""Prompts whose ids are kept: the members of a group ask for the same one within moments."""

_NUM_TURNS = 4096
"""Turns and messages of rewritten prompts whose ids are kept: the next prompt of an episode has most of them again."""


class TemplateRenderer:
    """One chat template with one tokenizer, as `rendering.protocol.Renderer`. Safe to use from several threads.

    tokenizer: a folder (see `load_tokenizer`) or a loaded tokenizer.
    tools: the tools of every env that is rendered with it; `lenient` accepts untagged JSON that names one of them.
    config: the same in training and evaluation. `self.config` is what became of it for this template.

    Special tokens that are spelled out in messages or tools are encoded as plain text, so no content can forge a
    turn. Raises TemplateError if the template loses tool calls or tool messages, rewrites history without a declared
    policy, writes calls in an unknown form, or leaves open where a turn ends; ConfigError if the folder is incomplete,
    or a setting has no effect.
    """

    def __init__(
        self,
        tokenizer: ChatTokenizer | str | PathLike[str],
        *,
        tools: Sequence[Tool] = (),
        config: RenderingConfig | None = None,
    ) -> None:
        config = config or RenderingConfig()
        self.tokenizer = tokenizer if isinstance(tokenizer, ChatTokenizer) else load_tokenizer(tokenizer)
        self._declared = frozenset(tool.name for tool in tools)
        # Thinking tags forge no turn, and templates look for them in contents.
        self._guard = SpecialTokenGuard(self.tokenizer.special_tokens.keys() - {THINK_OPEN, THINK_CLOSE})
        source = self.tokenizer.chat_template if config.chat_template is None else TEMPLATES[config.chat_template]
        self._template = ChatTemplate(source, self.tokenizer.constants)
        self._shape = choose_shape(self._render_as)
        self._findings = examine(self._render)
        history: HistoryThinking = choose_history(self._render, self._findings, config.history_thinking)
        self._texts = TurnTexts(
            self._render,
            self._findings,
            mark=self._guard.mark,
            special_tokens=tuple(self.tokenizer.special_tokens),
            eos_tokens=self.tokenizer.eos_tokens,
        )
        self._is_thinking = self._texts.generation_prompt.rstrip().endswith(THINK_OPEN)
        spelled = self._own_call()
        self.config = RenderingConfig(
            history_thinking=history,
            tool_call_format=config.tool_call_format or choose_format(spelled),
            chat_template=config.chat_template,
            tool_calls=config.tool_calls,
        )
        assert self.config.tool_call_format is not None
        self._format = self.config.tool_call_format
        self._reads_own_calls = READERS[self._format](spelled, ()).calls == calling(1).tool_calls
        ends = dict.fromkeys((*self._texts.end_tokens, *self.tokenizer.eos_tokens))
        self._stop_ids = tuple(self.tokenizer.special_tokens[t] for t in ends if t in self.tokenizer.special_tokens)
        self._encode_prompt = lru_cache(maxsize=_NUM_PROMPTS)(
            lambda opening_: as_ids(self._encode(self._render(opening_.messages, opening_.tools, True)))
        )
        self._check_boundaries()
        self._encode_closed = lru_cache(maxsize=_NUM_TURNS)(lambda text: as_ids(self._encode(text)))
        self._is_split_by_closing = bool(self._texts.closing) and all(
            self._encode(self._texts.closing + text)[1:] == self._encode(text) for text in ("\n x", " x", "x")
        )

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """Ids that end an assistant turn: those the template ends it with first, then the model's other ends."""
        return self._stop_ids

    @property
    def rewrites_history(self) -> bool:
        """Whether the template leaves earlier turns other than they were sampled."""
        return bool(self._findings.rewriting)

    def prompt(self, messages: Sequence[Message], tools: Sequence[Tool]) -> Ids:
        """int32 ids before the first assistant turn, generation prompt included."""
        if any(message.tool_calls for message in messages):
            return as_ids(self._encode(self._render(messages, tools, True)))
        return self._encode_prompt(_Opening(messages, tools))

    def reply(self, messages: Sequence[Message], *, after: int | None = None) -> Ids:
        """int32 ids between a turn that ended with the stop id `after` and the next one, generation prompt included.

        after: default, the one that the template would have written. The cost depends on `messages` alone. Raises
        RecordError without messages or with an assistant message.
        """
        if not messages:
            raise RecordError("a reply needs at least one message; only an episode that is over has none")
        return self._encode_reply(self._texts.reply(messages, add_generation_prompt=True), after)

    def stream(self, tools: Sequence[Tool]) -> Stream:
        """A new episode's ids: one segment, or with `strip` one for each prompt that the template rewrites."""
        if self.config.history_thinking == "keep":
            return AppendedStream(self, tools, quick_chars=QUICK_CHARS)
        texts = RewritingTexts(
            render=lambda messages, tools_: self._render(messages, tools_, True),
            encode=self._encode_whole,
            encode_reply=self._encode_reply,
            as_history=self._as_history,
        )
        return RewrittenStream(texts, tools)

    def parse(self, ids: Ids) -> Action:
        """The assistant turn that `ids` spell, with or without a stop id at the end. Never raises."""
        return parse_tool_calls(
            self._decode_turn(ids),
            tool_calls=self.config.tool_calls,
            declared=self._declared,
            tool_call_format=self._format,
            is_thinking=self._is_thinking,
        )

    def full_render(self, messages: Sequence[Message], tools: Sequence[Tool], *, add_generation_prompt: bool) -> Ids:
        """int32 ids of the template's rendering of a whole conversation: what recorded ids are compared with."""
        return as_ids(self._encode(self._render(messages, tools, add_generation_prompt)))

    def encode_turn(self, message: Message, following: Sequence[Message] = ()) -> Ids:
        """int32 ids of an assistant turn as the template writes it, stop id included: a canonical completion.

        following: the messages that answer it; where their header is the stop id, they say which one.
        """
        if message.tool_calls and not self._reads_own_calls:
            raise TemplateError(
                f"the chat template does not write calls in the form {self._format}: a demonstration would teach "
                "what is not understood; leave --tool-call-format out"
            )
        return as_ids(self._encode(self._texts.turn(message, following)))

    def demonstration_segments(
        self, messages: Sequence[Message], tools: Sequence[Tool]
    ) -> tuple[tuple[Ids, Bools], ...]:
        """Return (ids int32 [T], loss_mask bool [T]) of each segment of a finished conversation, built turn by turn
        like an episode's.

        The mask is True exactly on assistant turns with their stop id, never on a generation prompt or separator. If
        the template only appends, there is one segment, and its ids equal `full_render(messages, tools,
        add_generation_prompt=False)`, and a stop id behind a last turn that the template leaves open. Raises
        RecordError if no assistant message is there or two follow each other.
        """
        turns = [index for index, message in enumerate(messages) if message.role == "assistant"]
        if not turns:
            raise RecordError("a demonstration needs an assistant message, got none")
        stream = self.stream(tools)
        segments: list[list[tuple[Ids, bool]]] = [[(stream.begin(messages[: turns[0]]), False)]]
        for start, end in zip(turns, [*turns[1:], len(messages)], strict=True):
            following = messages[start + 1 : end]
            sampled = self.encode_turn(messages[start], following)
            segments[-1].append((sampled, True))
            if end == len(messages):
                closing = self._texts.reply(following, add_generation_prompt=False)
                segments[-1].append((self._encode_reply(closing, int(sampled[-1])), False))
                break
            context = stream.follow(sampled, following)
            segments += [[]] if context.starts_segment else []
            segments[-1].append((context.ids, False))
        return tuple(map(_joined, segments))

    def _render(self, messages: Sequence[Message], tools: Sequence[Tool], add_generation_prompt: bool) -> str:
        return self._render_as(self._shape, messages, tools, add_generation_prompt)

    def _render_as(
        self, shape: MessageShape, messages: Sequence[Message], tools: Sequence[Tool], add_generation_prompt: bool
    ) -> str:
        return self._template.render(
            self._guard.mark(shape(messages)),
            self._guard.mark([tool.to_json() for tool in tools]),
            add_generation_prompt=add_generation_prompt,
        )

    def _encode(self, text: str) -> list[int]:
        ids: list[int] = []
        for piece, is_plain in self._guard.pieces(text):
            ids += self.tokenizer.encode_plain(piece) if is_plain else self.tokenizer.encode(piece)
        return ids

    def _encode_whole(self, text: str) -> Ids:
        """As `_encode`. Closed turns, which most of a rewritten prompt is made of, are encoded once."""
        if not self._is_split_by_closing:
            return as_ids(self._encode(text))
        *closed, rest = self._guard.split(text, self._texts.closing)
        return np.concatenate([*(self._encode_closed(part) for part in closed), as_ids(self._encode(rest))])

    def _encode_reply(self, text: str, after: int | None = None) -> Ids:
        # In the context of the token that ended the turn, which in some tokenizers swallows white space behind it.
        ids = self._encode(text)
        stands_already = bool(self._texts.closing) or after is None or ids[:1] == [after]
        return as_ids(ids[1:] if stands_already else ids)

    def _decode_turn(self, ids: Ids) -> str:
        end = len(ids) - 1 if len(ids) and int(ids[-1]) in self._stop_ids else len(ids)
        return self.tokenizer.decode(ids[:end].tolist())

    def _as_history(self, sampled: Ids, following: Sequence[Message]) -> tuple[Message, str, str]:
        """The message of a turn for later prompts, its text and the token that ended it; see `RewritingTexts`.

        A turn whose text is canonical, however it was split into tokens, stands in later prompts as the template writes
        it; any other as the text that it is.
        """
        opened = self._thinking_prefix()
        end = self.tokenizer.decode([int(sampled[-1])])
        action = self.parse(sampled)
        message = Message(role="assistant", content=opened + action.content, tool_calls=action.calls)
        text = self._decode_turn(sampled)
        canonical = self._canonical_text(message, following)
        if canonical is not None and self._guard.unmark(canonical) == text + end:
            return message, canonical.removesuffix(end), end
        return Message(role="assistant", content=opened + text), self._guard.mark(text), end

    def _canonical_text(self, message: Message, following: Sequence[Message]) -> str | None:
        try:
            return self._texts.turn(message, following)
        except TemplateError:
            return None

    def _thinking_prefix(self) -> str:
        prompt = self._texts.generation_prompt
        return prompt[prompt.rindex(THINK_OPEN) :] if self._is_thinking else ""

    def _own_call(self) -> str:
        """How the template spells a call, at the start of the text."""
        # Thinking that the generation prompt opens may be missing in a turn of history, or be an empty block there.
        header = self._texts.generation_prompt.partition(THINK_OPEN)[0]
        written = self._render([USER, calling(1)], (), False).removeprefix(header).rpartition(THINK_CLOSE)[2]
        return written.rsplit(self._texts.closing, 1)[0] if self._texts.closing else written

    def _check_boundaries(self) -> None:
        """Ids must not depend on where prompt, turn and reply meet."""
        prompt = self._texts.generation_prompt
        for following in ([USER], [Message(role="tool", content=USER.content)]):
            turn = opening(following, self._findings.max_calls)[1]
            end = self._texts.end_of(turn, following)
            said = self._canonical_text(turn, following) or ANSWER.content + end
            reply = self._texts.reply(following, add_generation_prompt=True)
            parts = self._encode(prompt) + self._encode(said) + self._encode_reply(reply).tolist()
            if self._encode(prompt + said.removesuffix(end) + reply) != parts:
                raise TemplateError(
                    "the tokenizer merges text across the border of the generation prompt "
                    f"{prompt[-20:]!r} or of {end!r}: what is sampled could never equal the template's rendering of it"
                )


class _Opening:
    """A conversation's beginning as a key: equal if the messages are, and the tools are the same objects."""

    def __init__(self, messages: Sequence[Message], tools: Sequence[Tool]) -> None:
        self.messages, self.tools = tuple(messages), tuple(tools)

    def __hash__(self) -> int:
        return hash(tuple(message.content for message in self.messages))

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, _Opening)
            and self.messages == other.messages
            and list(map(id, self.tools)) == list(map(id, other.tools))
        )


def _joined(parts: Sequence[tuple[Ids, bool]]) -> tuple[Ids, Bools]:
    ids = np.concatenate([part for part, _ in parts])
    return ids, np.repeat([is_sampled for _, is_sampled in parts], [len(part) for part, _ in parts])
