"""The three tools, and what is read from a call of them."""

from agentrl_jax.env import Tool, ToolCall


def _tool(name: str, description: str, parameter: str) -> Tool:
    parameters = {
        "type": "object",
        "properties": {parameter: {"type": "string"}},
        "required": [parameter],
        "additionalProperties": False,
    }
    return Tool(name=name, description=description, parameters=parameters)


BASH_ACTION = _tool("bash_action", "Run a bash script and see its output.", "script")
FINISH_ACTION = _tool("finish_action", "End: the task is done.", "thought")
ANSWER_ACTION = _tool("answer_action", "End with the answer to the question.", "answer")
TOOLS = (BASH_ACTION, FINISH_ACTION, ANSWER_ACTION)
PARAMETERS = {BASH_ACTION.name: "script", FINISH_ACTION.name: "thought", ANSWER_ACTION.name: "answer"}

UNKNOWN_TOOL = "error: unknown tool, use bash_action, finish_action or answer_action"
WRONG_ARGUMENTS = {name: f"error: {name} needs the string {parameter}" for name, parameter in PARAMETERS.items()}


class BadCall(Exception):
    """A call that cannot be carried out; the text is the answer to the policy."""


def argument_of(call: ToolCall) -> str:
    """The script, thought or answer that a call gives; a number counts as its text.

    An argument of another name is accepted in its place: the first one given, as AgentBench-FC does. A call of
    finish_action needs none. Raises BadCall for another tool, no argument, or one of another type.
    """
    parameter = PARAMETERS.get(call.name)
    if parameter is None:
        raise BadCall(UNKNOWN_TOOL)
    arguments = call.arguments
    argument = arguments[parameter] if parameter in arguments else next(iter(arguments.values()), None)
    if argument is None and call.name == FINISH_ACTION.name:
        return ""
    if isinstance(argument, int | float) and call.name == ANSWER_ACTION.name:
        return str(argument)
    if not isinstance(argument, str):
        raise BadCall(WRONG_ARGUMENTS[call.name])
    return argument


def bash_call(script: str) -> ToolCall:
    return ToolCall(name=BASH_ACTION.name, arguments={"script": script})


def finish_call(thought: str) -> ToolCall:
    return ToolCall(name=FINISH_ACTION.name, arguments={"thought": thought})


def answer_call(answer: str) -> ToolCall:
    return ToolCall(name=ANSWER_ACTION.name, arguments={"answer": answer})
