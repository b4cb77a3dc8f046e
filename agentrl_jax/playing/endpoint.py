"""A model behind an OpenAI-compatible endpoint (`/chat/completions`) as a policy. No jax.

Invariants:
- A request that is refused for good (wrong key, unknown model, no such endpoint) ends the evaluation, not an episode.
- One that meets a busy or broken server is sent again, with growing pauses, as long as the turn's deadline allows.
- What cannot be told to every server is not sent: no seed unless it is asked for, no penalties, no truncation.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import trio

from agentrl_jax.engines.http import HttpClient, HttpError, HttpResponse
from agentrl_jax.env import Action, Message, Tool
from agentrl_jax.errors import ConfigError, EngineError
from agentrl_jax.playing.chat_json import ChatAnswer, chat_messages, read_answer
from agentrl_jax.playing.policies import PlayedTurn, Seat, TurnSettings
from agentrl_jax.types import EpisodeEnd, Task

_REFUSED = frozenset({401, 402, 403, 404, 405})
_BUSY = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 529})
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 30.0
_NUM_SHOWN = 300
_LIMIT_FIELD, _OTHER_LIMIT_FIELD = "max_tokens", "max_completion_tokens"
_CONTEXT_WORDS = ("context_length_exceeded", "maximum context length", "context length", "too many tokens")


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointOptions:
    """model: as the endpoint knows it. max_attempts: of a turn, while the server is busy or broken. sends_seed: tell
    the endpoint each turn's seed (32 bits)."""

    model: str
    max_attempts: int = 6
    sends_seed: bool = False


class EndpointPolicy:
    """Implements `PlayingPolicy`. client: its URL ends before /chat/completions."""

    def __init__(self, name: str, client: HttpClient, options: EndpointOptions) -> None:
        self._name, self.client, self.options = name, client, options
        self.limit_field = _LIMIT_FIELD
        """What the endpoint calls the bound on sampled tokens; models that think first know another name only."""

    @property
    def name(self) -> str:
        return self._name

    def join(self, task: Task, tools: Sequence[Tool], episode: str) -> Seat:
        """See `PlayingPolicy.join`."""
        return _EndpointSeat(self, tools)


class _EndpointSeat:
    def __init__(self, policy: EndpointPolicy, tools: Sequence[Tool]) -> None:
        self._policy, self._tools = policy, [tool.to_json() for tool in tools]

    async def play(self, messages: Sequence[Message], settings: TurnSettings) -> PlayedTurn:
        conversation = chat_messages(messages)
        response = await self._ask(lambda: self._body(conversation, settings))
        if response is None:
            return PlayedTurn(action=Action(), message=Message(role="assistant"), end=EpisodeEnd.CONTEXT_LIMIT)
        answer = response.decode(ChatAnswer)
        if not answer.choices:
            raise EngineError(f"{self._policy.name}: an answer without a choice: {_shown(response)}")
        choice, usage = answer.choices[0], answer.usage
        action, message = read_answer(choice.message)
        return PlayedTurn(
            action=action,
            message=message,
            end=EpisodeEnd.TURN_TRUNCATED if choice.finish_reason == "length" else None,
            num_prompt_tokens=usage.prompt_tokens if usage else 0,
            num_sampled_tokens=usage.completion_tokens if usage else 0,
        )

    async def leave(self) -> None:
        await trio.lowlevel.checkpoint()

    def _body(self, conversation: list[dict[str, Any]], settings: TurnSettings) -> dict[str, Any]:
        options = self._policy.options
        body = {
            "model": options.model,
            "messages": conversation,
            "temperature": settings.temperature,
            self._policy.limit_field: settings.max_new_tokens,
        }
        if self._tools:
            body["tools"] = self._tools
        if options.sends_seed:
            body["seed"] = settings.seed % 2**31
        return body

    async def _ask(self, body: Callable[[], dict[str, Any]]) -> HttpResponse | None:
        """The answer; None if the conversation is longer than the model's context."""
        pause_s, problem = _FIRST_PAUSE_S, ""
        for attempt in range(self._policy.options.max_attempts):
            if attempt:
                await trio.sleep(pause_s)
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
            try:
                response = await self._send(body)
            except HttpError as error:
                problem = str(error)
                continue
            if response.status == 200:
                return response
            problem = f"status {response.status}: {_shown(response)}"
            if response.status in _REFUSED:
                raise ConfigError(
                    f"{self._policy.name} at {self._policy.client.url} refuses model "
                    f"{self._policy.options.model!r}: {problem}"
                )
            if response.status in _BUSY:
                continue
            if _is_context_limit(response):
                return None
            raise EngineError(f"{self._policy.name}: {problem}")
        raise EngineError(f"{self._policy.name}: gave up after {self._policy.options.max_attempts} attempts: {problem}")

    async def _send(self, body: Callable[[], dict[str, Any]]) -> HttpResponse:
        """One attempt, which ends with another request if the model knows the bound by another name."""
        sent = body()
        response = await self._policy.client.post("/chat/completions", sent, is_idempotent=True)
        # Another episode may have found it out while this one was waiting.
        is_misnamed = response.status in (400, 422) and _LIMIT_FIELD in sent and _OTHER_LIMIT_FIELD in _shown(response)
        if is_misnamed and not _is_context_limit(response):
            self._policy.limit_field = _OTHER_LIMIT_FIELD
            response = await self._policy.client.post("/chat/completions", body(), is_idempotent=True)
        return response


def _is_context_limit(response: HttpResponse) -> bool:
    text = _shown(response).lower()
    return response.status in (400, 413, 422) and any(word in text for word in _CONTEXT_WORDS)


def _shown(response: HttpResponse) -> str:
    """The server's own words, if it has any."""
    text = response.body.decode("utf-8", "replace")
    try:
        found: Any = msgspec.json.decode(response.body)
    except msgspec.DecodeError:
        return text[:_NUM_SHOWN]
    error = found.get("error", found) if isinstance(found, dict) else found
    if isinstance(error, dict) and isinstance(error.get("message"), str):
        code = error.get("code")
        return f"{error['message']}{f' ({code})' if code else ''}"[:_NUM_SHOWN]
    return text[:_NUM_SHOWN]
