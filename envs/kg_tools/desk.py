"""The variables of one episode, and what each tool does with them."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from agentrl_jax.env import ToolCall
from envs.kg_tools.calls import BadCall, arguments_of
from envs.kg_tools.graph import Backend, QueryError
from envs.kg_tools.ontology import Ontology
from envs.kg_tools.programs import Count, Entity, Extreme, Intersection, Join, Program, parts_of

NUMBER_TYPE = "type.int"
# The longest published program has 9. Without a bound a policy that intersects a variable with itself again and again
# would double the program, and the time to look at it, with each call.
MAX_PARTS = 100
_VARIABLE = re.compile(r"(?:[Vv]ariable )?#(-?\d+)")
_MID = re.compile(r"[fgm]\.\w+")


@dataclass(frozen=True, slots=True)
class Variable:
    program: Program
    type: str


@dataclass(frozen=True, kw_only=True, eq=False)
class World:
    """What is known of a question's graph without asking it.

    entities: names to ids. ids: further ids that may be given. relations, attributes: those that a list shows.
    upstream_compat: negative numbers name
    variables from the end, and only variables of one type can be intersected, as published; else any two sets can, for
    an entity has many types (92 of 1,384 published gold programs need it).
    """

    ontology: Ontology
    entities: Mapping[str, str]
    ids: frozenset[str] = frozenset()
    relations: frozenset[str]
    attributes: frozenset[str]
    upstream_compat: bool = False


class Desk:
    """Carries out calls one by one. Lists are sorted, and nothing is shared with other episodes."""

    def __init__(self, world: World, backend: Backend) -> None:
        self._world = world
        self._backend = backend
        self.variables: list[Variable] = []
        self.listed_relations: dict[Program, tuple[str, ...]] = {}
        self.listed_attributes: dict[Program, tuple[str, ...]] = {}

    def carry_out(self, call: ToolCall) -> str:
        """The observation. Raises BadCall for what cannot be done; then nothing has changed."""
        values = arguments_of(call)
        try:
            match call.name:
                case "get_relations":
                    return self._get_relations(*values)
                case "get_neighbors":
                    return self._get_neighbors(*values)
                case "intersection":
                    return self._intersection(*values)
                case "get_attributes":
                    return self._get_attributes(*values)
                case "argmax" | "argmin":
                    return self._extreme(call.name, *values)
                case _:
                    return self._count(*values)
        except QueryError as error:
            raise BadCall(f"{call.name}: {error}") from error

    def variable(self, number: int) -> Variable | None:
        """The variable of a number, None if there is none."""
        first = -len(self.variables) if self._world.upstream_compat else 0
        return self.variables[number] if first <= number < len(self.variables) else None

    def _get_relations(self, text: str) -> str:
        program = self._operand("get_relations", text).program
        found = tuple(sorted(self._backend.relations(program) & self._world.relations))
        self.listed_relations[program] = found
        return _listed(found)

    def _get_neighbors(self, text: str, relation: str) -> str:
        source = self._operand("get_neighbors", text)
        if relation not in self.listed_relations.get(source.program, ()):
            raise BadCall("get_neighbors: relation must be one that get_relations listed for the variable")
        return self._new(Join(relation, source.program), self._world.ontology.range_of(relation))

    def _intersection(self, first: str, second: str) -> str:
        one, other = (self._set("intersection", text) for text in (first, second))
        if self._world.upstream_compat and one.type != other.type:
            raise BadCall("intersection: two variables must have the same type")
        return self._new(Intersection(one.program, other.program), one.type)

    def _get_attributes(self, text: str) -> str:
        program = self._set("get_attributes", text).program
        found = tuple(sorted(self._backend.relations(program) & self._world.attributes))
        self.listed_attributes[program] = found
        return _listed(found)

    def _extreme(self, extremum: str, text: str, attribute: str) -> str:
        source = self._set(extremum, text)
        if attribute not in self.listed_attributes.get(source.program, ()):
            raise BadCall(f"{extremum}: attribute must be one that get_attributes listed for the variable")
        program = Extreme("argmax" if extremum == "argmax" else "argmin", source.program, attribute)
        return self._new(program, source.type)

    def _count(self, text: str) -> str:
        source = self._set("count", text)
        self.variables.append(Variable(Count(source.program), NUMBER_TYPE))
        return f"Observation: variable #{len(self.variables) - 1}, which is a number"

    def _new(self, program: Program, type_: str) -> str:
        if sum(1 for _ in parts_of(program)) > MAX_PARTS:
            raise QueryError(f"a variable may take at most {MAX_PARTS} steps")
        self.variables.append(Variable(program, type_))
        return f"Observation: variable #{len(self.variables) - 1}, which are instances of {type_}"

    def _operand(self, tool: str, text: str) -> Variable:
        """What an argument names: an entity, by name or id, or a variable that is no number."""
        text = text.strip()
        found = _VARIABLE.fullmatch(text)
        if found is None:
            id_ = self._world.entities.get(text, text)
            if text not in self._world.entities and id_ not in self._world.ids and not _MID.fullmatch(id_):
                raise BadCall(f"{tool}: variable must be an entity or a variable")
            return Variable(Entity(id_), "")
        # More digits than any variable has.
        variable = self.variable(int(found[1])) if len(found[1]) < 9 else None
        if variable is None:
            raise BadCall(f"{tool}: there is no such variable")
        if isinstance(variable.program, Count):
            raise BadCall(f"{tool}: variable must not be a number")
        return variable

    def _set(self, tool: str, text: str) -> Variable:
        variable = self._operand(tool, text)
        if isinstance(variable.program, Entity):
            raise BadCall(f"{tool}: variable must be a variable, not an entity")
        return variable


def _listed(names: tuple[str, ...]) -> str:
    return f"Observation: [{', '.join(names)}]"
