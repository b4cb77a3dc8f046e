"""The knowledgegraph family: its tasks, and the env and the demonstration of each."""

from contextlib import closing
from random import Random

from agentrl_jax.env import Env, FamilyOptions, FamilyTraits, Message, Tool
from agentrl_jax.errors import ConfigError, EnvError
from agentrl_jax.types import Split, Task
from envs.kg_tools.calls import TOOLS
from envs.kg_tools.env import KnowledgeGraphToolsEnv
from envs.kg_tools.expert import demonstrate
from envs.kg_tools.generated import GeneratedSource
from envs.kg_tools.problems import Problem, ProblemSource
from envs.kg_tools.published import PublishedSource
from envs.numbered import numbered_task

NAME = "knowledgegraph"
# AgentBench-FC's limit.
MAX_TURNS = 15
# The level of AgentBench's questions; the ones above are generated questions over the large store.
PUBLISHED_LEVEL = 1


class KnowledgeGraphToolsFamily:
    """Implements `agentrl_jax.env.EnvFamily`."""

    name = NAME
    tools: tuple[Tool, ...] = TOOLS
    max_turns = MAX_TURNS

    def __init__(self, *, source: ProblemSource, seed: int) -> None:
        self._source = source
        self._seed = seed
        self.traits = FamilyTraits(data_sets=source.data_sets)

    def num_tasks(self, split: Split) -> int:
        return self._source.num_tasks(split)

    def task(self, split: Split, index: int) -> Task:
        """Raises EnvError for an index out of range."""
        return numbered_task(NAME, self._seed, split, index, count=self.num_tasks(split))

    def problem(self, task: Task) -> Problem:
        """The question with its graph. Raises EnvError for another family's task."""
        if task.env != NAME:
            raise EnvError(f"{NAME} cannot make an env for task {task.key}")
        return self._source.problem(task)

    def make(self, task: Task) -> Env:
        return KnowledgeGraphToolsEnv(self.problem(task))

    def demonstrate(self, task: Task, rng: Random, *, noise: float) -> tuple[Message, ...]:
        """The scripted expert's episode, which answers with the gold program. Raises ConfigError for bad `noise`."""
        problem = self.problem(task)
        with closing(KnowledgeGraphToolsEnv(problem)) as env:
            return demonstrate(env, problem, rng, noise=noise, max_turns=MAX_TURNS)

    def vocabulary(self) -> tuple[str, ...]:
        """The words of generated graphs; of real ones none."""
        return self._source.vocabulary()


def make_family(options: FamilyOptions) -> KnowledgeGraphToolsFamily:
    """Make the family. Raises ConfigError for an unknown level, or data that is missing or broken."""
    compat = options.upstream_compat
    if options.data is None:
        source: ProblemSource = GeneratedSource(options.level, upstream_compat=compat)
    elif options.level == PUBLISHED_LEVEL:
        source = PublishedSource(options.data, options.eval_set, upstream_compat=compat)
    else:
        # The store takes a second and 200 MB: only who asks for it pays.
        from envs.kg_tools.large_store import LargeStoreSource

        if options.level - PUBLISHED_LEVEL not in (1, 2, 3):
            raise ConfigError(f"environment knowledgegraph has levels 1 to 4 with data, got {options.level}")
        source = LargeStoreSource(options.data, options.level - PUBLISHED_LEVEL, upstream_compat=compat)
    return KnowledgeGraphToolsFamily(source=source, seed=options.seed)
