"""The os_interaction family: its tasks, and the env and the demonstration of each."""

from contextlib import closing
from functools import partial
from pathlib import Path
from random import Random

from agentrl_jax.env import FamilyOptions, FamilyTraits, Message, Tool
from agentrl_jax.errors import ConfigError, EnvError
from agentrl_jax.types import Split, Task
from envs.numbered import numbered_task
from envs.os_interaction import published
from envs.os_interaction.calls import TOOLS
from envs.os_interaction.chores import Chore, ChoreSource
from envs.os_interaction.env import OsEnv
from envs.os_interaction.expert import demonstrate
from envs.os_interaction.generated import GeneratedSource, level_of
from envs.os_interaction.words import FILES
from envs.sandbox.shared import SharedDriver, shared_driver

NAME = "os_interaction"
MAX_TURNS = 8
"""AgentBench-FC's limit."""

_DEFAULT_SET = published.STANDARD


class PublishedSource:
    """AgentBench's tasks. Training leaves out those whose description the chosen data set has too. upstream_compat:
    the tasks of files are in the file system's order, as published.

    Raises ConfigError for data that is missing or broken.
    """

    max_turns = MAX_TURNS

    def __init__(self, data: Path, eval_set: str | None, *, upstream_compat: bool = False) -> None:
        load = partial(published.load, data, is_unsorted=upstream_compat)
        known = {name: load(name) for name in (published.STANDARD, published.DEV)}
        self.data_sets = tuple(name for name, chores in known.items() if chores)
        # An unknown name is refused by the registry.
        wanted = eval_set if eval_set in self.data_sets else _DEFAULT_SET
        held_out, train = known[wanted], load(published.TRAIN)
        if not held_out or not train:
            raise ConfigError(
                f"environment {NAME} expects tasks to evaluate on ({wanted}) and to train on ({published.TRAIN}) in "
                f"{data / published.FOLDER}: packed as NAME.jsonl.xz, or the files of AgentBench's data/os_interaction"
            )
        texts = {" ".join(chore.description.split()) for chores in known.values() for chore in chores or ()}
        kept = [chore for chore in train if " ".join(chore.description.split()) not in texts]
        self._chores: dict[Split, tuple[Chore, ...]] = {"train": tuple(kept), "eval": held_out}

    def num_tasks(self, split: Split) -> int:
        return len(self._chores[split])

    def chore(self, task: Task) -> Chore:
        return self._chores[task.split][task.index]

    def vocabulary(self) -> tuple[str, ...]:
        return ()


class OsFamily:
    """Implements `agentrl_jax.env.EnvFamily`."""

    name = NAME
    tools: tuple[Tool, ...] = TOOLS

    def __init__(self, *, source: ChoreSource, driver: SharedDriver, seed: int, upstream_compat: bool = False) -> None:
        self._source = source
        self._driver = driver
        self._seed = seed
        self._upstream_compat = upstream_compat
        self.max_turns = source.max_turns
        self.traits = FamilyTraits(needs_sandbox=True, services=driver.services, data_sets=source.data_sets)

    def num_tasks(self, split: Split) -> int:
        return self._source.num_tasks(split)

    def task(self, split: Split, index: int) -> Task:
        """Raises EnvError for an index out of range."""
        return numbered_task(NAME, self._seed, split, index, count=self.num_tasks(split))

    def chore(self, task: Task) -> Chore:
        """What is asked, and what is right. Raises EnvError for another family's task."""
        if task.env != NAME:
            raise EnvError(f"{NAME} cannot make an env for task {task.key}")
        return self._source.chore(task)

    def make(self, task: Task) -> OsEnv:
        return OsEnv(self.chore(task), self._driver.open, seed=task.seed, upstream_compat=self._upstream_compat)

    def demonstrate(self, task: Task, rng: Random, *, noise: float) -> tuple[Message, ...]:
        """The scripted expert's episode: of a published task, its example. Raises ConfigError for bad `noise`."""
        known = self._source.vocabulary()
        words = tuple(name for name in FILES if name in known)
        with closing(self.make(task)) as env:
            chore = self.chore(task)
            return demonstrate(env, chore, rng, noise=noise, max_turns=self.max_turns, words=words)

    def vocabulary(self) -> tuple[str, ...]:
        """The words of generated chores."""
        return self._source.vocabulary()


def family(options: FamilyOptions) -> OsFamily:
    """Make the family. Raises ConfigError for data that is missing, a level that does not exist, and a machine on which
    there can be no sandboxes."""
    if options.data is None:
        source: ChoreSource = GeneratedSource(level_of(options.level))
    elif options.level != 1:
        raise ConfigError(f"environment {NAME} has generated chores by level; published ones have level 1 alone")
    else:
        source = PublishedSource(options.data, options.eval_set, upstream_compat=options.upstream_compat)
    driver = shared_driver(options.sandbox)
    return OsFamily(source=source, driver=driver, seed=options.seed, upstream_compat=options.upstream_compat)
