"""What a task is: how its machine is made, what is asked, and what is right."""

import re
from dataclasses import dataclass
from typing import Literal, Protocol

from agentrl_jax.errors import ConfigError
from agentrl_jax.types import Split, Task

Language = Literal["bash", "python"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    language: Language
    code: str

    def __post_init__(self) -> None:
        if self.language not in ("bash", "python"):
            raise ConfigError(f"scripts are of bash or python, got one of {self.language!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """Right is an answer that equals `answer`, spaces around both aside with `is_stripped`, or in which `pattern` is
    found."""

    answer: str = ""
    is_stripped: bool = True
    pattern: str | None = None

    def __post_init__(self) -> None:
        if self.pattern is not None:
            try:
                re.compile(self.pattern)
            except re.error as error:
                raise ConfigError(f"expected a regular expression, got {self.pattern!r}: {error}") from error

    def is_right(self, answer: str) -> bool:
        if self.pattern is not None:
            return re.search(self.pattern, answer) is not None
        return answer.strip() == self.answer.strip() if self.is_stripped else answer == self.answer


@dataclass(frozen=True, slots=True, kw_only=True)
class Chore:
    """One task.

    init: scripts that are run one by one before it begins. start: what is run in the agent's own shell then.
    checks: run in order with the answer, and then the output of each before, as parameters; all must succeed. None
    stands for `example`. Without checks, `match` decides.
    example: a script that solves it, or whose output is the answer. steps: what the expert runs instead.
    answer: what the expert answers, None: what its last command printed. is_change: the machine is to be changed, and
    the expert finishes without an answer.
    """

    description: str
    image: str = "default"
    init: tuple[Script, ...] = ()
    start: Script | None = None
    checks: tuple[Script | None, ...] = ()
    match: Match | None = None
    example: Script | None = None
    steps: tuple[str, ...] = ()
    answer: str | None = None
    is_change: bool = False

    def __post_init__(self) -> None:
        if not self.checks and self.match is None:
            raise ConfigError("a task needs checks or a match")
        if None in self.checks and self.example is None:
            raise ConfigError("a check that runs the example needs one")

    @property
    def expert_steps(self) -> tuple[str, ...]:
        """Commands that solve the task, or print the answer."""
        if self.steps:
            return self.steps
        if self.example is None or self.match is not None:
            return ()
        return (self.example.code,)


class ChoreSource(Protocol):
    """Where tasks come from."""

    @property
    def max_turns(self) -> int: ...

    @property
    def data_sets(self) -> tuple[str, ...]: ...

    def num_tasks(self, split: Split) -> int: ...

    def chore(self, task: Task) -> Chore: ...

    def vocabulary(self) -> tuple[str, ...]: ...
