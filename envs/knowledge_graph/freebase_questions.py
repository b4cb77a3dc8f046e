"""Questions about the Freebase slice: which paths make an answerable, short and non-trivial question.

A path is asked only if, at every hop,
- every entity reached so far has the relation (any branch leads to an answer, none is a dead end),
- a query shows at most MAX_FAN objects, and all branches together reach at most that many entities,
- none of them is the start or was reached before (no trip back to where the question began),
- none of them is a hub, the object of more than MAX_MENTIONS triples (half of all paths would lead through the
  United States, and to one of few answers),
- the names of all of them are unambiguous and at most MAX_NAME_CHARS long, and the relation is at most
  MAX_RELATION_CHARS long: with a small tokenizer trained on such text an episode stays within 300 tokens;
and the last relation cannot be guessed without looking: no object stands in more than MAX_OBJECT_FRAC of its pairs
(gender, nationality and the like lead on, but are never asked for).
"""

from pathlib import Path
from random import Random

import numpy as np

from agentrl_jax.types import Bools, Split
from envs.knowledge_graph.freebase import FreebaseGraph, load
from envs.knowledge_graph.questions import Problem, Question, hops_of, sample_question

MAX_FAN = 5
MAX_MENTIONS = 100
MAX_NAME_CHARS = 24
MAX_RELATION_CHARS = 64
MAX_OBJECT_FRAC = 0.05


class _Sampler:
    """Draws paths: a uniform first pair, then uniformly among the relations that can follow."""

    def __init__(self, graph: FreebaseGraph, hops: tuple[int, int]) -> None:
        self._graph = graph
        self._hops = hops
        self._is_usable = usable_pairs(graph)
        self._first_pairs: list[int] = np.flatnonzero(self._is_usable).tolist()
        self._is_telling = telling_relations(graph)
        self.relations = tuple(np.unique(graph.pairs[self._is_usable] % len(graph.relations)).tolist())

    def draw(self, rng: Random) -> Question | None:
        if not self._first_pairs:
            return None
        start, relation = divmod(int(self._graph.pairs[rng.choice(self._first_pairs)]), len(self._graph.relations))
        path: list[int] = []
        visited: set[int] = set()
        reached = {start}
        for hops_left in range(rng.randint(*self._hops), 0, -1):
            if path:
                choices = [
                    r for r in self._ways_on(reached) if r not in path and (hops_left > 1 or self._is_telling[r])
                ]
                if not choices:
                    return None
                relation = rng.choice(choices)
            path.append(relation)
            visited |= reached
            reached = self._follow(reached, relation)
            if len(reached) > MAX_FAN or reached & visited:
                return None
        names = self._graph.entities
        relations = tuple(self._graph.relations[r] for r in path)
        return Question(
            word="What", start=names[start], relations=relations, answers=frozenset(names[i] for i in reached)
        )

    def _ways_on(self, entities: set[int]) -> list[int]:
        """Relations that lead on from every one of the entities, ascending."""
        graph = self._graph
        shared: set[int] | None = None
        for entity in entities:
            pairs = graph.pairs_of_entity(entity)
            usable = self._is_usable[pairs.start : pairs.stop]
            relations = set((graph.pairs[pairs.start : pairs.stop][usable] % len(graph.relations)).tolist())
            shared = relations if shared is None else shared & relations
        return sorted(shared or ())

    def _follow(self, entities: set[int], relation: int) -> set[int]:
        pairs = (self._graph.find_pair(entity, relation) for entity in entities)
        return {i for pair in pairs if pair is not None for i in self._graph.objects_of_pair(pair)}


def usable_pairs(graph: FreebaseGraph) -> Bools:
    """bool [P]: the pair has at most MAX_FAN objects, none a hub, and all its names are short and unambiguous."""
    is_plain = np.array([len(name) <= MAX_NAME_CHARS for name in graph.entities]) & ~graph.is_ambiguous
    is_hub = np.bincount(graph.targets, minlength=len(graph.entities)) > MAX_MENTIONS
    is_short = np.array([len(name) <= MAX_RELATION_CHARS for name in graph.relations])
    heads, relations = np.divmod(graph.pairs, len(graph.relations))
    objects_are_plain = np.logical_and.reduceat((is_plain & ~is_hub)[graph.targets], graph.starts[:-1])
    usable: Bools = (np.diff(graph.starts) <= MAX_FAN) & is_plain[heads] & is_short[relations] & objects_are_plain
    return usable


def telling_relations(graph: FreebaseGraph) -> list[bool]:
    """For each relation whether no object stands in more than MAX_OBJECT_FRAC of its pairs."""
    num_entities = len(graph.entities)
    relations = graph.pairs % len(graph.relations)
    num_pairs = np.bincount(relations, minlength=len(graph.relations))
    edges = np.repeat(relations, np.diff(graph.starts)) * num_entities + graph.targets
    ends, num_times = np.unique(edges, return_counts=True)
    most = np.zeros(len(graph.relations), np.int64)
    np.maximum.at(most, ends // num_entities, num_times)
    telling: list[bool] = ((num_pairs > 0) & (most <= MAX_OBJECT_FRAC * num_pairs)).tolist()
    return telling


class FreebaseSource:
    """Problems about one shared graph. Raises ConfigError for an unknown level, or missing or broken data."""

    def __init__(self, data: Path, level: int) -> None:
        hops = hops_of(level)
        self._graph = load(data)
        self._sampler = _Sampler(self._graph, hops)

    def problem(self, seed: int, split: Split) -> Problem:
        return Problem(graph=self._graph, question=sample_question(self._sampler, seed, split))

    def vocabulary(self) -> tuple[str, ...]:
        return tuple(self._graph.relations[r] for r in self._sampler.relations)
