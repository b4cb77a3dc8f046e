"""Which task comes next: a seeded permutation per env and epoch, and a fixed share per env. Resumable exactly."""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import isfinite
from random import Random
from typing import Any

from agentrl_jax.env import EnvFamily
from agentrl_jax.errors import ConfigError
from agentrl_jax.seeding import derive_seed
from agentrl_jax.types import Split, Task


@dataclass
class _Cursor:
    """Where one env stands. num_drawn counts over all epochs; credit is what it is owed, in tasks (exactly)."""

    family: EnvFamily
    size: int
    share: Fraction
    num_drawn: int = 0
    credit: Fraction = Fraction(0)
    permutation: tuple[int, tuple[int, ...]] = (-1, ())


class TaskSampler:
    """An endless, deterministic sequence of tasks.

    Envs take turns by smooth weighted round-robin: every draw credits each env with its share, and the env that is
    owed most (the first of equals) pays one. After n draws an env has been drawn n × share times, give or take less
    than the number of envs, so that even a share far below one group per batch is kept in the long run.
    """

    def __init__(
        self, families: Sequence[EnvFamily], weights: Mapping[str, float], seed: int, *, split: Split = "train"
    ) -> None:
        names = [family.name for family in families]
        if not names or len(set(names)) != len(names) or set(names) != set(weights):
            raise ConfigError(f"weights must name every env once: envs {names}, weights {sorted(weights)}")
        for name, weight in weights.items():
            if not (isfinite(weight) and weight > 0):
                raise ConfigError(f"the weight of {name!r} must be positive and finite, got {weight}")
        self._seed, self._split = seed, split
        self._requeued: deque[Task] = deque()
        total = sum(map(Fraction, weights.values()))
        self._cursors = {
            family.name: _Cursor(family, family.num_tasks(split), Fraction(weights[family.name]) / total)
            for family in families
        }
        for name, cursor in self._cursors.items():
            if cursor.size < 1:
                raise ConfigError(f"env {name!r} has no task in split {split!r}")

    @property
    def envs(self) -> tuple[str, ...]:
        return tuple(self._cursors)

    def peek(self) -> Task:
        """The task that the next `draw` returns."""
        return self._requeued[0] if self._requeued else self._task(self._next_env())

    def draw(self) -> Task:
        """Return the next task and move on."""
        if self._requeued:
            return self._requeued.popleft()
        name = self._next_env()
        task = self._task(name)
        for cursor in self._cursors.values():
            cursor.credit += cursor.share
        self._cursors[name].credit -= 1
        self._cursors[name].num_drawn += 1
        return task

    def requeue(self, tasks: Iterable[Task]) -> None:
        """Draw `tasks` (in flight when a run was interrupted) before all others, in their order."""
        self._requeued.extend(tasks)

    def _next_env(self) -> str:
        return max(self._cursors, key=lambda name: self._cursors[name].credit + self._cursors[name].share)

    def _task(self, name: str) -> Task:
        cursor = self._cursors[name]
        epoch, position = divmod(cursor.num_drawn, cursor.size)
        if cursor.permutation[0] != epoch:
            order = list(range(cursor.size))
            Random(derive_seed(self._seed, "tasks", name, self._split, epoch)).shuffle(order)
            cursor.permutation = (epoch, tuple(order))
        return cursor.family.task(self._split, cursor.permutation[1][position])

    def state(self) -> dict[str, Any]:
        """Everything that decides what comes next, as plain JSON."""
        return {
            "seed": self._seed,
            "split": self._split,
            "envs": {
                name: {"size": c.size, "num_drawn": c.num_drawn, "credit": str(c.credit)}
                for name, c in self._cursors.items()
            },
            "requeued": [[t.env, t.split, t.index, t.seed] for t in self._requeued],
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on where `state` was taken. Weights may have changed; seed, split, envs and sizes may not.

        Raises ConfigError.
        """
        envs: Mapping[str, Mapping[str, Any]] = state["envs"]
        was = (state["seed"], state["split"], {name: env["size"] for name, env in envs.items()})
        now = (self._seed, self._split, {name: cursor.size for name, cursor in self._cursors.items()})
        if was != now:
            raise ConfigError(f"cannot resume: the saved tasks are (seed, split, sizes) = {was}, now they are {now}")
        for name, cursor in self._cursors.items():
            cursor.num_drawn, cursor.credit = int(envs[name]["num_drawn"]), Fraction(envs[name]["credit"])
        self._requeued = deque(
            Task(env=env, split=split, index=index, seed=seed) for env, split, index, seed in state["requeued"]
        )
