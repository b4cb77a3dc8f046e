"""The plain JSON in which a template expects messages: OpenAI's, which most read, or that of GLM-4's own template."""

from collections.abc import Callable, Iterable
from typing import Any

from agentrl_jax.env import Message
from agentrl_jax.rendering.json_calls import dump_json
from agentrl_jax.rendering.templates import message_to_json

MessageShape = Callable[[Iterable[Message]], list[dict[str, Any]]]


def openai_shape(messages: Iterable[Message]) -> list[dict[str, Any]]:
    """One object a message, its calls in `tool_calls`."""
    return [message_to_json(message) for message in messages]


def metadata_shape(messages: Iterable[Message]) -> list[dict[str, Any]]:
    """GLM-4's: a call is an assistant message of its own with the name as `metadata`; results are observations."""
    shaped: list[dict[str, Any]] = []
    for message in messages:
        role = "observation" if message.role == "tool" else message.role
        if message.content or not message.tool_calls:
            shaped.append({"role": role, "content": message.content})
        shaped += [
            {"role": role, "metadata": call.name, "content": dump_json(call.arguments)} for call in message.tool_calls
        ]
    return shaped


SHAPES: tuple[MessageShape, ...] = (openai_shape, metadata_shape)
