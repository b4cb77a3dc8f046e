"""Writes random households as PDDL problems of ALFWorld's domain: played by the same path as the published games."""

from dataclasses import dataclass
from functools import lru_cache
from random import Random

from agentrl_jax.seeding import derive_seed
from agentrl_jax.types import Split
from envs.alfworld.game import Game
from envs.alfworld.goals import write_goal
from envs.alfworld.instructions import Instruction, Level
from envs.alfworld.problem import parse_problem
from envs.alfworld.words import APPLIANCES, LAMP, RECEPTACLES, THINGS

HELP = "Use one of the available actions."
# The most objects that a receptacle holds at first.
MAX_INSIDE = 2
_MAX_PARSED = 256


class GeneratedGames:
    """The games of a level. A game is a pure function of `seed` and `split`."""

    def __init__(self, level: Level) -> None:
        self.level = level
        self.game = lru_cache(maxsize=_MAX_PARSED)(self._game)

    def instruction(self, seed: int, split: Split) -> Instruction:
        """Kinds are drawn evenly, then the instructions of one kind."""
        rng = Random(derive_seed(seed, "alfworld instruction"))
        return rng.choice(self.level.instructions[split][rng.choice(self.level.kinds)])

    def problem(self, seed: int, split: Split) -> str:
        """The PDDL problem."""
        return write_problem(self.level, self.instruction(seed, split), Random(derive_seed(seed, "alfworld house")))

    def _game(self, seed: int, split: Split) -> Game:
        return parse_problem(self.problem(seed, split), task=self.instruction(seed, split).task, help_text=HELP)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    id: str
    type: str
    is_openable: bool


def write_problem(level: Level, instruction: Instruction, rng: Random) -> str:
    """A house in which the instruction can be, but is not yet, carried out, as a PDDL problem."""
    places = _draw_places(level, instruction, rng)
    facts = [
        "atLocation agent1 loc_bar_0",
        *(f"receptacleType {place.id} {place.type}Type" for place in places),
        *(f"receptacleAtLocation {place.id} loc_bar_{number}" for number, place in enumerate(places, 1)),
        *(f"openable {place.id}" for place in places if place.is_openable),
    ]
    things = _draw_things(level, instruction, rng)
    inside = _arrange(things, places, instruction, rng)
    for number, thing in enumerate(things):
        id_ = f"{thing}_bar_{number}"
        traits = ("toggleable",) if thing == LAMP else ("pickupable", *THINGS[thing])
        facts += [f"objectType {id_} {thing}Type", *(f"{trait} {id_}" for trait in traits)]
        facts += [
            f"inReceptacle {id_} {places[inside[number]].id}",
            f"objectAtLocation {id_} loc_bar_{inside[number] + 1}",
        ]
    kinds = sorted(set(things) - {LAMP})
    facts += [f"canContain {type_}Type {thing}Type" for type_ in sorted({p.type for p in places}) for thing in kinds]
    init = " ".join(f"({fact})" for fact in facts)
    objects = _declare(places, things)
    return (
        f"(define (problem house) (:domain alfred) (:objects {objects}) (:init {init}) {write_goal(instruction.goal)})"
    )


def _declare(places: list[_Place], things: list[str]) -> str:
    """Every name with its PDDL type: planners want it, though this package's reader does not."""
    names = ["agent1 - agent", *(f"loc_bar_{number} - location" for number in range(len(places) + 1))]
    names += [f"{place.id} - receptacle" for place in places]
    names += [f"{type_}Type - rtype" for type_ in sorted({place.type for place in places})]
    names += [f"{thing}_bar_{number} - object" for number, thing in enumerate(things)]
    names += [f"{type_}Type - otype" for type_ in sorted(set(things))]
    return " ".join(names)


def _draw_places(level: Level, instruction: Instruction, rng: Random) -> list[_Place]:
    """The receptacles of a house. The one that is asked for is there once."""
    asked = [instruction.place] if instruction.place else []
    choices = [name for name in level.receptacles if name not in asked] * (2 if level.twins else 1)
    names = asked + rng.sample(choices, level.places - len(asked))
    places = [
        _Place(id=f"{name}_bar_{number}", type=name, is_openable=RECEPTACLES[name]) for number, name in enumerate(names)
    ]
    for kind, (name, is_openable, id_) in APPLIANCES.items():
        if kind in level.kinds:
            places.append(_Place(id=id_.format(len(places)), type=name, is_openable=is_openable))
    rng.shuffle(places)
    return places


def _draw_things(level: Level, instruction: Instruction, rng: Random) -> list[str]:
    count = level.others[rng.randrange(len(level.others))] if len(level.others) > 1 else level.others[0]
    others = rng.sample([name for name in level.things if name != instruction.thing], count)
    asked = [instruction.thing] * (2 if instruction.kind == "two" else 1)
    return asked + others + ([LAMP] if "light" in level.kinds else [])


def _arrange(things: list[str], places: list[_Place], instruction: Instruction, rng: Random) -> list[int]:
    """For each thing the place that it starts in."""
    room = [MAX_INSIDE] * len(places)
    inside = []
    for thing in things:
        free = [i for i, place in enumerate(places) if room[i] and _may_start_in(thing, place, instruction)]
        chosen = rng.choice(free)
        room[chosen] -= 1
        inside.append(chosen)
    return inside


def _may_start_in(thing: str, place: _Place, instruction: Instruction) -> bool:
    if thing == LAMP:
        return not place.is_openable
    return thing != instruction.thing or place.type != instruction.place
