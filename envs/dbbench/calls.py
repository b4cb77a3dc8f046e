"""The two tools, and what is read from a call of them."""

from collections.abc import Sequence

from agentrl_jax.env import Json, Tool, ToolCall


def _one(name: str, schema: Json) -> Json:
    return {"type": "object", "properties": {name: schema}, "required": [name], "additionalProperties": False}


EXECUTE_SQL = Tool(
    name="execute_sql",
    description="Execute one MySQL statement and see its raw result.",
    parameters=_one("query", {"type": "string"}),
)
COMMIT_FINAL_ANSWER = Tool(
    name="commit_final_answer",
    description="End with the values that answer the question; anything, if the task was to change the database.",
    parameters=_one("answers", {"type": "array", "items": {"type": "string"}}),
)
TOOLS = (EXECUTE_SQL, COMMIT_FINAL_ANSWER)

# AgentBench-FC's text.
UNKNOWN_TOOL = "Invalid function call. Please call a tool instead."
NO_QUERY = "Error executing query: execute_sql needs the string query"
NO_ANSWERS = "Error: commit_final_answer needs the list answers"


class BadCall(Exception):
    """A call that cannot be carried out; the text is the answer to the policy."""


def argument_of(call: ToolCall) -> object:
    """The one argument of a call of a known tool.

    An argument of another name is accepted in its place: the first one given, as AgentBench-FC does. Raises BadCall
    for another tool, no argument, or a query that is no string.
    """
    if call.name == EXECUTE_SQL.name:
        name, missing = "query", NO_QUERY
    elif call.name == COMMIT_FINAL_ANSWER.name:
        name, missing = "answers", NO_ANSWERS
    else:
        raise BadCall(UNKNOWN_TOOL)
    if not call.arguments:
        raise BadCall(missing)
    value = call.arguments[name] if name in call.arguments else next(iter(call.arguments.values()))
    if name == "query" and not isinstance(value, str):
        raise BadCall(missing)
    return value


def sql_call(query: str) -> ToolCall:
    return ToolCall(name=EXECUTE_SQL.name, arguments={"query": query})


def commit_call(answers: Sequence[str]) -> ToolCall:
    return ToolCall(name=COMMIT_FINAL_ANSWER.name, arguments={"answers": list(answers)})
