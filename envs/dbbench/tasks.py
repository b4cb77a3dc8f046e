"""The dbbench family: its tasks, and the env and the demonstration of each."""

from collections.abc import Mapping
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path
from random import Random
from typing import Protocol

from agentrl_jax.env import Env, FamilyOptions, FamilyTraits, Message, Tool
from agentrl_jax.errors import ConfigError, EnvError
from agentrl_jax.types import Split, Task
from envs.dbbench.calls import TOOLS
from envs.dbbench.database import Backend
from envs.dbbench.env import DbbenchEnv
from envs.dbbench.expert import demonstrate
from envs.dbbench.generated import GeneratedTables, Level, level_of
from envs.dbbench.problems import Problem
from envs.dbbench.published import FOLDER, PublishedTasks, find_tasks
from envs.dbbench.wikitables import TRAIN_PACK, UNSEEN_PACK, WikiTables, find_pack
from envs.numbered import numbered_task

NAME = "dbbench"
NUM_TASKS: dict[Split, int] = {"train": 20_000, "eval": 2_000}
# AgentBench-FC's limit.
MAX_TURNS = 15
# Where the file lies in FOLDER, sessions run on the server that it names.
OPTION_FILE = "mysql.cnf"
STANDARD, DEV, WIKITABLES = "standard", "dev", "wikitablequestions"
# AgentBench's own name of its training file, and a plain one.
TRAIN_FILES = ("db_out_new", "train")
REQUIRED = ("sqlglot", "regex")


class ProblemSource(Protocol):
    """Where problems come from."""

    @property
    def max_turns(self) -> int: ...

    @property
    def data_sets(self) -> tuple[str, ...]: ...

    def num_tasks(self, split: Split) -> int: ...

    def problem(self, task: Task) -> Problem: ...

    def vocabulary(self) -> tuple[str, ...]: ...


class GeneratedSource:
    """Every task has tables of its own, drawn from the task's seed."""

    data_sets: tuple[str, ...] = ()

    def __init__(self, level: Level) -> None:
        self._tables = GeneratedTables(level)
        self.max_turns = level.max_turns

    def num_tasks(self, split: Split) -> int:
        return NUM_TASKS[split]

    def problem(self, task: Task) -> Problem:
        return self._tables.problem(task.seed, task.split)

    def vocabulary(self) -> tuple[str, ...]:
        return self._tables.vocabulary()


class PublishedSource:
    """The tasks of a data folder: AgentBench's own training file where it is there, else WikiTableQuestions, to train
    on; one of `data_sets` to evaluate on. Raises ConfigError for data that are missing or broken."""

    max_turns = MAX_TURNS

    def __init__(self, data: Path, eval_set: str | None) -> None:
        files = {name: path for name in (STANDARD, DEV) if (path := find_tasks(data, name)) is not None}
        held_out = {name: PublishedTasks(path) for name, path in files.items()}
        unseen = find_pack(data, UNSEEN_PACK)
        self.data_sets = (*held_out, *((WIKITABLES,) if unseen is not None else ()))
        chosen = eval_set or next(iter(self.data_sets), None)
        if chosen is None:
            raise ConfigError(f"environment {NAME} expects {STANDARD}.jsonl.xz or the like in {data / FOLDER}")
        if chosen not in self.data_sets:
            known = ", ".join(self.data_sets)
            raise ConfigError(f"environment {NAME} has no data set {chosen!r} in {data}: known ones are {known}")
        self._eval = WikiTables(unseen) if chosen == WIKITABLES and unseen is not None else held_out[chosen]
        self._train = _training(data, held_out)

    def num_tasks(self, split: Split) -> int:
        return len(self._train if split == "train" else self._eval)

    def problem(self, task: Task) -> Problem:
        tasks = self._train if task.split == "train" else self._eval
        return tasks.problem(task.index, task.seed) if isinstance(tasks, WikiTables) else tasks.problem(task.index)

    def vocabulary(self) -> tuple[str, ...]:
        return ()


def _training(data: Path, held_out: Mapping[str, PublishedTasks]) -> PublishedTasks | WikiTables:
    questions = [question for tasks in held_out.values() for question in tasks.questions]
    path = find_tasks(data, *TRAIN_FILES)
    if path is not None:
        return PublishedTasks(path, held_out=questions)
    pack = find_pack(data, TRAIN_PACK)
    if pack is None:
        raise ConfigError(
            f"environment {NAME} expects tasks to train on: {TRAIN_FILES[0]}.jsonl in {data / FOLDER}, or "
            f"WikiTableQuestions as {TRAIN_PACK}.json.xz in {data / WIKITABLES}"
        )
    return WikiTables(pack, held_out=questions)


class DbbenchFamily:
    """Implements `agentrl_jax.env.EnvFamily`."""

    name = NAME
    tools: tuple[Tool, ...] = TOOLS

    def __init__(
        self,
        *,
        source: ProblemSource,
        backend: Backend,
        seed: int,
        upstream_compat: bool = False,
        services: tuple[str, ...] = (),
    ) -> None:
        self._source = source
        self._backend = backend
        self._seed = seed
        self._upstream_compat = upstream_compat
        self.max_turns = source.max_turns
        self.traits = FamilyTraits(services=services, data_sets=source.data_sets)

    def num_tasks(self, split: Split) -> int:
        return self._source.num_tasks(split)

    def task(self, split: Split, index: int) -> Task:
        """Raises EnvError for an index out of range."""
        return numbered_task(NAME, self._seed, split, index, count=self.num_tasks(split))

    def problem(self, task: Task) -> Problem:
        """The tables, what is asked, and what is right. Raises EnvError for another family's task."""
        if task.env != NAME:
            raise EnvError(f"{NAME} cannot make an env for task {task.key}")
        return self._source.problem(task)

    def make(self, task: Task) -> Env:
        return DbbenchEnv(self.problem(task), self._backend, upstream_compat=self._upstream_compat)

    def demonstrate(self, task: Task, rng: Random, *, noise: float) -> tuple[Message, ...]:
        """The scripted expert's episode; with `noise` 0 it earns reward 1. Raises ConfigError for bad `noise`."""
        problem = self.problem(task)
        with closing(DbbenchEnv(problem, self._backend, upstream_compat=self._upstream_compat)) as env:
            return demonstrate(env, problem, rng, noise=noise, max_turns=self.max_turns)

    def vocabulary(self) -> tuple[str, ...]:
        """The words of generated tables."""
        return self._source.vocabulary()


def family(options: FamilyOptions) -> DbbenchFamily:
    """Make the family. Raises ConfigError for packages or data that are missing, and a level that does not exist."""
    missing = [name for name in REQUIRED if find_spec(name) is None]
    if missing:
        raise ConfigError(f"environment {NAME} needs {', '.join(missing)}: pip install 'agentrl_jax[envs]'")
    from envs.dbbench.sqlite import SqliteBackend

    backend: Backend = SqliteBackend()
    services: tuple[str, ...] = ()
    if options.data is None:
        source: ProblemSource = GeneratedSource(level_of(options.level))
    else:
        if options.level != 1:
            raise ConfigError(f"environment {NAME} has generated tables by level; published ones have level 1 alone")
        source = PublishedSource(options.data, options.eval_set)
        option_file = options.data / FOLDER / OPTION_FILE
        if option_file.is_file():
            backend, services = _server(option_file), ("mysql",)
    return DbbenchFamily(
        source=source,
        backend=backend,
        seed=options.seed,
        upstream_compat=options.upstream_compat,
        services=services,
    )


def _server(option_file: Path) -> Backend:
    if find_spec("pymysql") is None:
        raise ConfigError(f"environment {NAME} needs pymysql for {option_file}: pip install 'agentrl_jax[envs]'")
    from envs.dbbench.mysql import backend_of

    return backend_of(option_file)
