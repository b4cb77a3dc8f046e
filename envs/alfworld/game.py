"""What a household game is before anyone has moved: places, objects and the goal.

A `Game` is immutable and shared by all episodes that play it; what changes lives in `world.World`.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

State = Literal["clean", "hot", "cool"]
Trait = Literal["pickupable", "cleanable", "heatable", "coolable", "toggleable", "sliceable", "isReceptacleObject"]
# What an object must be for an appliance to bring it into a state.
TRAIT_OF: dict[State, Trait] = {"clean": "cleanable", "hot": "heatable", "cool": "coolable"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Thing:
    """An object. inner: indices of the objects that it holds, for ever."""

    name: str
    type: str
    traits: frozenset[str]
    inner: tuple[int, ...] = ()

    @property
    def is_knife(self) -> bool:
        return self.type in ("KnifeType", "ButterKnifeType")


@dataclass(frozen=True, slots=True, kw_only=True)
class Receptacle:
    """A place that holds objects. appliance: the state it brings a held object into, if it does."""

    name: str
    type: str
    location: int
    is_openable: bool
    appliance: State | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaceGoal:
    """`count` objects of a type, in `state` if one is asked for, in one receptacle of a type."""

    thing_type: str
    receptacle_type: str
    state: State | None = None
    count: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class LightGoal:
    """Hold an object of a type where a lamp stands that was switched on."""

    thing_type: str
    lamp_type: str


Goal = PlaceGoal | LightGoal


@dataclass(frozen=True, kw_only=True, eq=False)
class Game:
    """things, receptacles: in the order in which observations list them. Both are meant wherever an index is.

    start: the agent's location. inside: for each receptacle the things in it. spots: for each thing its locations.
    cool: the things that are cool from the start. can_contain: receptacle type, thing type.
    """

    task: str
    help_text: str
    things: tuple[Thing, ...]
    receptacles: tuple[Receptacle, ...]
    start: int
    inside: tuple[frozenset[int], ...]
    spots: tuple[frozenset[int], ...]
    cool: frozenset[int]
    can_contain: frozenset[tuple[str, str]]
    goal: Goal

    @cached_property
    def receptacles_at(self) -> dict[int, tuple[int, ...]]:
        """The receptacles of each location that has any."""
        by_location: dict[int, list[int]] = {}
        for index, receptacle in enumerate(self.receptacles):
            by_location.setdefault(receptacle.location, []).append(index)
        return {location: tuple(indices) for location, indices in by_location.items()}

    @cached_property
    def ways(self) -> tuple[tuple[str, int], ...]:
        """Every `go to` command with its receptacle, sorted."""
        return tuple(sorted((f"go to {receptacle.name}", i) for i, receptacle in enumerate(self.receptacles)))
