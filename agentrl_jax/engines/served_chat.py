"""OpenAI's chat completions for an engine that has a chat template. No jax."""

import json
import time
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec

from agentrl_jax.engines.http_server import HttpProblem
from agentrl_jax.engines.served_turns import Turn
from agentrl_jax.engines.sglang_schema import SamplingFields
from agentrl_jax.env import Action, Message, Tool, ToolCall
from agentrl_jax.errors import TemplateError
from agentrl_jax.rendering.protocol import Renderer
from agentrl_jax.rendering.tokenizer import ChatTokenizer
from agentrl_jax.types import Ids


class ChatFormat:
    """Text to ids and back for one model. Safe to use from several threads."""

    def __init__(self, tokenizer: ChatTokenizer, renderer: Renderer) -> None:
        self._tokenizer, self._renderer = tokenizer, renderer
        self._special_ids = frozenset(tokenizer.special_tokens.values())

    @property
    def stop_ids(self) -> tuple[int, ...]:
        return self._renderer.stop_ids

    def encode(self, text: str) -> list[int]:
        return self._tokenizer.encode(text)

    def decode(self, ids: Sequence[int], *, trim_stop: bool = True, skip_special: bool = True) -> str:
        """trim_stop: leave out a stop id at the end. skip_special: leave out every other special token."""
        if trim_stop and ids and ids[-1] in self.stop_ids:
            ids = ids[:-1]
        return self._tokenizer.decode(token for token in ids if not (skip_special and token in self._special_ids))

    def prompt(self, messages: Sequence[Message], tools: Sequence[Tool]) -> Ids:
        """Raises HttpProblem if the chat template refuses the conversation."""
        try:
            return self._renderer.prompt(messages, tools)
        except TemplateError as error:
            raise HttpProblem(400, str(error)) from error

    def parse(self, ids: Ids) -> Action:
        return self._renderer.parse(ids)


class TextPart(msgspec.Struct, kw_only=True):
    type: Literal["text"]
    text: str


class CalledFunction(msgspec.Struct, kw_only=True):
    name: str
    arguments: str | dict[str, Any]


class MessageCall(msgspec.Struct, kw_only=True):
    function: CalledFunction

    def to_call(self) -> ToolCall:
        arguments: Any = self.function.arguments
        if isinstance(arguments, str):
            try:
                arguments = json.loads(arguments)
            except (ValueError, RecursionError) as error:
                raise HttpProblem(400, f"arguments of {self.function.name} are not JSON: {error}") from error
        if not isinstance(arguments, dict):
            raise HttpProblem(400, f"arguments of {self.function.name} must be an object, got {arguments!r}")
        return ToolCall(name=self.function.name, arguments=arguments)


class ChatMessage(msgspec.Struct, kw_only=True):
    role: Literal["system", "user", "assistant", "tool"]
    content: str | list[TextPart] | None = None
    tool_calls: list[MessageCall] | None = None

    def to_message(self) -> Message:
        if self.tool_calls and self.role != "assistant":
            raise HttpProblem(400, f"only an assistant message has tool_calls, got role {self.role!r}")
        content = self.content or ""
        if isinstance(content, list):
            content = "".join(part.text for part in content)
        return Message(
            role=self.role, content=content, tool_calls=tuple(call.to_call() for call in self.tool_calls or ())
        )


class ToolFunction(msgspec.Struct, kw_only=True):
    name: str
    description: str = ""
    parameters: dict[str, Any] = msgspec.field(default_factory=dict)


class ChatTool(msgspec.Struct, kw_only=True):
    function: ToolFunction
    type: Literal["function"] = "function"

    def to_tool(self) -> Tool:
        return Tool(**msgspec.structs.asdict(self.function))


class ChatRequest(msgspec.Struct, kw_only=True):
    """input_ids: instead of the template's rendering of the messages."""

    messages: Annotated[list[ChatMessage], msgspec.Meta(min_length=1)]
    tools: list[ChatTool] | None = None
    tool_choice: Literal["auto", "none"] | None = None
    model: str = ""
    max_tokens: Annotated[int, msgspec.Meta(ge=1)] | None = None
    max_completion_tokens: Annotated[int, msgspec.Meta(ge=1)] | None = None
    temperature: Annotated[float, msgspec.Meta(ge=0)] | None = None
    seed: Annotated[int, msgspec.Meta(ge=0)] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool = False
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    stop: str | list[str] | None = None
    n: int | None = None
    top_logprobs: Literal[0] | None = None
    logprobs: bool = False
    stream: bool = False
    rid: str | None = None
    session_id: str | None = None
    input_ids: list[int] | None = None
    return_meta_info: bool = False
    return_prompt_token_ids: bool = False
    return_token_ids: bool = False

    def used_tools(self) -> tuple[Tool, ...]:
        return () if self.tool_choice == "none" else tuple(tool.to_tool() for tool in self.tools or ())

    def sampling(self, room: int) -> SamplingFields:
        """room: how many ids there can be behind the prompt, the limit where the request sets none."""
        asked = {name: getattr(self, name) for name in ("temperature", "stop_token_ids", "ignore_eos", *_PASSED_ON)}
        limit = self.max_completion_tokens or self.max_tokens or max(room, 1)
        given = {name: value for name, value in asked.items() if value is not None}
        return SamplingFields(max_new_tokens=limit, sampling_seed=self.seed, **given)


_PASSED_ON = ("top_p", "top_k", "min_p", "frequency_penalty", "presence_penalty", "stop", "n")


class ChatAnswers:
    """The answer to one chat request, whole or as a stream of deltas."""

    def __init__(self, chat: ChatFormat, asked: ChatRequest, turn: Turn, served_name: str) -> None:
        self._chat, self._asked, self._turn = chat, asked, turn
        self._head = {"id": turn.rid, "created": int(time.time()), "model": asked.model or served_name}
        self._num_sent_chars = 0

    def whole(self, version: int) -> dict[str, Any]:
        """version: what a turn without an id counts as."""
        turn, asked = self._turn, self._asked
        meta = turn.meta_info(version, with_logprobs=asked.logprobs)
        choice = {"index": 0, "message": self._message(), **self._ending()}
        if asked.logprobs:
            choice["logprobs"] = {
                "content": [
                    {
                        "token": self._chat.decode([token], trim_stop=False, skip_special=False),
                        "logprob": logprob,
                        "bytes": None,
                        "top_logprobs": [],
                    }
                    for token, logprob in zip(turn.ids, turn.logprobs, strict=True)
                ]
            }
        if asked.return_meta_info:
            choice["meta_info"] = meta
        if asked.return_prompt_token_ids:
            choice["prompt_token_ids"] = turn.prompt.tolist()
        if asked.return_token_ids:
            choice["response_token_ids"] = turn.ids
        return {
            "object": "chat.completion",
            **self._head,
            "choices": [choice],
            "usage": self._usage(),
            "metadata": {name: meta[name] for name in ("weight_version", "weight_versions")},
        }

    def chunk(self, version: int) -> dict[str, Any] | None:
        """What has come since the last chunk; None if that is nothing to be shown yet. With tools, a turn is shown when
        it has finished, as only then it is known what is a call."""
        is_over = self._turn.finish_reason is not None
        delta: dict[str, Any] = {}
        if self._asked.used_tools():
            delta = self._message() if is_over else {}
        else:
            text = self._chat.decode(self._turn.ids)
            shown = text if is_over else text.rstrip("\ufffd")  # perhaps the first bytes of a character
            if len(shown) > self._num_sent_chars:
                delta = {"role": "assistant", "content": shown[self._num_sent_chars :]}
                self._num_sent_chars = len(shown)
        if not delta and not is_over:
            return None
        ending = self._ending() if is_over else {"finish_reason": None}
        chunk = {"object": "chat.completion.chunk", **self._head, "choices": [{"index": 0, "delta": delta, **ending}]}
        return chunk | ({"usage": self._usage()} if is_over else {})

    def _message(self) -> dict[str, Any]:
        action = self._chat.parse(self._turn.completed_ids()) if self._asked.used_tools() else Action()
        content = self._chat.decode(self._turn.ids) if not action.calls or action.errors else action.content
        message: dict[str, Any] = {"role": "assistant", "content": content}
        if action.calls:
            message["tool_calls"] = [
                {
                    "id": f"call_{self._turn.rid}_{index}",
                    "index": index,
                    "type": "function",
                    "function": {"name": call.name, "arguments": json.dumps(call.arguments, ensure_ascii=False)},
                }
                for index, call in enumerate(action.calls)
            ]
        return message

    def _ending(self) -> dict[str, Any]:
        reason = self._turn.finish_reason or {}
        kind = reason.get("type")
        if kind == "stop" and "tool_calls" in self._message():
            kind = "tool_calls"
        return {"finish_reason": kind, "matched_stop": reason.get("matched")}

    def _usage(self) -> dict[str, Any]:
        num_prompt, num_sampled = len(self._turn.prompt), len(self._turn.ids)
        return {
            "prompt_tokens": num_prompt,
            "completion_tokens": num_sampled,
            "total_tokens": num_prompt + num_sampled,
            "prompt_tokens_details": {"cached_tokens": self._turn.cached_tokens},
        }
