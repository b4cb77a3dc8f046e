"""The alfworld family: its tasks, and the env and the demonstration of each."""

from contextlib import closing
from pathlib import Path
from random import Random
from typing import Protocol

from agentrl_jax.env import Env, FamilyOptions, Message, Tool
from agentrl_jax.errors import ConfigError, EnvError
from agentrl_jax.seeding import derive_seed
from agentrl_jax.types import Split, Task
from envs.alfworld.calls import TOOLS
from envs.alfworld.env import AlfworldEnv
from envs.alfworld.expert import demonstrate
from envs.alfworld.game import Game
from envs.alfworld.generated import GeneratedGames
from envs.alfworld.instructions import Level, level_of
from envs.alfworld.packs import load_pack
from envs.alfworld.words import APPLIANCES, LAMP

NAME = "alfworld"
NUM_TASKS: dict[Split, int] = {"train": 20_000, "eval": 2_000}
# AgentBench-FC's limit.
MAX_TURNS = 20
# What the eval split of the published games is, by level: games in the houses of training, or in unseen houses.
EVAL_PACKS = {1: "valid_seen", 2: "valid_unseen"}


class GameSource(Protocol):
    """Where games come from. knows_all: the expert does not search, for want of turns."""

    @property
    def max_turns(self) -> int: ...

    @property
    def knows_all(self) -> bool: ...

    def num_tasks(self, split: Split) -> int: ...

    def game(self, task: Task) -> Game: ...

    def vocabulary(self) -> tuple[str, ...]: ...


class GeneratedSource:
    """Every task has a house of its own, drawn from the task's seed."""

    knows_all = False

    def __init__(self, level: Level) -> None:
        self._level = level
        self._games = GeneratedGames(level)
        self.max_turns = level.max_turns

    def num_tasks(self, split: Split) -> int:
        return NUM_TASKS[split]

    def game(self, task: Task) -> Game:
        return self._games.game(task.seed, task.split)

    def vocabulary(self) -> tuple[str, ...]:
        words = [*self._level.things, *self._level.receptacles]
        words += [name for kind, (name, _, _) in APPLIANCES.items() if kind in self._level.kinds]
        words += [LAMP] if "light" in self._level.kinds else []
        return tuple(word.lower() for word in words)


class PublishedSource:
    """The published games, in the order of the packs. Raises ConfigError for data that is missing or broken."""

    knows_all = True
    max_turns = MAX_TURNS

    def __init__(self, data: Path, level: int) -> None:
        if level not in EVAL_PACKS:
            raise ConfigError(
                f"environment alfworld has published levels {', '.join(map(str, EVAL_PACKS))}, got {level}"
            )
        self._packs = {"train": load_pack(data, "train"), "eval": load_pack(data, EVAL_PACKS[level])}

    def num_tasks(self, split: Split) -> int:
        return len(self._packs[split])

    def game(self, task: Task) -> Game:
        return self._packs[task.split].game(task.index)

    def vocabulary(self) -> tuple[str, ...]:
        return self._packs["train"].vocabulary


class AlfworldFamily:
    """Implements `agentrl_jax.env.EnvFamily`."""

    name = NAME
    tools: tuple[Tool, ...] = TOOLS

    def __init__(self, *, source: GameSource, seed: int) -> None:
        self._source = source
        self._seed = seed
        self.max_turns = source.max_turns

    def num_tasks(self, split: Split) -> int:
        return self._source.num_tasks(split)

    def task(self, split: Split, index: int) -> Task:
        """Raises EnvError for an index out of range."""
        count = self.num_tasks(split)
        if not 0 <= index < count:
            raise EnvError(f"{NAME} has {split} tasks 0 to {count - 1}, asked for {index}")
        return Task(env=NAME, split=split, index=index, seed=derive_seed(NAME, self._seed, split, index))

    def game(self, task: Task) -> Game:
        """The household and its goal. Raises EnvError for another family's task."""
        if task.env != NAME:
            raise EnvError(f"{NAME} cannot make an env for task {task.key}")
        return self._source.game(task)

    def make(self, task: Task) -> Env:
        return AlfworldEnv(self.game(task))

    def demonstrate(self, task: Task, rng: Random, *, noise: float) -> tuple[Message, ...]:
        """The scripted expert's episode; with `noise` 0 it earns reward 1. Raises ConfigError for bad `noise`."""
        game = self.game(task)
        with closing(AlfworldEnv(game)) as env:
            return demonstrate(env, game, rng, noise=noise, max_turns=self.max_turns, knows_all=self._source.knows_all)

    def vocabulary(self) -> tuple[str, ...]:
        """The words for objects and receptacles."""
        return self._source.vocabulary()


def family(options: FamilyOptions) -> AlfworldFamily:
    """Make the family. Raises ConfigError for an unknown level, or data that is missing or broken."""
    if options.data is None:
        return AlfworldFamily(source=GeneratedSource(level_of(options.level)), seed=options.seed)
    return AlfworldFamily(source=PublishedSource(options.data, options.level), seed=options.seed)
