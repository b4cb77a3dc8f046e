"""Functions as tools, and whether a call fits its function."""

from collections.abc import Mapping
from typing import Any

from agentrl_jax.env import Tool

# The documents' names for types, in JSON schema's words.
_JSON_TYPES = {"dict": "object", "float": "number"}
_CONTAINERS: dict[str, type] = {"array": list, "object": dict}


class BadArguments(Exception):
    """Arguments that do not fit; the text says how, in words of the function's document alone."""


def tool_of(document: Mapping[str, Any]) -> Tool:
    """A function's document as a tool."""
    return Tool(
        name=document["name"], description=document["description"], parameters=_json_schema(document["parameters"])
    )


def _json_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    converted = dict(schema)
    if "type" in schema:
        converted["type"] = _JSON_TYPES.get(schema["type"], schema["type"])
    if "properties" in schema:
        converted["properties"] = {name: _json_schema(inner) for name, inner in schema["properties"].items()}
    if "items" in schema:
        converted["items"] = _json_schema(schema["items"])
    return converted


def check_arguments(tool: Tool, arguments: Mapping[str, Any]) -> None:
    """Raise BadArguments unless the arguments are the tool's: all it needs, no others, lists where they belong.

    A string, number, boolean or null in the place of another of these is left to the program, as BFCL leaves it: some
    of its answers expect a program to refuse one.
    """
    properties: Mapping[str, Any] = tool.parameters["properties"]
    required = tool.parameters.get("required", ())
    missing = [name for name in required if name not in arguments]
    if missing:
        raise BadArguments(f"{tool.name} needs {', '.join(missing)}")
    if any(name not in properties for name in arguments):
        raise BadArguments(f"{tool.name} takes only {', '.join(properties) or 'no arguments'}")
    for name, value in arguments.items():
        if not _fits(properties[name], value):
            raise BadArguments(f"{name} must be of type {properties[name]['type']}")


def _fits(schema: Mapping[str, Any], value: object) -> bool:
    if not isinstance(value, list | dict):
        return schema["type"] not in _CONTAINERS or value is None
    if not isinstance(value, _CONTAINERS.get(schema["type"], ())):
        return False
    return isinstance(value, dict) or all(_fits(schema["items"], item) for item in value)
