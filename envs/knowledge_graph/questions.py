"""Questions, and the rule that keeps train and eval apart.

A question's *key* is its start entity and its relations in the order they are followed. The key alone, hashed,
decides the split, whatever the graph, the family's seed or the task: no eval question is ever asked in training.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Protocol

from agentrl_jax.errors import ConfigError, EnvError
from agentrl_jax.seeding import derive_seed
from agentrl_jax.types import Split

# One key in EVAL_EVERY belongs to the eval split.
EVAL_EVERY = 10
# Draws before a source gives up: an eval question takes about EVAL_EVERY times a few.
MAX_DRAWS = 20_000
# Hops (fewest, most) by level. The longest still leaves one of the six turns for the answer.
HOPS = {1: (2, 3), 2: (3, 4), 3: (4, 5)}


class Graph(Protocol):
    """Labelled edges between named entities. A name in canonical form is the only one an env ever shows."""

    @property
    def entities(self) -> Sequence[str]:
        """The canonical name of every entity."""
        ...

    @property
    def relations(self) -> Sequence[str]: ...

    def resolve(self, text: str) -> tuple[str, ...]:
        """The canonical names that `text` may mean: none if unknown, several if ambiguous."""
        ...

    def objects(self, entity: str, relation: str) -> tuple[str, ...] | None:
        """What `relation` leads to from the canonical `entity`, in a fixed order; None for an unknown relation."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """`relations` in the order they are followed from `start`; `answers` is all that following them leads to."""

    word: str
    start: str
    relations: tuple[str, ...]
    answers: frozenset[str]

    @property
    def text(self) -> str:
        """The question in words: it names the relations last to first, and undoing that is the reasoning."""
        return f"{self.word} is the {' of the '.join(reversed(self.relations))} of {self.start}?"


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    graph: Graph
    question: Question


class ProblemSource(Protocol):
    """Makes the problem of a task: a pure function of `seed` and `split`."""

    def problem(self, seed: int, split: Split) -> Problem: ...

    def vocabulary(self) -> tuple[str, ...]: ...


class QuestionSampler(Protocol):
    def draw(self, rng: Random) -> Question | None:
        """One candidate, or None if the draw led nowhere."""
        ...


def split_of(start: str, relations: Sequence[str]) -> Split:
    """The split that a question's key belongs to."""
    return "eval" if derive_seed("kg split", start, *relations) % EVAL_EVERY == 0 else "train"


def sample_question(sampler: QuestionSampler, seed: int, split: Split) -> Question:
    """The first drawn question of the split. Raises EnvError if the graph seems to hold none."""
    rng = Random(derive_seed(seed, "kg question"))
    for _ in range(MAX_DRAWS):
        question = sampler.draw(rng)
        if question is not None and split_of(question.start, question.relations) == split:
            return question
    raise EnvError(
        f"found no {split} question in {MAX_DRAWS} draws: the graph is too small or too dense for this level"
    )


def hops_of(level: int) -> tuple[int, int]:
    """Fewest and most hops at a level. Raises ConfigError for a level that does not exist."""
    if level not in HOPS:
        raise ConfigError(f"environment kg has levels {', '.join(map(str, HOPS))}, got {level}")
    return HOPS[level]
