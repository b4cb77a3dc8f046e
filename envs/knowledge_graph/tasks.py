"""The kg family: its tasks, and the env and the demonstration of each."""

from contextlib import closing
from random import Random

from agentrl_jax.env import Env, FamilyOptions, Message, Tool
from agentrl_jax.errors import EnvError
from agentrl_jax.types import Split, Task
from envs.knowledge_graph.calls import TOOLS
from envs.knowledge_graph.env import KnowledgeGraphEnv
from envs.knowledge_graph.expert import demonstrate
from envs.knowledge_graph.freebase_questions import FreebaseSource
from envs.knowledge_graph.generated import GeneratedSource
from envs.knowledge_graph.questions import Problem, ProblemSource
from envs.numbered import numbered_task

NAME = "kg"
MAX_TURNS = 6
NUM_TASKS: dict[Split, int] = {"train": 20_000, "eval": 2_000}


class KnowledgeGraphFamily:
    """Implements `agentrl_jax.env.EnvFamily`. Graph and question depend on a task's seed and split alone."""

    name = NAME
    tools: tuple[Tool, ...] = TOOLS
    max_turns = MAX_TURNS

    def __init__(self, *, source: ProblemSource, seed: int) -> None:
        self._source = source
        self._seed = seed

    def num_tasks(self, split: Split) -> int:
        return NUM_TASKS[split]

    def task(self, split: Split, index: int) -> Task:
        """Raises EnvError for an index out of range."""
        return numbered_task(NAME, self._seed, split, index, count=NUM_TASKS[split])

    def problem(self, task: Task) -> Problem:
        """The hidden graph and the question with its answers. Raises EnvError for another family's task."""
        if task.env != NAME:
            raise EnvError(f"{NAME} cannot make an env for task {task.key}")
        return self._source.problem(task.seed, task.split)

    def make(self, task: Task) -> Env:
        return KnowledgeGraphEnv(self.problem(task))

    def demonstrate(self, task: Task, rng: Random, *, noise: float) -> tuple[Message, ...]:
        """The scripted expert's episode; with `noise` 0 it earns reward 1. Raises ConfigError for bad `noise`."""
        problem = self.problem(task)
        with closing(KnowledgeGraphEnv(problem)) as env:
            return demonstrate(env, problem, rng, noise=noise, max_turns=MAX_TURNS)

    def vocabulary(self) -> tuple[str, ...]:
        """Entity and relation words of generated graphs; of Freebase the relations that questions ask for."""
        return self._source.vocabulary()


def family(options: FamilyOptions) -> KnowledgeGraphFamily:
    """Make the family. Raises ConfigError for an unknown level, or data that is missing or broken."""
    if options.data is None:
        return KnowledgeGraphFamily(source=GeneratedSource(options.level), seed=options.seed)
    return KnowledgeGraphFamily(source=FreebaseSource(options.data, options.level), seed=options.seed)
