"""AgentBench's seven tools, and what is read from a call of them."""

from agentrl_jax.env import Tool, ToolCall

_DESCRIPTIONS = {
    "get_relations": ("List the relations of an entity or a variable.", ("variable",)),
    "get_neighbors": ("Make a variable of what a listed relation leads to.", ("variable", "relation")),
    "intersection": ("Make a variable of what is in both variables.", ("variable1", "variable2")),
    "get_attributes": ("List the attributes of a variable.", ("variable",)),
    "argmax": ("Make a variable of those with the greatest value of a listed attribute.", ("variable", "attribute")),
    "argmin": ("Make a variable of those with the least value of a listed attribute.", ("variable", "attribute")),
    "count": ("Make a variable of the number of entities in a variable.", ("variable",)),
}
PARAMETERS = {name: parameters for name, (_, parameters) in _DESCRIPTIONS.items()}
TOOLS = tuple(
    Tool(
        name=name,
        description=description,
        parameters={
            "type": "object",
            "properties": {parameter: {"type": "string"} for parameter in parameters},
            "required": list(parameters),
            "additionalProperties": False,
        },
    )
    for name, (description, parameters) in _DESCRIPTIONS.items()
)

UNKNOWN_TOOL = f"unknown tool, use one of {', '.join(PARAMETERS)}"
WRONG_ARGUMENTS = {name: f"{name} needs the strings {', '.join(keys)}" for name, keys in PARAMETERS.items()}


class BadCall(Exception):
    """A call that cannot be carried out; the text is the answer to the policy, and never repeats what it wrote."""


def arguments_of(call: ToolCall) -> tuple[str, ...]:
    """The values of a call's arguments in the order of the tool's parameters.

    Right names are matched by name; other names are not looked at, the values are taken in the order given. Raises
    BadCall for an unknown tool, a wrong number of arguments, or a value that is no string.
    """
    names = PARAMETERS.get(call.name)
    if names is None:
        raise BadCall(UNKNOWN_TOOL)
    arguments = call.arguments
    values = [arguments[name] for name in names] if set(arguments) == set(names) else list(arguments.values())
    if len(values) != len(names) or not all(isinstance(value, str) for value in values):
        raise BadCall(WRONG_ARGUMENTS[call.name])
    return tuple(values)


def tool_call(name: str, *values: str) -> ToolCall:
    return ToolCall(name=name, arguments=dict(zip(PARAMETERS[name], values, strict=True)))
