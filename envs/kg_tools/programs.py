"""What the tools build: programs that stand for sets of entities.

Every variable of an episode is a program. What it answers follows AgentBench's queries: entities that the program names
are never among its answers, but take part in its steps; of the entities with the extreme value, those that the program
names set no mark.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

Extremum = Literal["argmax", "argmin"]


@dataclass(frozen=True, slots=True)
class Entity:
    id: str


@dataclass(frozen=True, slots=True)
class Join:
    """What `relation` leads to from any of `source`."""

    relation: str
    source: "Program"


@dataclass(frozen=True, slots=True)
class Intersection:
    first: "Program"
    second: "Program"


@dataclass(frozen=True, slots=True)
class Extreme:
    """Those of `source` with the greatest or least value of `attribute`."""

    extremum: Extremum
    source: "Program"
    attribute: str


@dataclass(frozen=True, slots=True)
class Count:
    source: "Program"


Program = Entity | Join | Intersection | Extreme | Count


def parts_of(program: Program) -> Iterator[Program]:
    """The program and all programs inside it, inner ones first."""
    match program:
        case Join() | Extreme() | Count():
            yield from parts_of(program.source)
        case Intersection():
            yield from parts_of(program.first)
            yield from parts_of(program.second)
        case Entity():
            pass
    yield program


def entities_of(program: Program) -> frozenset[str]:
    """The entities that a program names."""
    return frozenset(part.id for part in parts_of(program) if isinstance(part, Entity))
