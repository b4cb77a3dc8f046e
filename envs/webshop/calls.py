"""The two tools, and what is read from a call of them.

Texts that answer bad calls are fixed: they never repeat what the policy wrote.
"""

from agentrl_jax.env import Tool, ToolCall


def _tool(name: str, description: str, parameter: str) -> Tool:
    parameters = {
        "type": "object",
        "properties": {parameter: {"type": "string"}},
        "required": [parameter],
        "additionalProperties": False,
    }
    return Tool(name=name, description=description, parameters=parameters)


SEARCH_ACTION = _tool("search_action", "Search for products.", "keywords")
CLICK_ACTION = _tool("click_action", "Click one of the clickables.", "value")
TOOLS = (SEARCH_ACTION, CLICK_ACTION)
PARAMETERS = {SEARCH_ACTION.name: "keywords", CLICK_ACTION.name: "value"}

UNKNOWN_TOOL = "error: unknown tool, use search_action or click_action"
WRONG_ARGUMENTS = {name: f"error: {name} needs the string {parameter}" for name, parameter in PARAMETERS.items()}


class BadCall(Exception):
    """A call that cannot be carried out; the text is the answer to the policy."""


def argument_of(call: ToolCall) -> str:
    """The keywords or the value that a call gives.

    An argument of another name is accepted in its place: the first one given, as AgentBench-FC does. Raises BadCall
    for another tool, no argument, or one that is no string.
    """
    parameter = PARAMETERS.get(call.name)
    if parameter is None:
        raise BadCall(UNKNOWN_TOOL)
    arguments = call.arguments
    argument = arguments[parameter] if parameter in arguments else next(iter(arguments.values()), None)
    if not isinstance(argument, str):
        raise BadCall(WRONG_ARGUMENTS[call.name])
    return argument


def search_call(keywords: str) -> ToolCall:
    return ToolCall(name=SEARCH_ACTION.name, arguments={"keywords": keywords})


def click_call(value: str) -> ToolCall:
    return ToolCall(name=CLICK_ACTION.name, arguments={"value": value})
