"""Programs as SPARQL queries over Freebase, in two dialects.

standard: SPARQL 1.1. virtuoso: counts are written as AgentBench's Freebase server takes them, and dates lose the time
zone that it gives them.
"""

from collections.abc import Iterator
from itertools import count
from typing import Literal

from envs.kg_tools.programs import Count, Entity, Extreme, Intersection, Join, Program, entities_of

Dialect = Literal["standard", "virtuoso"]
NAMESPACE = "http://rdf.freebase.com/ns/"
# Of texts, only those without a language or in English.
_ENGLISH = "FILTER (!isLiteral(?x) || lang(?x) = '' || langMatches(lang(?x), 'en'))"
_TIME_ZONE = "-08:00"


def answers_query(program: Program, dialect: Dialect) -> str:
    """A query of one column whose values are the program's answers."""
    if isinstance(program, Count):
        counted = "COUNT DISTINCT ?x" if dialect == "virtuoso" else "(COUNT(DISTINCT ?x) AS ?n)"
        return f"SELECT {counted} WHERE {{ {_answers(program.source)} }}"
    return f"SELECT DISTINCT ?x WHERE {{ {_answers(program)} }}"


def relations_query(program: Program) -> str:
    """A query of one column whose values are all properties of the program's answers."""
    if isinstance(program, Entity):
        return f"SELECT DISTINCT ?r WHERE {{ {_iri(program.id)} ?r ?o }}"
    return f"SELECT DISTINCT ?r WHERE {{ ?x ?r ?o . {{ SELECT DISTINCT ?x WHERE {{ {_answers(program)} }} }} }}"


def plain_value(value: str, dialect: Dialect) -> str:
    """An answered value without Freebase's namespace."""
    value = value.removeprefix(NAMESPACE)
    return value.removesuffix(_TIME_ZONE) if dialect == "virtuoso" else value


def _answers(program: Program) -> str:
    """Patterns that bind ?x to the answers."""
    patterns = [_ENGLISH, *_patterns(program, "?x", count())]
    if not isinstance(program, Extreme):
        patterns += _but_not(program, "?x")
    return " ".join(patterns)


def _but_not(program: Program, variable: str) -> list[str]:
    return [f"FILTER ({variable} != {_iri(entity)})" for entity in sorted(entities_of(program))]


def _patterns(program: Program, variable: str, numbers: Iterator[int]) -> list[str]:
    """Patterns that bind `variable` to what the program yields, named entities included."""
    match program:
        case Entity():
            return [f"VALUES {variable} {{ {_iri(program.id)} }}"]
        case Join():
            relation = _iri(program.relation)
            if isinstance(program.source, Entity):
                return [f"{_iri(program.source.id)} {relation} {variable} ."]
            between = f"?v{next(numbers)}"
            return [*_patterns(program.source, between, numbers), f"{between} {relation} {variable} ."]
        case Intersection():
            return [*_patterns(program.first, variable, numbers), *_patterns(program.second, variable, numbers)]
        case Extreme():
            value, other = f"?v{next(numbers)}", f"?v{next(numbers)}"
            attribute = _iri(program.attribute)
            inner = [*_patterns(program.source, other, numbers), *_but_not(program.source, other)]
            inner.append(f"{other} {attribute} {value} .")
            order = f"DESC({value})" if program.extremum == "argmax" else value
            return [
                *_patterns(program.source, variable, numbers),
                f"{variable} {attribute} {value} .",
                f"{{ SELECT {value} WHERE {{ {' '.join(inner)} }} ORDER BY {order} LIMIT 1 }}",
            ]
        case Count():
            raise AssertionError("a number is not part of another program")


def _iri(name: str) -> str:
    return f"<{NAMESPACE}{name}>"
