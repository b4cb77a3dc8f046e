"""The scripted expert, which shows whole episodes for supervised warm-up."""

from random import Random

from agentrl_jax.env import Action, Env, Message, ToolCall
from agentrl_jax.errors import ConfigError
from envs.dbbench.calls import commit_call, sql_call
from envs.dbbench.problems import Problem, literal, quoted

# Of the random actions: how many commit (and so end the episode, mostly wrongly), and look for a value of the table.
COMMIT_FRAC = 0.1
SEARCH_FRAC = 0.75


def demonstrate(env: Env, problem: Problem, rng: Random, *, noise: float, max_turns: int) -> tuple[Message, ...]:
    """Play `env` from reset to its end; returns the messages in the form an episode has.

    A turn is random with probability `noise`, unless the expert needs all the turns that are left: every demonstration
    ends with a commit within `max_turns`. Random statements change nothing. The caller closes `env`.
    """
    if not 0.0 <= noise <= 1.0:
        raise ConfigError(f"noise must be between 0 and 1, got {noise}")
    messages = list(env.reset())
    steps = [sql_call(statement) for statement in problem.steps] + [commit_call(problem.answer or ())]
    for turns_left in range(max_turns, 0, -1):
        is_random = turns_left > len(steps) and rng.random() < noise
        call = random_call(problem, rng) if is_random else steps.pop(0)
        result = env.step(Action(calls=(call,)))
        messages += (Message(role="assistant", tool_calls=(call,)), *result.messages)
        if result.end is not None:
            break
    return tuple(messages)


def random_call(problem: Problem, rng: Random) -> ToolCall:
    """A well-formed call that need not make sense."""
    filled = [table for table in problem.tables if table.rows]
    if not filled:
        return sql_call("SHOW TABLES")
    table = rng.choice(filled)
    position, key = (rng.randrange(len(table.columns)) for _ in range(2))
    row = rng.choice(table.rows)
    if rng.random() < COMMIT_FRAC:
        return commit_call((row[position],) if problem.answer is not None else ())
    statement = f"SELECT {_name(table.columns[position])} FROM {_name(table.name)}"
    if rng.random() < SEARCH_FRAC:
        statement += f" WHERE {_name(table.columns[key])} = {literal(row[key])}"
    return sql_call(statement)


def _name(name: str) -> str:
    """Plain words stay plain: the fewer marks, the sooner a small model copies them."""
    return name if name.isascii() and name.isalpha() else quoted(name)
