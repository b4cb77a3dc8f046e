"""Reads a PDDL problem of ALFWorld's domain into a `Game`.

Names follow ALFWorld: the ids of a problem, lower-cased and sorted, are numbered within each kind from the highest
number down (`mug 2` stands before `mug 1`), and observations list things in the order of their ids.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import TypeVar

from agentrl_jax.errors import EnvError
from envs.alfworld.game import Game, Receptacle, State, Thing
from envs.alfworld.goals import parse_goal

_FACT = re.compile(r"\(\s*(\w+)\s+([^()]+?)\s*\)")
_TRAITS = ("pickupable", "cleanable", "heatable", "coolable", "toggleable", "sliceable", "isReceptacleObject")
# Every predicate that a problem may start with; `distance` and the like never stand in the published games.
_PREDICATES = frozenset(
    (
        *_TRAITS,
        *("objectType", "receptacleType", "objectAtLocation", "receptacleAtLocation", "atLocation", "inReceptacle"),
        *("openable", "isCool", "inReceptacleObject", "canContain"),
    )
)
_APPLIANCES: dict[str, State] = {
    "SinkType": "clean",
    "SinkBasinType": "clean",
    "MicrowaveType": "hot",
    "FridgeType": "cool",
}

Pair = tuple[str, str]
V = TypeVar("V")


def parse_pairs(text: str) -> frozenset[Pair]:
    """The arguments of every fact of two arguments in `text`."""
    return frozenset((a, b) for _, arguments in _FACT.findall(text) for a, b in [arguments.split()])


def parse_problem(problem: str, *, task: str, help_text: str, can_contain: frozenset[Pair] = frozenset()) -> Game:
    """The game of a PDDL problem. can_contain: what the problem itself leaves out (receptacle type, object type).

    Raises EnvError if the text is no problem of this domain.
    """
    init, colon, goal = problem.partition("(:goal")
    _, start, init = init.partition("(:init")
    if not colon or not start:
        raise EnvError(f"expected a PDDL problem with :init and :goal, got {problem[:80]!r}")
    facts: defaultdict[str, list[list[str]]] = defaultdict(list)
    for predicate, arguments in _FACT.findall(init):
        facts[predicate].append(arguments.split())
    if unknown := set(facts) - _PREDICATES:
        raise EnvError(f"expected the predicates of ALFWorld's domain, got also {', '.join(sorted(unknown))}")
    try:
        return _build(facts, goal, task, help_text, can_contain)
    except (KeyError, ValueError) as error:
        raise EnvError(f"the problem of {task!r} is not complete: {error!r}") from error


def _build(
    facts: dict[str, list[list[str]]], goal: str, task: str, help_text: str, can_contain: frozenset[Pair]
) -> Game:
    thing_types = dict(facts["objectType"])
    receptacle_types = dict(facts["receptacleType"])
    location_of = dict(facts["receptacleAtLocation"])
    names = _number((*thing_types, *receptacle_types))
    thing_ids = {id_: i for i, id_ in enumerate(sorted(thing_types, key=str.lower))}
    receptacle_ids = {id_: i for i, id_ in enumerate(sorted(location_of, key=str.lower))}
    locations: defaultdict[str, int] = defaultdict(lambda: len(locations))
    traits = _group((id_, trait) for trait in _TRAITS for (id_,) in facts[trait])
    inner = _group((outer, thing_ids[id_]) for id_, outer in facts["inReceptacleObject"])
    openable = {id_ for (id_,) in facts["openable"]}
    inside = _group((receptacle, thing_ids[id_]) for id_, receptacle in facts["inReceptacle"])
    spots = _group((id_, locations[place]) for id_, place in facts["objectAtLocation"])
    ((_, start),) = facts["atLocation"]
    return Game(
        task=task,
        help_text=help_text,
        things=tuple(
            Thing(
                name=names[id_],
                type=thing_types[id_],
                traits=frozenset(traits[id_]),
                inner=tuple(sorted(inner[id_])),
            )
            for id_ in thing_ids
        ),
        receptacles=tuple(
            Receptacle(
                name=names[id_],
                type=receptacle_types[id_],
                location=locations[location_of[id_]],
                is_openable=id_ in openable,
                appliance=_APPLIANCES.get(receptacle_types[id_]),
            )
            for id_ in receptacle_ids
        ),
        start=locations[start],
        inside=tuple(frozenset(inside[id_]) for id_ in receptacle_ids),
        spots=tuple(frozenset(spots[id_]) for id_ in thing_ids),
        cool=frozenset(thing_ids[id_] for (id_,) in facts["isCool"]),
        can_contain=can_contain | frozenset((place, thing) for place, thing in facts["canContain"]),
        goal=parse_goal("(:goal" + goal.rstrip().removesuffix(")")),
    )


def _group(pairs: Iterable[tuple[str, V]]) -> defaultdict[str, list[V]]:
    groups: defaultdict[str, list[V]] = defaultdict(list)
    for key, value in pairs:
        groups[key].append(value)
    return groups


def _number(ids: Iterable[str]) -> dict[str, str]:
    """`Mug_bar__plus_01…` to `mug 2`: see the module's docstring."""
    kinds = {id_: _kind(id_.lower()) for id_ in sorted(ids, key=str.lower)}
    left = Counter(kinds.values())
    names = {}
    for id_, kind in kinds.items():
        names[id_] = f"{kind} {left[kind]}"
        left[kind] -= 1
    return names


def _kind(id_: str) -> str:
    return id_.partition("_bar_")[0] + ("basin" if "basin" in id_ else "")
