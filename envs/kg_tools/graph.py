"""Where answers come from: the protocol, and the evaluation of programs over triples."""

from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from envs.kg_tools.programs import Count, Entity, Extreme, Intersection, Join, Program, entities_of


class QueryError(Exception):
    """A query that was not answered, for what it asks; the text is for the policy."""


class Backend(Protocol):
    """Answers the programs of one episode."""

    def answers(self, program: Program) -> frozenset[str]:
        """Ids, literals, or the one number of a count. Raises QueryError, or EnvError if it is the backend's fault."""
        ...

    def relations(self, program: Program) -> frozenset[str]:
        """All relations and attributes that lead on from any answer. Raises as `answers` does."""
        ...


class Triples(Protocol):
    """A read-only graph, safe to share between threads."""

    def objects(self, subject: str, relation: str) -> Iterable[str]: ...

    def relations(self, subject: str) -> Iterable[str]: ...


class DictTriples:
    """Implements `Triples` for small graphs. edges: subject to relation to objects."""

    def __init__(self, edges: Mapping[str, Mapping[str, tuple[str, ...]]]) -> None:
        self.edges = edges

    def objects(self, subject: str, relation: str) -> Iterable[str]:
        return self.edges.get(subject, {}).get(relation, ())

    def relations(self, subject: str) -> Iterable[str]:
        return self.edges.get(subject, {})


def value_of(literal: str) -> tuple[bool, float, str]:
    """What values are compared by: numbers as such and before all others, dates and words as text."""
    try:
        return False, float(literal), ""
    except ValueError:
        return True, 0.0, literal


# A program that yields more is not answered: what a policy asks for must not hold up other episodes.
MAX_MEMBERS = 20_000


class Evaluator:
    """Implements `Backend` step by step over sets, each program once. It belongs to one episode.

    Raises QueryError for a program that yields more than `max_members` at any step.
    """

    def __init__(self, triples: Triples, *, max_members: int = MAX_MEMBERS) -> None:
        self._triples = triples
        self._max_members = max_members
        self._members: dict[Program, frozenset[str]] = {}

    def answers(self, program: Program) -> frozenset[str]:
        members = self._members_of(program)
        # A number is no entity; an extreme has left the entities out already.
        return members if isinstance(program, Extreme | Count) else members - entities_of(program)

    def relations(self, program: Program) -> frozenset[str]:
        subjects = {program.id} if isinstance(program, Entity) else self.answers(program)
        return frozenset(relation for subject in subjects for relation in self._triples.relations(subject))

    def _members_of(self, program: Program) -> frozenset[str]:
        if program not in self._members:
            self._members[program] = self._evaluate(program)
        return self._members[program]

    def _evaluate(self, program: Program) -> frozenset[str]:
        match program:
            case Entity():
                return frozenset((program.id,))
            case Join():
                return self._follow(self._members_of(program.source), program.relation)
            case Intersection():
                return self._members_of(program.first) & self._members_of(program.second)
            case Extreme():
                return self._extreme(program)
            case Count():
                return frozenset((str(len(self.answers(program.source))),))

    def _follow(self, subjects: frozenset[str], relation: str) -> frozenset[str]:
        reached: set[str] = set()
        for subject in subjects:
            reached.update(self._triples.objects(subject, relation))
            if len(reached) > self._max_members:
                raise QueryError("the query has too many answers")
        return frozenset(reached)

    def _extreme(self, program: Extreme) -> frozenset[str]:
        best: Callable[..., tuple[bool, float, str]] = max if program.extremum == "argmax" else min
        values = {
            member: [value_of(value) for value in self._triples.objects(member, program.attribute)]
            for member in self._members_of(program.source)
        }
        named = entities_of(program)
        candidates = [value for member, found in values.items() if member not in named for value in found]
        if not candidates:
            return frozenset()
        mark = best(candidates)
        return frozenset(member for member, found in values.items() if mark in found)
