"""A family that waits, while it loads, until somebody writes into a file."""

from collections.abc import Callable
from pathlib import Path

from agentrl_jax.env import Env
from agentrl_jax.testing.rogue_envs import RogueEnv
from agentrl_jax.types import Task


def envs(gate: str) -> Callable[[Task], Env]:
    """gate: a FIFO, or a file that is there. A step of these envs hangs."""
    Path(gate).read_text()
    return lambda task: RogueEnv(task=task, deed="hang")
