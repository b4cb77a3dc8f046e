"""What generated games ask for, and the rule that keeps train and eval apart.

An instruction's text, hashed, decides its split, whatever the house, the level or the family's seed: no eval
instruction is ever given in training.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from agentrl_jax.errors import ConfigError
from agentrl_jax.seeding import derive_seed
from agentrl_jax.types import Split
from envs.alfworld.game import TRAIT_OF, Goal, LightGoal, PlaceGoal
from envs.alfworld.words import LAMP, RECEPTACLES, THINGS

Kind = Literal["place", "clean", "hot", "cool", "light", "two"]
# One instruction in EVAL_EVERY belongs to the eval split.
EVAL_EVERY = 8
_FORMS: dict[Kind, str] = {
    "place": "put a {thing} in {place}",
    "clean": "clean some {thing} and put it in {place}",
    "hot": "heat some {thing} and put it in {place}",
    "cool": "cool some {thing} and put it in {place}",
    "light": "look at {thing} under the desklamp",
    "two": "put two {thing} in {place}",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Instruction:
    """thing, place: types without their suffix; no place for "light"."""

    kind: Kind
    thing: str
    place: str = ""

    @property
    def task(self) -> str:
        """The task line, worded as in the published games."""
        return f"Your task is to: {_FORMS[self.kind].format(thing=self.thing, place=self.place).lower()}."

    @property
    def split(self) -> Split:
        return "eval" if derive_seed("alfworld split", self.task) % EVAL_EVERY == 0 else "train"

    @property
    def goal(self) -> Goal:
        thing_type, place_type = f"{self.thing}Type", f"{self.place}Type"
        match self.kind:
            case "light":
                return LightGoal(thing_type=thing_type, lamp_type=f"{LAMP}Type")
            case "clean" | "hot" | "cool":
                return PlaceGoal(thing_type=thing_type, receptacle_type=place_type, state=self.kind)
            case "two":
                return PlaceGoal(thing_type=thing_type, receptacle_type=place_type, count=2)
            case "place":
                return PlaceGoal(thing_type=thing_type, receptacle_type=place_type)


@dataclass(frozen=True, kw_only=True)
class Level:
    """num_things, num_receptacles: how many of the words it uses. places, others: a house has so many receptacles
    besides appliances, and one of these numbers of objects besides those that are asked for. twins: a receptacle type
    may occur twice.
    """

    kinds: tuple[Kind, ...]
    num_things: int
    num_receptacles: int
    places: int
    others: tuple[int, ...]
    max_turns: int
    twins: bool = False

    @property
    def things(self) -> tuple[str, ...]:
        return tuple(THINGS)[: self.num_things]

    @property
    def receptacles(self) -> tuple[str, ...]:
        return tuple(RECEPTACLES)[: self.num_receptacles]

    @cached_property
    def instructions(self) -> dict[Split, dict[Kind, tuple[Instruction, ...]]]:
        """All instructions of the level."""
        splits: tuple[Split, ...] = ("train", "eval")
        return {
            split: {kind: tuple(i for i in self._all_of(kind) if i.split == split) for kind in self.kinds}
            for split in splits
        }

    def _all_of(self, kind: Kind) -> Iterator[Instruction]:
        for thing in self.things:
            if kind in ("clean", "hot", "cool") and TRAIT_OF[kind] not in THINGS[thing]:
                continue
            for place in ("",) if kind == "light" else self.receptacles:
                yield Instruction(kind=kind, thing=thing, place=place)


LEVELS = {
    1: Level(kinds=("place",), num_things=12, num_receptacles=8, places=3, others=(0, 1), max_turns=8),
    2: Level(
        kinds=("place", "clean", "hot", "cool", "light"),
        num_things=18,
        num_receptacles=10,
        places=5,
        others=(4,),
        max_turns=18,
    ),
    3: Level(
        kinds=("place", "clean", "hot", "cool", "light", "two"),
        num_things=24,
        num_receptacles=12,
        places=8,
        others=(8,),
        max_turns=26,
        twins=True,
    ),
}


def level_of(number: int) -> Level:
    """Raises ConfigError for a level that does not exist."""
    if number not in LEVELS:
        raise ConfigError(f"environment alfworld has generated levels {', '.join(map(str, LEVELS))}, got {number}")
    return LEVELS[number]
