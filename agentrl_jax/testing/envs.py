"""Scripted environments: how many turns, which reward, how slow, and where they fail or hang.

`ScriptedSession` lives in virtual time; `ScriptedEnv` is the same script as a synchronous `Env`, and `ScriptedFamily`
a data set of such. All of them count what happens to them in a `SessionLog`.
"""

import math
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Literal

import trio

from agentrl_jax.controller.sessions import SessionFactory, WithoutQueue
from agentrl_jax.env import Action, Message, StepResult, Tool
from agentrl_jax.errors import EnvError
from agentrl_jax.seeding import derive_seed
from agentrl_jax.types import EpisodeEnd, Split, Task

RESET = 0
"""The `fault_at` of a fault in the reset; n >= 1 is the n-th step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvScript:
    """What an environment does, whatever the policy says.

    rewards: one per step; with the last one the episode ends as `end` (None: it goes on without reward).
    reset_s, step_s, close_s: virtual seconds. fault: at `fault_at`, raise an EnvError or hang forever.
    """

    rewards: tuple[float, ...] = (1.0,)
    end: EpisodeEnd | None = EpisodeEnd.COMPLETED
    reset_s: float = 0.0
    step_s: float = 0.0
    close_s: float = 0.0
    fault: Literal["none", "error", "hang"] = "none"
    fault_at: int = RESET

    def reset(self, task: Task) -> tuple[Message, ...]:
        return (Message(role="user", content=f"Do {task.key}."),)

    def step(self, number: int, action: Action) -> StepResult:
        """The answer to the `number`-th action, counted from 1."""
        is_last = number >= len(self.rewards)
        answers = tuple(Message(role="tool", content=f"{call.name} done") for call in action.calls)
        return StepResult(
            messages=answers or (Message(role="user", content=f"Turn {number} is over."),),
            reward=self.rewards[number - 1] if number <= len(self.rewards) else 0.0,
            end=self.end if is_last else None,
        )

    def raise_fault(self, number: int, task: Task) -> None:
        """Raise the scripted EnvError if it is due."""
        if self.fault == "error" and self.fault_at == number:
            raise EnvError(f"{task.key}: failed on purpose at {number}")

    def hangs_at(self, number: int) -> bool:
        return self.fault == "hang" and self.fault_at == number


ScriptFor = Callable[[Task], EnvScript]


@dataclass
class SessionLog:
    """What happened to all sessions of a test. num_open is zero once everything has been closed exactly once."""

    num_made: int = 0
    num_started: int = 0
    num_steps: int = 0
    num_closed: int = 0
    num_closed_again: int = 0
    peak_open: int = 0

    @property
    def num_open(self) -> int:
        return self.num_made - self.num_closed

    def made(self) -> None:
        self.num_made += 1
        self.peak_open = max(self.peak_open, self.num_open)


class ScriptedSession(WithoutQueue):
    """Implements `controller.sessions.Session` in virtual time."""

    def __init__(self, task: Task, script: EnvScript, log: SessionLog) -> None:
        self._task, self._script, self._log = task, script, log
        self._num_steps = 0
        self._is_closed = False
        log.made()

    async def start(self) -> tuple[Message, ...]:
        self._log.num_started += 1
        await self._take_time(RESET, self._script.reset_s)
        return self._script.reset(self._task)

    async def interact(self, action: Action) -> StepResult:
        self._num_steps += 1
        self._log.num_steps += 1
        await self._take_time(self._num_steps, self._script.step_s)
        return self._script.step(self._num_steps, action)

    async def close(self) -> None:
        self._log.num_closed_again += self._is_closed
        self._log.num_closed += not self._is_closed
        self._is_closed = True
        await trio.sleep(self._script.close_s)

    async def _take_time(self, number: int, seconds: float) -> None:
        await trio.sleep(math.inf if self._script.hangs_at(number) else seconds)
        self._script.raise_fault(number, self._task)


def scripted_sessions(script: EnvScript | ScriptFor, log: SessionLog) -> SessionFactory:
    """Sessions that follow one script, or one per task."""
    return lambda task: ScriptedSession(task, script if isinstance(script, EnvScript) else script(task), log)


@dataclass(kw_only=True)
class ScriptedEnv:
    """Implements `env.Env`. Takes no time; a hang lasts until `hang_until` is set."""

    task: Task
    script: EnvScript = field(default_factory=EnvScript)
    log: SessionLog = field(default_factory=SessionLog)
    hang_until: threading.Event = field(default_factory=threading.Event)
    num_steps: int = 0
    is_closed: bool = False

    def __post_init__(self) -> None:
        self.log.made()

    def reset(self) -> tuple[Message, ...]:
        self.log.num_started += 1
        self._fail_or_hang(RESET)
        return self.script.reset(self.task)

    def step(self, action: Action) -> StepResult:
        self.num_steps += 1
        self.log.num_steps += 1
        self._fail_or_hang(self.num_steps)
        return self.script.step(self.num_steps, action)

    def close(self) -> None:
        self.log.num_closed_again += self.is_closed
        self.log.num_closed += not self.is_closed
        self.is_closed = True

    def _fail_or_hang(self, number: int) -> None:
        if self.script.hangs_at(number):
            self.hang_until.wait()
        self.script.raise_fault(number, self.task)


@dataclass(kw_only=True)
class ScriptedFamily:
    """Implements `env.EnvFamily`: `size` tasks per split that all follow one script."""

    name: str = "scripted"
    size: int = 8
    script: EnvScript = field(default_factory=EnvScript)
    tools: tuple[Tool, ...] = (Tool(name="act", description="Does it.", parameters={"type": "object"}),)
    max_turns: int = 4
    log: SessionLog = field(default_factory=SessionLog)

    def num_tasks(self, split: Split) -> int:
        return self.size

    def task(self, split: Split, index: int) -> Task:
        return Task(env=self.name, split=split, index=index, seed=derive_seed(self.name, split, index))

    def make(self, task: Task) -> ScriptedEnv:
        return ScriptedEnv(task=task, script=self.script, log=self.log)

    def demonstrate(self, task: Task, rng: Random, *, noise: float) -> tuple[Message, ...]:
        """The initial messages, and one assistant turn per step with its answer."""
        messages = [*self.script.reset(task)]
        for number in range(1, len(self.script.rewards) + 1):
            text = "noise" if rng.random() < noise else "expert"
            answer = self.script.step(number, Action(content=text))
            messages += [Message(role="assistant", content=text), *answer.messages]
        return tuple(messages)

    def vocabulary(self) -> tuple[str, ...]:
        return ()
