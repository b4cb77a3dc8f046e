"""The bfcl family: its tasks, and the env and the demonstration of each."""

from collections.abc import Sequence
from contextlib import closing
from random import Random

from agentrl_jax.env import Action, Env, FamilyOptions, FamilyTraits, Message, Tool, ToolCall
from agentrl_jax.errors import ConfigError, EnvError
from agentrl_jax.types import Split, Task
from envs.bfcl.entries import CATEGORIES, Entry, load_entries
from envs.bfcl.env import MAX_STEPS, BfclEnv
from envs.bfcl.package import Package, find_package
from envs.bfcl.programs import Programs
from envs.numbered import numbered_task

NAME = "bfcl"
DONE = "Done."


class BfclFamily:
    """Implements `agentrl_jax.env.EnvFamily`. A benchmark: there is nothing to train on, and eval holds all entries, or
    those of one category. tools: all that any task has; `tools_of` says which one task has."""

    name = NAME

    def __init__(self, *, package: Package, entries: Sequence[Entry], seed: int) -> None:
        self._package = package
        self._entries = tuple(entries)
        self._seed = seed
        named = {tool.name: tool for entry in entries for tool in entry.tools}
        named |= {tool.name: tool for entry in entries for turn in entry.turns for tool in turn.added}
        self.tools: tuple[Tool, ...] = tuple(named.values())
        self.max_turns = max((len(entry.turns) for entry in entries), default=1) * (MAX_STEPS + 1)
        # Calls may take for ever (the mathematics goes to any precision), and simulators keep state in modules.
        self.traits = FamilyTraits(session_kind="process", data_sets=CATEGORIES)

    def num_tasks(self, split: Split) -> int:
        return len(self._entries) if split == "eval" else 0

    def task(self, split: Split, index: int) -> Task:
        """Raises EnvError for an index out of range."""
        return numbered_task(NAME, self._seed, split, index, count=self.num_tasks(split))

    def entry(self, task: Task) -> Entry:
        """Raises EnvError for another family's task."""
        if task.env != NAME or task.split != "eval":
            raise EnvError(f"{NAME} cannot make an env for task {task.key}")
        return self._entries[task.index]

    def tools_of(self, task: Task) -> tuple[Tool, ...]:
        """The functions that the policy has when the task begins."""
        return self.entry(task).tools

    def make(self, task: Task) -> Env:
        return BfclEnv(self._package, self.entry(task))

    def demonstrate(self, task: Task, rng: Random, *, noise: float) -> tuple[Message, ...]:
        """The gold calls, a user's turn of them at a time; with `noise` 0 it earns reward 1. With probability `noise` a
        turn's last call is left out. Raises ConfigError for bad `noise`."""
        if not 0.0 <= noise <= 1.0:
            raise ConfigError(f"noise must be between 0 and 1, got {noise}")
        entry = self.entry(task)
        programs = Programs(self._package, entry)
        with closing(self.make(task)) as env:
            messages = list(env.reset())
            for turn in entry.turns:
                calls = [ToolCall(name=call.name, arguments=programs.named_arguments(call)) for call in turn.gold]
                if calls and rng.random() < noise:
                    calls.pop()
                actions = [Action(calls=tuple(calls))] if calls else []
                for action in (*actions, Action(content=DONE)):
                    result = env.step(action)
                    said = Message(role="assistant", content=action.content, tool_calls=action.calls)
                    messages += (said, *result.messages)
                if result.end is not None:
                    break
        return tuple(messages)

    def vocabulary(self) -> tuple[str, ...]:
        return ()


def family(options: FamilyOptions) -> BfclFamily:
    """Make the family; there are no published faults to reproduce. Raises ConfigError for a level, or if the package is
    missing or broken."""
    if options.level != 1:
        raise ConfigError(f"environment bfcl has no levels, got level {options.level}")
    package = find_package(options.data)
    # An unknown category is refused by the registry.
    wanted = [name for name in CATEGORIES if options.eval_set in (None, name)]
    entries = [entry for category in wanted for entry in load_entries(package, category)]
    return BfclFamily(package=package, entries=entries, seed=options.seed)
