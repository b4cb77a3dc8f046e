"""A question with its graph and its answers, and what makes them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from agentrl_jax.env import Message
from agentrl_jax.types import Split, Task
from envs.kg_tools.desk import World
from envs.kg_tools.graph import Backend
from envs.kg_tools.programs import Program


@dataclass(frozen=True, kw_only=True, eq=False)
class Problem:
    """gold: a program that answers `answers`. backend: makes what one episode asks. example: shown before."""

    question: str
    world: World
    gold: Program
    answers: frozenset[str]
    backend: Callable[[], Backend]
    example: tuple[Message, ...] = ()

    @property
    def text(self) -> str:
        return f"{self.question}\nEntities: [{', '.join(self.world.entities)}]"


class ProblemSource(Protocol):
    """Where problems come from."""

    @property
    def data_sets(self) -> tuple[str, ...]: ...

    def num_tasks(self, split: Split) -> int: ...

    def problem(self, task: Task) -> Problem: ...

    def vocabulary(self) -> tuple[str, ...]: ...
