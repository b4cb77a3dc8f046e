"""Tool calls beyond an episode's budget: they are answered by a fixed notice, and the env never sees them."""

from dataclasses import replace

from agentrl_jax.env import Action, Message, StepResult

NOT_EXECUTED = "not executed: too many calls"


def within_budget(action: Action, num_allowed: float) -> Action:
    """`action` with its first `num_allowed` calls only (infinity: all of them)."""
    calls = action.calls[: int(min(num_allowed, len(action.calls)))]
    return replace(action, calls=calls, num_bare_calls=min(action.num_bare_calls, len(calls)))


def answering_all(result: StepResult, *, num_executed: int, num_calls: int) -> StepResult:
    """`result`, the answer to the first `num_executed` of a turn's calls, with a notice for each of the others.

    The notices follow the answers of the executed calls: one tool message per call, in call order.
    """
    if num_executed == num_calls:
        return result
    notice = Message(role="tool", content=NOT_EXECUTED)
    executed, rest = result.messages[:num_executed], result.messages[num_executed:]
    return replace(result, messages=(*executed, *[notice] * (num_calls - num_executed), *rest))
