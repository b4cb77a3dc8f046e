"""Which task comes next: a seeded permutation per env and epoch, and a fixed share per env. Resumable exactly.

A draw depends on the draws before it and on the success rates that `observe` was told, never on time. `state` is all
of it; and `replay` follows draws whose positions a journal knows, whatever was or was not observed in between.
"""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from agentrl_jax.algo.metrics import is_success
from agentrl_jax.controller.curriculum import Curriculum, CurriculumConfig
from agentrl_jax.controller.quotas import Quotas
from agentrl_jax.controller.slots import EpisodeTimes
from agentrl_jax.env import EnvFamily
from agentrl_jax.errors import ConfigError
from agentrl_jax.seeding import derive_seed
from agentrl_jax.types import Group, Split, Task


@dataclass
class _Cursor:
    """Where one env stands. position: tasks passed, over all epochs, drawn or not; num_drawn: those that were drawn."""

    family: EnvFamily
    size: int
    position: int = 0
    num_drawn: int = 0
    orders: dict[int, tuple[int, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvTasks:
    """A snapshot of one env of a `TaskSampler`.

    share: of the draws. epoch: passes over its tasks so far, a fraction included. num_outside: tasks that the
    curriculum passes over at present. episode_s: smoothed time of a group, None before the first has ended.
    """

    num_tasks: int
    num_drawn: int
    share: float
    epoch: float
    num_outside: int
    episode_s: float | None


class TaskSampler:
    """An endless, deterministic sequence of tasks: the envs take turns as `Quotas` says."""

    def __init__(
        self,
        families: Sequence[EnvFamily],
        weights: Mapping[str, float],
        seed: int,
        *,
        split: Split = "train",
        limit: int | None = None,
        curriculum: CurriculumConfig | None = None,
    ) -> None:
        """limit: use at most the first so many tasks of each env. Raises ConfigError."""
        names = [family.name for family in families]
        if not names or len(set(names)) != len(names) or set(names) != set(weights):
            raise ConfigError(f"weights must name every env once: envs {names}, weights {sorted(weights)}")
        if limit is not None and limit < 1:
            raise ConfigError(f"at least one task of each env must be used, got a limit of {limit}")
        self._seed, self._split = seed, split
        self._requeued: deque[Task] = deque()
        self._quotas = Quotas({name: weights[name] for name in names})
        self._curriculum = Curriculum(curriculum or CurriculumConfig(), seed)
        self._times = EpisodeTimes()
        self._next: tuple[Task, int] | None = None  # what `peek` found, and its position
        self._last_position: int | None = None
        self._cursors: dict[str, _Cursor] = {}
        for family in families:
            size = family.num_tasks(split) if limit is None else min(family.num_tasks(split), limit)
            if size < 1:
                raise ConfigError(f"env {family.name!r} has no task in split {split!r}")
            self._cursors[family.name] = _Cursor(family, size)

    @property
    def envs(self) -> tuple[str, ...]:
        return tuple(self._cursors)

    @property
    def last_position(self) -> int | None:
        """Of the last draw: the tasks of its env that came before it, over all epochs, drawn or passed over.

        None if the task had been requeued. With it, `replay` knows the draw again.
        """
        return self._last_position

    def peek(self) -> Task:
        """The task that the next `draw` returns, unless `observe` or `requeue` are called before."""
        return self._requeued[0] if self._requeued else self._upcoming()[0]

    def draw(self) -> Task:
        """Return the next task and move on."""
        if self._requeued:
            self._last_position = None
            return self._requeued.popleft()
        task, position = self._upcoming()
        self._quotas.pay(task.env)
        self._pass(self._cursors[task.env], position)
        return task

    def replay(self, task: Task, position: int | None) -> bool:
        """Move on as the draw of `task` once did; False, and nothing moves, if it cannot have come out here.

        position: `last_position` after that draw. Weights and curriculum may have changed since, and so may everything
        that was observed; the order of the tasks may not.
        """
        if position is None or self._requeued:
            is_next = position is None and bool(self._requeued) and self._requeued[0] == task
            if is_next:
                self._requeued.popleft()
            return is_next
        cursor = self._cursors.get(task.env)
        if cursor is None or not cursor.position <= position < cursor.position + cursor.size:
            return False
        if self._at(cursor, position) != task:
            return False
        if self._quotas.next() == task.env:  # else it came from other weights: the present ones owe nothing
            self._quotas.pay(task.env)
        self._pass(cursor, position)
        return True

    def requeue(self, tasks: Iterable[Task]) -> None:
        """Draw `tasks` (in flight when a run was interrupted) before all others, in their order."""
        self._requeued.extend(tasks)

    def observe(self, groups: Iterable[Group]) -> None:
        """These groups ran to their ends: what the curriculum and the shares of the places learn from."""
        groups = tuple(groups)
        self._times.observe(groups)
        if self._curriculum.config.is_on:
            self._next = None
            for group in groups:
                valid = [trajectory for trajectory in group.trajectories if trajectory.is_valid]
                if valid:
                    self._curriculum.observe(group.task, sum(map(is_success, valid)) / len(valid))

    def concurrency_shares(self) -> dict[str, float]:
        """The share of the places for running groups that each env should have (slots.py)."""
        return self._times.shares(self._quotas.shares)

    def _upcoming(self) -> tuple[Task, int]:
        if self._next is None:
            self._next = self._find(self._cursors[self._quotas.next()])
        return self._next

    def _find(self, cursor: _Cursor) -> tuple[Task, int]:
        """The next task that the curriculum wants, within one epoch; if it wants none, simply the next one."""
        for position in range(cursor.position, cursor.position + cursor.size):
            task = self._at(cursor, position)
            if self._curriculum.is_wanted(task, position // cursor.size):
                return task, position
        return self._at(cursor, cursor.position), cursor.position

    def _pass(self, cursor: _Cursor, position: int) -> None:
        self._next, self._last_position = None, position
        cursor.position, cursor.num_drawn = position + 1, cursor.num_drawn + 1
        cursor.orders = {epoch: order for epoch, order in cursor.orders.items() if epoch >= position // cursor.size}

    def _at(self, cursor: _Cursor, position: int) -> Task:
        epoch, place = divmod(position, cursor.size)
        return cursor.family.task(self._split, self._order(cursor, epoch)[place])

    def _order(self, cursor: _Cursor, epoch: int) -> tuple[int, ...]:
        if epoch not in cursor.orders:
            order = list(range(cursor.size))
            Random(derive_seed(self._seed, "tasks", cursor.family.name, self._split, epoch)).shuffle(order)
            cursor.orders[epoch] = tuple(order)
        return cursor.orders[epoch]

    def state(self) -> dict[str, Any]:
        """Everything that decides what comes next, as plain JSON."""
        return {
            "seed": self._seed,
            "split": self._split,
            "envs": {
                name: {"size": c.size, "position": c.position, "num_drawn": c.num_drawn}
                for name, c in self._cursors.items()
            },
            "credits": self._quotas.state(),
            "requeued": [[t.env, t.split, t.index, t.seed] for t in self._requeued],
            "curriculum": self._curriculum.state(),
            "episode_s": self._times.state(),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on where `state` was taken. Weights and curriculum may have changed; seed, split, envs and sizes may not.

        Raises ConfigError.
        """
        envs: Mapping[str, Mapping[str, Any]] = state["envs"]
        was = (state["seed"], state["split"], {name: env["size"] for name, env in envs.items()})
        now = (self._seed, self._split, {name: cursor.size for name, cursor in self._cursors.items()})
        if was != now:
            raise ConfigError(f"cannot resume: the saved tasks are (seed, split, sizes) = {was}, now they are {now}")
        for name, cursor in self._cursors.items():
            cursor.position, cursor.num_drawn = int(envs[name]["position"]), int(envs[name]["num_drawn"])
            cursor.orders = {}
        self._next = self._last_position = None
        self._quotas.restore(state["credits"])
        self._requeued = deque(
            Task(env=env, split=split, index=index, seed=seed) for env, split, index, seed in state["requeued"]
        )
        self._curriculum.restore(state["curriculum"])
        self._times.restore(state["episode_s"])

    def statistics(self) -> dict[str, EnvTasks]:
        """Where each env stands, by name."""
        shares = self._quotas.shares
        return {
            name: EnvTasks(
                num_tasks=cursor.size,
                num_drawn=cursor.num_drawn,
                share=shares[name],
                epoch=cursor.position / cursor.size,
                num_outside=self._curriculum.num_outside(name),
                episode_s=self._times.of(name),
            )
            for name, cursor in self._cursors.items()
        }
