"""The alfworld family: its tasks, and the env and the demonstration of each."""

from contextlib import closing
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Protocol

from agentrl_jax.env import Env, FamilyOptions, FamilyTraits, Message, Tool
from agentrl_jax.errors import ConfigError, EnvError
from agentrl_jax.types import Split, Task
from envs.alfworld.calls import TOOLS
from envs.alfworld.env import AlfworldEnv
from envs.alfworld.expert import demonstrate
from envs.alfworld.game import Game
from envs.alfworld.generated import GeneratedGames
from envs.alfworld.instructions import Level, level_of
from envs.alfworld.lists import LISTS, PACKS, Games, games_of, human_goals
from envs.alfworld.words import APPLIANCES, LAMP
from envs.numbered import numbered_task

NAME = "alfworld"
NUM_TASKS: dict[Split, int] = {"train": 20_000, "eval": 2_000}
# AgentBench-FC's limit.
MAX_TURNS = 20
# What the eval split of the published games is, by level: games in the rooms of training, in unseen rooms, and in
# unseen rooms with goals in people's own words (in training too).
EVAL_SETS = {1: "valid_seen", 2: "valid_unseen", 3: "valid_unseen"}
HUMAN_LEVEL = 3


class GameSource(Protocol):
    """Where games come from. knows_all: the expert does not search, for want of turns. data_sets: see FamilyTraits."""

    @property
    def max_turns(self) -> int: ...

    @property
    def knows_all(self) -> bool: ...

    @property
    def data_sets(self) -> tuple[str, ...]: ...

    def num_tasks(self, split: Split) -> int: ...

    def game(self, task: Task) -> Game: ...

    def vocabulary(self) -> tuple[str, ...]: ...


class GeneratedSource:
    """Every task has a house of its own, drawn from the task's seed."""

    knows_all = False
    data_sets = ()

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
    data_sets = (*PACKS, *LISTS)

    def __init__(self, data: Path, level: int, eval_set: str | None) -> None:
        if level not in EVAL_SETS:
            raise ConfigError(
                f"environment alfworld has published levels {', '.join(map(str, EVAL_SETS))}, got {level}"
            )
        # An unknown name is refused by the registry.
        name = eval_set if eval_set in self.data_sets else EVAL_SETS[level]
        self._games: dict[Split, Games] = {"train": games_of(data, "train"), "eval": games_of(data, name)}
        self._goals = human_goals(data) if level == HUMAN_LEVEL else {}

    def num_tasks(self, split: Split) -> int:
        return len(self._games[split])

    def game(self, task: Task) -> Game:
        pack, index = self._games[task.split][task.index]
        game = pack.game(index)
        sentences = self._goals.get(pack.record(index).path, ()) if self._goals else ()
        if not sentences:
            return game
        sentence = sentences[task.seed % len(sentences)].strip().removesuffix(".")
        return replace(game, task=f"Your task is to: {sentence}.")

    def vocabulary(self) -> tuple[str, ...]:
        return self._games["train"][0][0].vocabulary


class AlfworldFamily:
    """Implements `agentrl_jax.env.EnvFamily`."""

    name = NAME
    tools: tuple[Tool, ...] = TOOLS

    def __init__(self, *, source: GameSource, seed: int, upstream_compat: bool = False) -> None:
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

    def game(self, task: Task) -> Game:
        """The household and its goal. Raises EnvError for another family's task."""
        if task.env != NAME:
            raise EnvError(f"{NAME} cannot make an env for task {task.key}")
        return self._source.game(task)

    def make(self, task: Task) -> Env:
        return AlfworldEnv(self.game(task), upstream_compat=self._upstream_compat)

    def demonstrate(self, task: Task, rng: Random, *, noise: float) -> tuple[Message, ...]:
        """The scripted expert's episode; with `noise` 0 it earns reward 1. Raises ConfigError for bad `noise`."""
        game = self.game(task)
        with closing(self.make(task)) as env:
            return demonstrate(env, game, rng, noise=noise, max_turns=self.max_turns, knows_all=self._source.knows_all)

    def vocabulary(self) -> tuple[str, ...]:
        """The words for objects and receptacles."""
        return self._source.vocabulary()


def family(options: FamilyOptions) -> AlfworldFamily:
    """Make the family. Raises ConfigError for an unknown level, or data that is missing or broken."""
    if options.data is None:
        source: GameSource = GeneratedSource(level_of(options.level))
    else:
        source = PublishedSource(options.data, options.level, options.eval_set)
    return AlfworldFamily(source=source, seed=options.seed, upstream_compat=options.upstream_compat)
