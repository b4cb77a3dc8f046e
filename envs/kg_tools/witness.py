"""Graphs in which the gold programs of real questions yield their real answers.

Freebase itself is 50 GB, and not needed to ask a question of it: a question's gold program is walked backwards from its
answers, which invents the entities in between, and each step gets company: entities that only one side of an
intersection knows, candidates with a lesser value, relations that the schema gives such entities, and the way back
along each relation. Questions, named entities, relations, programs and answers are real; the company is not.

A graph whose company changes what the gold program answers is built again with less of it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from random import Random

from envs.kg_tools.graph import DictTriples, Evaluator
from envs.kg_tools.ontology import Ontology
from envs.kg_tools.programs import Count, Entity, Extreme, Intersection, Join, Program, parts_of

# The most entities that are invented between two steps, and the company of each kind.
MAX_BETWEEN = 3
NUM_BESIDE = 2
NUM_LESSER = 3
# How many relations of the schema an entity gets, if it is named by the question or not.
NUM_SCHEMA_NAMED = 24
NUM_SCHEMA = 8
NUM_ATTRIBUTES = 3
# A variable's first so many entities get relations of the schema.
MAX_DECORATED = 3


@dataclass(frozen=True, slots=True)
class Company:
    beside: bool
    backward: bool


_ATTEMPTS = (Company(True, True), Company(True, False), Company(False, True), Company(False, False))


def build_witness(gold: Program, answers: frozenset[str], ontology: Ontology, seed: int) -> DictTriples:
    """A graph in which `gold` answers `answers`, wherever that is possible at all: a gold program may name one of its
    own answers, which is then left out of what it yields."""
    graphs = (_Builder(ontology, Random(seed), company).build(gold, answers) for company in _ATTEMPTS)
    first = None
    for graph in graphs:
        if Evaluator(graph).answers(gold) == answers:
            return graph
        first = first or graph
    assert first is not None
    return first


class _Builder:
    def __init__(self, ontology: Ontology, rng: Random, company: Company) -> None:
        self._ontology = ontology
        self._rng = rng
        self._company = company
        self._edges: dict[str, dict[str, dict[str, None]]] = {}
        self._num_invented = 0
        self._used: frozenset[str] = frozenset()

    def build(self, gold: Program, answers: frozenset[str]) -> DictTriples:
        joins = [part for part in parts_of(gold) if isinstance(part, Join)]
        self._used = frozenset(
            {join.relation for join in joins}
            | {self._ontology.reverses.get(join.relation, "") for join in joins}
            | {part.attribute for part in parts_of(gold) if isinstance(part, Extreme)}
        )
        if isinstance(gold, Count):
            (number,) = answers
            self._make(gold.source, self._invent(int(number)))
        else:
            self._make(gold, sorted(answers))
        return DictTriples(
            {
                subject: {relation: tuple(objects) for relation, objects in relations.items()}
                for subject, relations in self._edges.items()
            }
        )

    def _invent(self, count: int) -> list[str]:
        first = self._num_invented
        self._num_invented += count
        return [f"m.0w{number:04d}" for number in range(first, first + count)]

    def _add(self, subject: str, relation: str, object_: str) -> None:
        self._edges.setdefault(subject, {}).setdefault(relation, {})[object_] = None
        back = self._ontology.reverses.get(relation)
        if self._company.backward and back is not None:
            self._edges.setdefault(object_, {}).setdefault(back, {})[subject] = None

    def _make(self, program: Program, members: Sequence[str]) -> None:
        """Add what makes `program` yield `members`."""
        match program:
            case Join():
                self._make_join(program, members)
            case Intersection():
                for side in (program.first, program.second):
                    beside = self._invent(NUM_BESIDE if self._company.beside else 0)
                    self._make(side, [*members, *beside])
            case Extreme():
                lesser = self._invent(NUM_LESSER if self._company.beside else 0)
                self._make(program.source, [*members, *lesser])
                self._give_values(program, members, lesser)
            case Entity() | Count():
                raise AssertionError(f"no part of a gold program: {program}")

    def _make_join(self, join: Join, members: Sequence[str]) -> None:
        if isinstance(join.source, Entity):
            between = [join.source.id]
            self._decorate(between, self._ontology.domains.get(join.relation), NUM_SCHEMA_NAMED)
        else:
            between = self._invent(min(MAX_BETWEEN, len(members)))
            self._make(join.source, between)
        for number, member in enumerate(members):
            self._add(between[number % len(between)], join.relation, member)
        self._decorate(members[:MAX_DECORATED], self._ontology.ranges.get(join.relation), NUM_SCHEMA)

    def _decorate(self, subjects: Iterable[str], type_: str | None, most: int) -> None:
        """Give entities of a type other relations that the schema knows of it."""
        others = [r for r in self._relations_near(type_) if r not in self._used]
        for subject in subjects:
            for relation in self._rng.sample(others, min(most, len(others))):
                if relation in self._ontology.attributes:
                    self._edges.setdefault(subject, {})[relation] = {self._draw_value(relation): None}
                else:
                    self._add(subject, relation, *self._invent(1))

    def _relations_near(self, type_: str | None) -> list[str]:
        """The relations and some attributes of a type; if they are few, also those of its neighbours in the schema."""
        if type_ is None:
            return []
        known = self._ontology.by_domain
        found = list(known.get(type_, ()))
        if len(found) < NUM_SCHEMA:
            area = type_.partition(".")[0] + "."
            near = [name for name in known if name.startswith(area) and name != type_]
            found += [r for name in self._rng.sample(near, min(2, len(near))) for r in known[name]]
        relations = [r for r in found if r in self._ontology.relations]
        attributes = [r for r in found if r in self._ontology.attributes][:NUM_ATTRIBUTES]
        return relations + attributes

    def _give_values(self, extreme: Extreme, members: Sequence[str], lesser: Sequence[str]) -> None:
        is_date = self._ontology.range_of(extreme.attribute) == "type.datetime"
        best = 1950
        step = -1 if extreme.extremum == "argmax" else 1
        for number, subject in enumerate((*members, *lesser)):
            value = best if number < len(members) else best + step * self._rng.randint(1, 49)
            self._edges.setdefault(subject, {})[extreme.attribute] = {f"{value}-01-01" if is_date else str(value): None}

    def _draw_value(self, attribute: str) -> str:
        value = self._rng.randint(1900, 1999)
        return f"{value}-01-01" if self._ontology.range_of(attribute) == "type.datetime" else str(value)
