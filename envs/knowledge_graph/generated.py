"""Random functional graphs over the shipped words: every task has its own.

A graph is never stored: what a relation leads to is a hash of the task's seed, the entity and the relation, so an
episode pays only for the edges it looks at.
"""

from dataclasses import dataclass
from random import Random

from agentrl_jax.seeding import derive_seed
from agentrl_jax.types import Split
from envs.knowledge_graph.questions import Problem, Question, hops_of, sample_question
from envs.knowledge_graph.words import ENTITIES, RELATIONS

# Entities and relations by level.
SIZES = {1: (40, 8), 2: (52, 9), 3: (64, 10)}


class GeneratedGraph:
    """Every relation leads from every entity to exactly one other entity."""

    def __init__(self, *, seed: int, entities: tuple[str, ...], relations: tuple[str, ...]) -> None:
        self.entities = entities
        self.relations = relations
        self._seed = seed

    def resolve(self, text: str) -> tuple[str, ...]:
        return (text,) if text in self.entities else ()

    def objects(self, entity: str, relation: str) -> tuple[str, ...] | None:
        return (self.object(entity, relation),) if relation in self.relations else None

    def object(self, entity: str, relation: str) -> str:
        """The one entity that a known relation leads to from a known entity; never that entity itself."""
        position = derive_seed(self._seed, entity, relation) % (len(self.entities) - 1)
        # Stepping over the entity itself keeps the draw uniform over all others.
        return self.entities[position + (position >= self.entities.index(entity))]


@dataclass(frozen=True, slots=True)
class _Sampler:
    graph: GeneratedGraph
    hops: tuple[int, int]

    def draw(self, rng: Random) -> Question | None:
        start = rng.choice(self.graph.entities)
        relations = tuple(rng.sample(self.graph.relations, rng.randint(*self.hops)))
        entity, visited = start, {start}
        for relation in relations:
            entity = self.graph.object(entity, relation)
            if entity in visited:
                return None
            visited.add(entity)
        return Question(word="Who", start=start, relations=relations, answers=frozenset((entity,)))


class GeneratedSource:
    """Problems whose graph is drawn anew for each seed. Raises ConfigError for an unknown level."""

    def __init__(self, level: int) -> None:
        self._hops = hops_of(level)
        num_entities, num_relations = SIZES[level]
        self._entities = ENTITIES[:num_entities]
        self._relations = RELATIONS[:num_relations]

    def problem(self, seed: int, split: Split) -> Problem:
        graph = GeneratedGraph(seed=seed, entities=self._entities, relations=self._relations)
        return Problem(graph=graph, question=sample_question(_Sampler(graph, self._hops), seed, split))

    def vocabulary(self) -> tuple[str, ...]:
        return self._entities + self._relations
