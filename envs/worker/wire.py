"""What a worker and a controller say of a session, as JSON: assistant turns in, messages, status and reward out.

Only this file knows the shapes of both sides. The keys and their order are those of AgentRL's own worker.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agentrl_jax.env import Action, Message, StepResult, ToolCall
from agentrl_jax.rendering.json_calls import Malformed, numbered, to_call

RUNNING = "running"
TASK_ERROR = "task error"
TASK_LIMIT = "task limit reached"
CANCELLED = "cancelled"


class BadTurn(Exception):
    """Messages that are no assistant turn: the caller, not the policy, is at fault."""


class NoSuchSession(Exception):
    """The session is not there, or no longer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """A worker's answer to a start or a turn.

    messages: what is new to the policy. status: one of the protocol's; the session is over unless it is `running`.
    reward: what this answer adds to the episode's. metric: figures beside it. result: what a finished session leaves
    for `calculate_overall`; it is not sent with the answer.
    """

    messages: tuple[Mapping[str, Any], ...] = ()
    tools: tuple[Any, ...] | None = None
    status: str = RUNNING
    reward: float = 0
    metric: Mapping[str, Any] = field(default_factory=dict)
    result: Any = None

    @property
    def is_over(self) -> bool:
        return self.status != RUNNING

    def to_json(self) -> dict[str, Any]:
        return {
            "messages": list(self.messages),
            "tools": None if self.tools is None else list(self.tools),
            "status": self.status,
            "finish": self.is_over,
            "reward": self.reward,
            "metric": dict(self.metric),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class AssistantTurn:
    """An assistant turn with the ids of its calls.

    call_ids: of the calls of `action`, then of those that were malformed. places: where each of these stood.
    """

    action: Action
    call_ids: tuple[str, ...] = ()
    places: tuple[int, ...] = ()

    def answer(self, result: StepResult) -> tuple[dict[str, Any], ...]:
        """The env's messages with the ids that they answer, in the order in which the calls stood."""
        tools = [message for message in result.messages if message.role == "tool"]
        others = [message for message in result.messages if message.role != "tool"]
        known = list(zip(self.places, self.call_ids, tools, strict=False))
        answers = [
            {"content": message.content, "role": "tool", "tool_call_id": call_id}
            for _, call_id, message in sorted(known, key=lambda item: item[0])
        ]
        return (*answers, *(message_to_json(message) for message in (*tools[len(known) :], *others)))


def message_to_json(message: Message) -> dict[str, Any]:
    """A message of an env, which has no calls."""
    return {"role": message.role, "content": message.content}


def check_assistant(messages: object) -> list[dict[str, Any]]:
    """`messages` if they are assistant messages, at least one. Raises BadTurn."""
    if not isinstance(messages, list) or not messages:
        raise BadTurn("messages must be a list of at least one assistant message")
    for message in messages:
        if not isinstance(message, dict) or message.get("role") != "assistant":
            raise BadTurn("every message must be an object with the role assistant")
        if not isinstance(message.get("content"), str | list | None):
            raise BadTurn("content must be a string, a list of parts, or null")
        if not isinstance(message.get("tool_calls"), list | None):
            raise BadTurn("tool_calls must be a list or null")
    return messages


def read_turn(messages: object) -> AssistantTurn:
    """The turn that assistant messages spell; calls of several messages are one turn's.

    A call that cannot be read is the policy's fault: it becomes an error of the action. Raises BadTurn.
    """
    given = check_assistant(messages)
    raw = [call for message in given for call in message.get("tool_calls") or ()]
    calls: list[tuple[int, str, ToolCall]] = []
    errors: list[tuple[int, str, str]] = []
    for place, call in enumerate(raw):
        call_id = call.get("id") if isinstance(call, dict) else None
        call_id = call_id if isinstance(call_id, str) and call_id else f"call_{place + 1}"
        try:
            calls.append((place, call_id, to_call(call.get("function") if isinstance(call, dict) else call)))
        except Malformed as problem:
            errors.append((place, call_id, numbered(problem, place + 1)))
    action = Action(
        content="".join(_text(message.get("content")) for message in given),
        calls=tuple(call for _, _, call in calls),
        errors=tuple(text for _, _, text in errors),
    )
    order = [(place, call_id) for place, call_id, _ in (*calls, *errors)]
    return AssistantTurn(
        action=action, call_ids=tuple(call_id for _, call_id in order), places=tuple(place for place, _ in order)
    )


def _text(content: str | Sequence[Any] | None) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    texts = [part.get("text") for part in content if isinstance(part, dict) and part.get("type") == "text"]
    return "".join(text for text in texts if isinstance(text, str))


def dump(value: Any) -> bytes:
    """Strict JSON, in ASCII: what a policy or a task wrote may hold half a surrogate pair. Raises ValueError."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False).encode("ascii")


def is_finite(value: object) -> bool:
    """Whether `value` is a number that JSON can carry."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
