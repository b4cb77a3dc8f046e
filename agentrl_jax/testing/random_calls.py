"""Calls that fit a tool's schema and mean nothing: what a policy that has learnt nothing but the format would do."""

from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

from agentrl_jax.env import Tool, ToolCall


def random_call(rng: Random, tools: Sequence[Tool], said: str, words: Sequence[str]) -> ToolCall:
    """A call of one of `tools`. Strings are drawn from the words of `said`, what the env said last, and `words`."""
    tool = rng.choice(tools)
    properties: Mapping[str, Any] = tool.parameters.get("properties", {})
    choices = [word.strip(".,:;[]()'\"") for word in said.split()[-200:]] + list(words[:200]) or ["x"]
    return ToolCall(name=tool.name, arguments={name: _value(rng, kind, choices) for name, kind in properties.items()})


def _value(rng: Random, schema: Mapping[str, Any], words: Sequence[str]) -> Any:
    if "enum" in schema:
        return rng.choice(schema["enum"])
    match schema.get("type"):
        case "integer":
            return rng.randint(-10, 100)
        case "number":
            return rng.uniform(-10.0, 100.0)
        case "boolean":
            return rng.random() < 0.5
        case "array":
            items = schema.get("items", {})
            return [_value(rng, items, words) for _ in range(rng.randint(0, 3))]
        case "object":
            return {name: _value(rng, kind, words) for name, kind in schema.get("properties", {}).items()}
        case _:
            return " ".join(rng.choice(words) for _ in range(rng.randint(1, 3)))
