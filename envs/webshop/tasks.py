"""The webshop family: its tasks, and the env and the demonstration of each."""

from contextlib import closing
from pathlib import Path
from random import Random
from typing import Protocol

from agentrl_jax.env import Env, FamilyOptions, FamilyTraits, Message, Tool
from agentrl_jax.errors import ConfigError, EnvError
from agentrl_jax.types import Split, Task
from envs.numbered import numbered_task
from envs.webshop.calls import TOOLS
from envs.webshop.catalogue import Catalogue
from envs.webshop.env import WebShopEnv
from envs.webshop.expert import demonstrate
from envs.webshop.generated import GeneratedShops, Level, level_of
from envs.webshop.goals import Goal, split_goals
from envs.webshop.packs import load_pack

NAME = "webshop"
NUM_TASKS: dict[Split, int] = {"train": 20_000, "eval": 2_000}
# AgentBench-FC's limit.
MAX_TURNS = 20
# What the eval split of the published goals can be (see goals.split_goals); the first one by default.
EVAL_SETS = ("std", "unseen")


class ShopSource(Protocol):
    """Where catalogues and goals come from."""

    @property
    def max_turns(self) -> int: ...

    @property
    def data_sets(self) -> tuple[str, ...]: ...

    def num_tasks(self, split: Split) -> int: ...

    def shop(self, task: Task) -> tuple[Catalogue, Goal]: ...

    def vocabulary(self) -> tuple[str, ...]: ...


class GeneratedSource:
    """Every task has a catalogue of its own, drawn from the task's seed."""

    data_sets = ()

    def __init__(self, level: Level) -> None:
        self._level = level
        self._shops = GeneratedShops(level)
        self.max_turns = level.max_turns

    def num_tasks(self, split: Split) -> int:
        return NUM_TASKS[split]

    def shop(self, task: Task) -> tuple[Catalogue, Goal]:
        return self._shops.shop(task.seed, task.split)

    def vocabulary(self) -> tuple[str, ...]:
        return self._level.vocabulary


class PublishedSource:
    """The published catalogue and its goals. Raises ConfigError for data that is missing or broken, and for a level."""

    data_sets = EVAL_SETS
    max_turns = MAX_TURNS

    def __init__(self, data: Path, level: int, eval_set: str | None) -> None:
        if level != 1:
            raise ConfigError(f"environment webshop has no levels of published goals, got level {level}")
        pack = load_pack(data)
        self._catalogue = pack.catalogue
        # An unknown name is refused by the registry.
        self._goals = split_goals(pack.goals, EVAL_SETS[0] if eval_set is None else eval_set)

    def num_tasks(self, split: Split) -> int:
        return len(self._goals[split])

    def shop(self, task: Task) -> tuple[Catalogue, Goal]:
        return self._catalogue, self._goals[task.split][task.index]

    def vocabulary(self) -> tuple[str, ...]:
        return ()


class WebShopFamily:
    """Implements `agentrl_jax.env.EnvFamily`."""

    name = NAME
    tools: tuple[Tool, ...] = TOOLS

    def __init__(self, *, source: ShopSource, seed: int, upstream_compat: bool) -> None:
        self._source = source
        self._seed = seed
        self._upstream_compat = upstream_compat
        self.max_turns = source.max_turns
        self.traits = FamilyTraits(data_sets=source.data_sets)

    def num_tasks(self, split: Split) -> int:
        return self._source.num_tasks(split)

    def task(self, split: Split, index: int) -> Task:
        """Raises EnvError for an index out of range."""
        return numbered_task(NAME, self._seed, split, index, count=self.num_tasks(split))

    def shop(self, task: Task) -> tuple[Catalogue, Goal]:
        """Where to buy, and what. Raises EnvError for another family's task."""
        if task.env != NAME:
            raise EnvError(f"{NAME} cannot make an env for task {task.key}")
        return self._source.shop(task)

    def make(self, task: Task) -> Env:
        return WebShopEnv(*self.shop(task), upstream_compat=self._upstream_compat)

    def demonstrate(self, task: Task, rng: Random, *, noise: float) -> tuple[Message, ...]:
        """The scripted expert's episode; with `noise` 0 it buys what the goal was made from. Raises ConfigError for
        bad `noise`."""
        catalogue, goal = self.shop(task)
        with closing(self.make(task)) as env:
            return demonstrate(env, catalogue, goal, rng, noise=noise, max_turns=self.max_turns)

    def vocabulary(self) -> tuple[str, ...]:
        """The words and ids of generated catalogues; of the published one none."""
        return self._source.vocabulary()


def make_family(options: FamilyOptions) -> WebShopFamily:
    """Make the family. Raises ConfigError for an unknown level, or data that is missing or broken."""
    if options.data is None:
        source: ShopSource = GeneratedSource(level_of(options.level))
    else:
        source = PublishedSource(options.data, options.level, options.eval_set)
    return WebShopFamily(source=source, seed=options.seed, upstream_compat=options.upstream_compat)
