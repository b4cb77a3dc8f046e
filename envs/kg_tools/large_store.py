"""The FB15k-237 slice of Freebase in one store for all sessions, and questions about it.

Of its relations, those of two parts lead through a node in between, one for each triple, as in Freebase itself.
"""

from collections.abc import Iterable, Iterator
from functools import lru_cache, partial
from pathlib import Path

from pyoxigraph import NamedNode, Quad, Store

from agentrl_jax.types import Split, Task
from envs.kg_tools.desk import World
from envs.kg_tools.graph import Evaluator
from envs.kg_tools.ontology import load_ontology
from envs.kg_tools.problems import Problem
from envs.kg_tools.programs import Entity, Join, Program
from envs.kg_tools.sparql import NAMESPACE
from envs.knowledge_graph.freebase import FreebaseGraph, load
from envs.knowledge_graph.freebase_questions import FreebaseSource
from envs.knowledge_graph.questions import Question

NUM_TASKS: dict[Split, int] = {"train": 20_000, "eval": 2_000}


def freebase_id(mid: str) -> str:
    """`/m/0abc` as programs have it: `m.0abc`."""
    return mid.removeprefix("/").replace("/", ".")


def relation_parts(relation: str) -> list[str]:
    """The one or two relations that one of the slice stands for."""
    return [freebase_id(part) for part in relation.split("./")]


class StoreTriples:
    """Implements `Triples` over a store, which takes any number of readers."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def objects(self, subject: str, relation: str) -> Iterable[str]:
        quads = self._store.quads_for_pattern(_node(subject), _node(relation), None)
        return [_name(quad.object) for quad in quads]

    def relations(self, subject: str) -> Iterable[str]:
        return {_name(quad.predicate) for quad in self._store.quads_for_pattern(_node(subject), None, None)}


def _node(name: str) -> NamedNode:
    return NamedNode(NAMESPACE + name)


def _name(term: object) -> str:
    assert isinstance(term, NamedNode)
    return term.value.removeprefix(NAMESPACE)


def fill_store(graph: FreebaseGraph) -> Store:
    """The slice as a store in memory."""
    store = Store()
    store.bulk_extend(_quads(graph))
    return store


def _quads(graph: FreebaseGraph) -> Iterator[Quad]:
    nodes = [_node(freebase_id(mid)) for mid in graph.mids]
    relations = [[_node(part) for part in relation_parts(relation)] for relation in graph.relations]
    num_between = 0
    for pair, key in enumerate(graph.pairs.tolist()):
        subject, relation = divmod(key, len(relations))
        for target in graph.objects_of_pair(pair):
            match relations[relation]:
                case [only]:
                    yield Quad(nodes[subject], only, nodes[target])
                case [first, second]:
                    between = _node(f"g.between_{num_between}")
                    num_between += 1
                    yield Quad(nodes[subject], first, between)
                    yield Quad(between, second, nodes[target])


@lru_cache(maxsize=2)
def load_store(data: Path) -> tuple[StoreTriples, dict[str, str]]:
    """The store of a data folder and the ids of its names, made once per process."""
    graph = load(data)
    ids = {name: freebase_id(mid) for name, mid in zip(graph.entities, graph.mids, strict=True)}
    return StoreTriples(fill_store(graph)), ids


class LargeStoreSource:
    """Generated questions over the slice. level: how many hops, as of the environment kg. Raises ConfigError for an
    unknown level, and missing or broken data."""

    data_sets = ()

    def __init__(self, data: Path, level: int, *, upstream_compat: bool) -> None:
        self._questions = FreebaseSource(data, level)
        self._triples, self._ids = load_store(data.resolve())
        self._ontology = load_ontology(data)
        self._upstream_compat = upstream_compat
        self._relations = frozenset(part for name in load(data).relations for part in relation_parts(name))

    def num_tasks(self, split: Split) -> int:
        return NUM_TASKS[split]

    def problem(self, task: Task) -> Problem:
        question = self._questions.problem(task.seed, task.split).question
        steps = [part for relation in question.relations for part in relation_parts(relation)]
        gold: Program = Entity(self._ids[question.start])
        for step in steps:
            gold = Join(step, gold)
        world = World(
            ontology=self._ontology,
            entities={question.start: self._ids[question.start]},
            relations=self._relations,
            attributes=frozenset(),
            upstream_compat=self._upstream_compat,
        )
        # Two relations of the slice may share their first part, so that the way leads to more than the slice says.
        asked = Question(word=question.word, start=question.start, relations=tuple(steps), answers=frozenset())
        return Problem(
            question=asked.text,
            world=world,
            gold=gold,
            answers=Evaluator(self._triples).answers(gold),
            backend=partial(Evaluator, self._triples),
        )

    def vocabulary(self) -> tuple[str, ...]:
        return ()
