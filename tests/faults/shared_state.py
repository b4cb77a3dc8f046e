"""Envs that keep what they were told in their module, where all of a process's sessions share it."""

from collections.abc import Callable

from agentrl_jax.env import Action, Env, Message, StepResult
from agentrl_jax.types import Task

DATABASE: list[str] = []


class Writer:
    """Writes what it is told and answers with all that was ever written."""

    def reset(self) -> tuple[Message, ...]:
        return (Message(role="user", content=f"{len(DATABASE)} rows"),)

    def step(self, action: Action) -> StepResult:
        DATABASE.append(action.content)
        return StepResult(messages=(Message(role="user", content=" ".join(DATABASE)),))

    def close(self) -> None:
        DATABASE.append("closed")


def writers() -> Callable[[Task], Env]:
    """The target of an `EnvSource`."""
    return lambda task: Writer()
