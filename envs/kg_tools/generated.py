"""Random graphs of people, each with one question. A graph and its question are a pure function of seed and split.

A question's key, its kind with the entities and relations it names, hashed, decides its split, whatever the graph, the
level or the family's seed: no eval question is ever asked in training.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from random import Random
from typing import Literal

from agentrl_jax.errors import ConfigError, EnvError
from agentrl_jax.seeding import derive_seed
from agentrl_jax.types import Split, Task
from envs.kg_tools.desk import World
from envs.kg_tools.graph import DictTriples, Evaluator
from envs.kg_tools.ontology import Ontology
from envs.kg_tools.problems import Problem
from envs.kg_tools.programs import Count, Entity, Extreme, Extremum, Intersection, Join, Program, entities_of
from envs.knowledge_graph.words import ENTITIES, RELATIONS

Kind = Literal["path", "both", "count", "most"]
NUM_TASKS: dict[Split, int] = {"train": 20_000, "eval": 2_000}
TYPE = "person"
ATTRIBUTES = ("age", "height", "salary")
EXTREMA: dict[Extremum, str] = {"argmax": "highest", "argmin": "lowest"}
# How the first variables are named.
VARIABLES = tuple(f"#{number}" for number in range(10))
# One key in EVAL_EVERY belongs to the eval split.
EVAL_EVERY = 10
MAX_DRAWS = 5_000
_MAX_MADE = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """num_entities, num_relations: words in use. num_own: relations that each entity has. fan: objects of each, fewest
    and most. hops: of a path, fewest and most.
    """

    kinds: tuple[Kind, ...]
    num_entities: int
    num_relations: int
    num_own: int
    fan: tuple[int, int]
    hops: tuple[int, int]


LEVELS = {
    1: Level(kinds=("path",), num_entities=40, num_relations=8, num_own=4, fan=(1, 1), hops=(1, 2)),
    2: Level(kinds=("path", "both"), num_entities=52, num_relations=9, num_own=5, fan=(1, 3), hops=(1, 2)),
    3: Level(
        kinds=("path", "both", "count", "most"), num_entities=64, num_relations=10, num_own=6, fan=(1, 4), hops=(1, 3)
    ),
}


class GeneratedSource:
    """The problems of a level. Raises ConfigError for an unknown level."""

    data_sets = ()

    def __init__(self, level: int, *, upstream_compat: bool) -> None:
        if level not in LEVELS:
            raise ConfigError(
                f"environment knowledgegraph has generated levels {', '.join(map(str, LEVELS))}, got {level}"
            )
        self._level = LEVELS[level]
        self._upstream_compat = upstream_compat
        self._entities = ENTITIES[: self._level.num_entities]
        self._relations = RELATIONS[: self._level.num_relations]
        self._ontology = Ontology(
            relations=frozenset(self._relations),
            attributes=frozenset(ATTRIBUTES),
            domains=dict.fromkeys(self._relations, TYPE),
            ranges=dict.fromkeys(self._relations, TYPE),
            by_domain={TYPE: self._relations},
            reverses={},
        )
        self._made = lru_cache(maxsize=_MAX_MADE)(self._make)

    def num_tasks(self, split: Split) -> int:
        return NUM_TASKS[split]

    def problem(self, task: Task) -> Problem:
        return self._made(task.seed, task.split)

    def vocabulary(self) -> tuple[str, ...]:
        attributes = (*ATTRIBUTES, *EXTREMA.values()) if "most" in self._level.kinds else ()
        return self._entities + self._relations + attributes + VARIABLES

    def _make(self, seed: int, split: Split) -> Problem:
        rng = Random(derive_seed(seed, "knowledgegraph graph"))
        graph = self._draw_graph(rng)
        kind = rng.choice(self._level.kinds)
        for _ in range(MAX_DRAWS):
            program, question = _DRAW[kind](self, graph, rng)
            evaluator = Evaluator(graph)
            answers = evaluator.answers(program)
            if answers and _is_telling(program, evaluator) and split_of(question) == split:
                break
        else:
            raise EnvError(f"found no {split} question in {MAX_DRAWS} draws")
        named = sorted(entities_of(program))
        world = World(
            ontology=self._ontology,
            entities={name: name for name in named},
            relations=self._ontology.relations,
            attributes=self._ontology.attributes,
            upstream_compat=self._upstream_compat,
        )
        return Problem(question=question, world=world, gold=program, answers=answers, backend=partial(Evaluator, graph))

    def _draw_graph(self, rng: Random) -> DictTriples:
        edges: dict[str, dict[str, tuple[str, ...]]] = {}
        for entity in self._entities:
            others = [other for other in self._entities if other != entity]
            own = rng.sample(self._relations, self._level.num_own)
            edges[entity] = {relation: tuple(rng.sample(others, rng.randint(*self._level.fan))) for relation in own}
            if "most" in self._level.kinds:
                edges[entity] |= {attribute: (str(rng.randint(10, 99)),) for attribute in ATTRIBUTES}
        return DictTriples(edges)

    def _draw_path(self, graph: DictTriples, rng: Random) -> tuple[Program, str]:
        """A path of listed relations, and its words; it ends where nothing but its start is left to go on from."""
        words = rng.choice(self._entities)
        program: Program = Entity(words)
        evaluator = Evaluator(graph)
        for _ in range(rng.randint(*self._level.hops)):
            ways = sorted(evaluator.relations(program) & self._ontology.relations)
            if not ways:
                break
            relation = rng.choice(ways)
            program, words = Join(relation, program), f"the {relation} of {words}"
        return program, words

    def draw_path(self, graph: DictTriples, rng: Random) -> tuple[Program, str]:
        program, words = self._draw_path(graph, rng)
        return program, f"Who is {words}?"

    def draw_both(self, graph: DictTriples, rng: Random) -> tuple[Program, str]:
        (first, words), (second, more) = self._draw_path(graph, rng), self._draw_path(graph, rng)
        return Intersection(first, second), f"Who is {words} and also {more}?"

    def draw_count(self, graph: DictTriples, rng: Random) -> tuple[Program, str]:
        program, words = self._draw_path(graph, rng)
        return Count(program), f"How many are {words}?"

    def draw_most(self, graph: DictTriples, rng: Random) -> tuple[Program, str]:
        program, words = self._draw_path(graph, rng)
        extremum, attribute = rng.choice(sorted(EXTREMA)), rng.choice(ATTRIBUTES)
        return (
            Extreme(extremum, program, attribute),
            f"Who has the {EXTREMA[extremum]} {attribute} of {words}?",
        )


_Draw = Callable[[GeneratedSource, DictTriples, Random], tuple[Program, str]]
_DRAW: dict[Kind, _Draw] = {
    "path": GeneratedSource.draw_path,
    "both": GeneratedSource.draw_both,
    "count": GeneratedSource.draw_count,
    "most": GeneratedSource.draw_most,
}


def _is_telling(program: Program, evaluator: Evaluator) -> bool:
    """Whether the last step of a question does something: there is somebody to count, and somebody is left out."""
    answers = evaluator.answers(program)
    match program:
        case Count():
            return answers != {"0"}
        case Intersection():
            return all(answers != evaluator.answers(side) for side in (program.first, program.second))
        case Extreme():
            return answers != evaluator.answers(program.source)
        case _:
            return True


def split_of(question: str) -> Split:
    """The split that a question belongs to: its words name all that its key does."""
    return "eval" if derive_seed("knowledgegraph split", question) % EVAL_EVERY == 0 else "train"
