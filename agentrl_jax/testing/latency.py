"""Environments that take their time: any family, or any sessions, with a long-tailed latency before every step.

What a step takes is a pure function of (seed, task, instance, turn), where the instances of a task are counted in
the order in which they are made. So the members of a group differ, as they do on real workers, and yet a group takes
the same set of latencies whatever runs beside it: runs of different pace are comparable task by task.
"""

import math
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from statistics import NormalDist

import trio

from agentrl_jax.controller.sessions import Session, SessionFactory
from agentrl_jax.env import Action, Env, EnvFamily, Message, StepResult, Tool
from agentrl_jax.errors import ConfigError
from agentrl_jax.seeding import derive_seed
from agentrl_jax.types import Split, Task


@dataclass(frozen=True, slots=True, kw_only=True)
class StepLatency:
    """Seconds of one step: exp(ln median_s + sigma × N(0, 1)), clipped to [least_s, most_s].

    With the defaults the mean is 0.19 s; one step in eight takes more than 0.37 s, one in fifteen the whole 0.5 s.
    Raises ConfigError unless 0 < least_s <= median_s <= most_s < inf and sigma >= 0.
    """

    median_s: float = 0.15
    sigma: float = 0.8
    least_s: float = 0.05
    most_s: float = 0.5
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.least_s <= self.median_s <= self.most_s < math.inf:
            raise ConfigError(
                "a latency needs 0 < least_s <= median_s <= most_s < inf, got "
                f"{self.least_s}, {self.median_s} and {self.most_s}"
            )
        if not 0 <= self.sigma < math.inf:
            raise ConfigError(f"sigma must be finite and >= 0, got {self.sigma}")

    def seconds(self, task: Task, instance: int, turn: int) -> float:
        """How long step `turn` of the `instance`-th env of `task` takes; both are counted from 0."""
        if not self.sigma:
            return self.median_s
        bits = derive_seed(self.seed, "latency", task.key, instance, turn) >> 10
        quantile = (bits + 0.5) / 2**53
        drawn = math.exp(NormalDist(math.log(self.median_s), self.sigma).inv_cdf(quantile))
        return min(max(drawn, self.least_s), self.most_s)


class _Instances:
    """Counts the envs made for each task, from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[Task] = Counter()

    def next_of(self, task: Task) -> int:
        with self._lock:
            instance = self._counts[task]
            self._counts[task] += 1
            return instance


@dataclass(kw_only=True, eq=False)
class DelayedEnv:
    """Implements `env.Env`: `env`, with the latency of its instance before every step. Blocks its thread."""

    env: Env
    task: Task
    instance: int
    latency: StepLatency
    sleep: Callable[[float], object] = time.sleep
    num_steps: int = 0

    def reset(self) -> tuple[Message, ...]:
        return self.env.reset()

    def step(self, action: Action) -> StepResult:
        turn, self.num_steps = self.num_steps, self.num_steps + 1
        self.sleep(self.latency.seconds(self.task, self.instance, turn))
        return self.env.step(action)

    def close(self) -> None:
        self.env.close()


@dataclass(kw_only=True, eq=False)
class DelayedFamily:
    """Implements `env.EnvFamily`: `family`, whose envs are slow in real time. Demonstrations take no time.

    sleep: what passes the time, in seconds; tests record it instead.
    """

    family: EnvFamily
    latency: StepLatency = field(default_factory=StepLatency)
    sleep: Callable[[float], object] = time.sleep
    _instances: _Instances = field(default_factory=_Instances, init=False, repr=False)

    @property
    def name(self) -> str:
        return self.family.name

    @property
    def tools(self) -> tuple[Tool, ...]:
        return self.family.tools

    @property
    def max_turns(self) -> int:
        return self.family.max_turns

    def num_tasks(self, split: Split) -> int:
        return self.family.num_tasks(split)

    def task(self, split: Split, index: int) -> Task:
        return self.family.task(split, index)

    def make(self, task: Task) -> DelayedEnv:
        instance = self._instances.next_of(task)
        return DelayedEnv(
            env=self.family.make(task), task=task, instance=instance, latency=self.latency, sleep=self.sleep
        )

    def demonstrate(self, task: Task, rng: Random, *, noise: float) -> tuple[Message, ...]:
        return self.family.demonstrate(task, rng, noise=noise)

    def vocabulary(self) -> tuple[str, ...]:
        return self.family.vocabulary()


@dataclass(kw_only=True, eq=False)
class DelayedSession:
    """Implements `controller.sessions.Session`: `session`, with its latency on trio's (virtual) clock."""

    session: Session
    task: Task
    instance: int
    latency: StepLatency
    num_steps: int = 0

    async def reserve(self) -> None:
        await self.session.reserve()

    async def start(self) -> tuple[Message, ...]:
        return await self.session.start()

    async def interact(self, action: Action) -> StepResult:
        turn, self.num_steps = self.num_steps, self.num_steps + 1
        await trio.sleep(self.latency.seconds(self.task, self.instance, turn))
        return await self.session.interact(action)

    async def close(self) -> None:
        await self.session.close()


def delayed_sessions(sessions: SessionFactory, latency: StepLatency) -> SessionFactory:
    """Sessions of `sessions` with the latency that the envs of a `DelayedFamily` have, in virtual time."""
    instances = _Instances()
    return lambda task: DelayedSession(
        session=sessions(task), task=task, instance=instances.next_of(task), latency=latency
    )
