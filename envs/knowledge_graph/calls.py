"""The two tools, and what is read from a call of them.

Texts that answer bad calls are fixed: they never repeat what the policy wrote, so that it cannot lengthen its own
context or place special tokens in it through them.
"""

from agentrl_jax.env import Json, Tool, ToolCall


def _strings(*names: str) -> Json:
    return {
        "type": "object",
        "properties": {name: {"type": "string"} for name in names},
        "required": list(names),
        "additionalProperties": False,
    }


TOOLS = (
    Tool(name="query", description="What a relation leads to.", parameters=_strings("entity", "relation")),
    Tool(name="answer", description="Give the final answer.", parameters=_strings("value")),
)
PARAMETERS = {tool.name: tuple(tool.parameters["required"]) for tool in TOOLS}

UNKNOWN_TOOL = "error: unknown tool, use query or answer"
UNKNOWN_ENTITY = "error: unknown entity"
UNKNOWN_RELATION = "error: unknown relation"
WRONG_ARGUMENTS = {name: f"error: {name} needs the strings {', '.join(keys)}" for name, keys in PARAMETERS.items()}


class BadCall(Exception):
    """A call that cannot be carried out; the text is the answer to the policy."""


def arguments_of(call: ToolCall) -> tuple[str, ...]:
    """The values of a call's arguments in the order of the tool's parameters.

    Right names are matched by name. Other names are not looked at: the values are taken in the order given, as
    AgentBench-FC does. Raises BadCall for an unknown tool, a wrong number of arguments, or a value that is no string.
    """
    names = PARAMETERS.get(call.name)
    if names is None:
        raise BadCall(UNKNOWN_TOOL)
    arguments = call.arguments
    values = [arguments[name] for name in names] if set(arguments) == set(names) else list(arguments.values())
    if len(values) != len(names) or not all(isinstance(value, str) for value in values):
        raise BadCall(WRONG_ARGUMENTS[call.name])
    return tuple(values)


def query_call(entity: str, relation: str) -> ToolCall:
    return ToolCall(name="query", arguments={"entity": entity, "relation": relation})


def answer_call(value: str) -> ToolCall:
    return ToolCall(name="answer", arguments={"value": value})
