"""The one tool, and what is read from a call of it.

Texts that answer bad calls are fixed: they never repeat what the policy wrote, so that it cannot lengthen its own
context or place special tokens in it through them.
"""

from agentrl_jax.env import Tool, ToolCall

TAKE_ACTION = Tool(
    name="take_action",
    description="Carry out one available action.",
    parameters={
        "type": "object",
        "properties": {"action": {"type": "string"}},
        "required": ["action"],
        "additionalProperties": False,
    },
)
TOOLS = (TAKE_ACTION,)

UNKNOWN_TOOL = "error: unknown tool, use take_action"
WRONG_ARGUMENTS = "error: take_action needs the string action"


class BadCall(Exception):
    """A call that cannot be carried out; the text is the answer to the policy."""


def action_of(call: ToolCall) -> str:
    """The text of the action that a call asks for.

    An argument of another name is accepted in its place: the first one given, as AgentBench-FC does. Raises BadCall
    for another tool, no argument, or an action that is no string.
    """
    if call.name != TAKE_ACTION.name:
        raise BadCall(UNKNOWN_TOOL)
    arguments = call.arguments
    action = arguments["action"] if "action" in arguments else next(iter(arguments.values()), None)
    if not isinstance(action, str):
        raise BadCall(WRONG_ARGUMENTS)
    return action


def action_call(action: str) -> ToolCall:
    return ToolCall(name=TAKE_ACTION.name, arguments={"action": action})
