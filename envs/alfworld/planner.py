"""Chooses the next command towards a game's goal, from wherever the game stands.

A planner looks only into receptacles that it knows: those it has seen from inside so far, or all of them from the
start. One that has to search goes through the others in the order in which the room lists them.
"""

from envs.alfworld import texts
from envs.alfworld.game import TRAIT_OF, Game, LightGoal, PlaceGoal, State, Thing
from envs.alfworld.world import World


class Planner:
    """known: the receptacles whose contents the planner knows. Never asks for a command that is not admissible."""

    __slots__ = ("_game", "known")

    def __init__(self, game: Game, *, knows_all: bool) -> None:
        self._game = game
        self.known = set(range(len(game.receptacles))) if knows_all else set()

    def copy(self) -> "Planner":
        other = Planner(self._game, knows_all=False)
        other.known = set(self.known)
        return other

    def observe(self, world: World) -> None:
        """Take in what can be seen where the agent stands, whoever chose the way there."""
        self.known.update(receptacle for receptacle in world.here if world.is_accessible(receptacle))

    def next_command(self, world: World) -> str | None:
        """A command that leads on to the goal; None if it cannot be reached from here."""
        goal = self._game.goal
        return self._light(world, goal) if isinstance(goal, LightGoal) else self._place(world, goal)

    def _light(self, world: World, goal: LightGoal) -> str | None:
        things = self._game.things
        if world.held is None:
            return self._fetch(world, [i for i, thing in enumerate(things) if thing.type == goal.thing_type])
        if things[world.held].type != goal.thing_type:
            return self._put_away(world, things[world.held])
        lamps = [i for i, t in enumerate(things) if t.type == goal.lamp_type and "toggleable" in t.traits]
        found = self._nearest(world, lamps)
        if found is None:
            return self._search(world)
        lamp, receptacle = found
        return self._approach(world, receptacle, to_open=False) or f"use {things[lamp].name}"

    def _place(self, world: World, goal: PlaceGoal) -> str | None:
        things = self._game.things
        target = self._destination(world, goal)
        if world.held is None:
            placed = world.inside[target] if target is not None else set()
            wanted = [i for i in self._suitable(goal) if not (i in placed and world.fits(i, goal))]
            return self._fetch(world, [i for i in wanted if world.fits(i, goal)] or wanted)
        held = things[world.held]
        if world.held not in self._suitable(goal):
            return self._put_away(world, held)
        if goal.state is not None and not world.fits(world.held, goal):
            return self._treat(world, held, goal.state)
        if target is None:
            return None
        return self._approach(world, target) or f"move {held.name} to {self._game.receptacles[target].name}"

    def _suitable(self, goal: PlaceGoal) -> list[int]:
        """The things that are, or can be brought, into the state that is asked for."""
        needed = {"pickupable"} | ({TRAIT_OF[goal.state]} if goal.state is not None else set())
        return [
            i for i, thing in enumerate(self._game.things) if thing.type == goal.thing_type and needed <= thing.traits
        ]

    def _destination(self, world: World, goal: PlaceGoal) -> int | None:
        """The receptacle that lacks least, the nearest of several."""
        receptacles = self._game.receptacles
        fitting = {
            i: sum(world.fits(thing, goal) for thing in world.inside[i]) if i in self.known else 0
            for i, receptacle in enumerate(receptacles)
            if receptacle.type == goal.receptacle_type
        }
        return min(fitting, key=lambda i: (-fitting[i], receptacles[i].location != world.location, i), default=None)

    def _treat(self, world: World, held: Thing, state: State) -> str | None:
        for i, receptacle in enumerate(self._game.receptacles):
            if receptacle.appliance == state:
                command = f"{texts.VERBS[state]} {held.name} with {receptacle.name}"
                return self._approach(world, i, to_open=False) or command
        return None

    def _fetch(self, world: World, wanted: list[int]) -> str | None:
        found = self._nearest(world, wanted)
        if found is None:
            return self._search(world)
        thing, receptacle = found
        name = f"{self._game.things[thing].name} from {self._game.receptacles[receptacle].name}"
        return self._approach(world, receptacle) or f"take {name}"

    def _nearest(self, world: World, wanted: list[int]) -> tuple[int, int] | None:
        """One of the wanted things and the known receptacle that it is in, where the agent stands if possible."""
        known = sorted(self.known, key=lambda i: (self._game.receptacles[i].location != world.location, i))
        pairs = ((thing, i) for i in known for thing in wanted if thing in world.inside[i])
        return next(pairs, None)

    def _search(self, world: World) -> str | None:
        """On to a receptacle that is not known yet, last to where things are to be brought."""
        goal, receptacles = self._game.goal, self._game.receptacles
        target = goal.receptacle_type if isinstance(goal, PlaceGoal) else None
        unknown = [i for i in range(len(receptacles)) if i not in self.known]
        unknown.sort(key=lambda i: (receptacles[i].location != world.location, receptacles[i].type == target, i))
        return self._approach(world, unknown[0]) if unknown else None

    def _put_away(self, world: World, held: Thing) -> str | None:
        places = [
            i for i, place in enumerate(self._game.receptacles) if (place.type, held.type) in self._game.can_contain
        ]
        if not places:
            return None
        i = min(
            places, key=lambda i: (self._game.receptacles[i].location != world.location, not world.is_accessible(i))
        )
        return self._approach(world, i) or f"move {held.name} to {self._game.receptacles[i].name}"

    def _approach(self, world: World, receptacle: int, *, to_open: bool = True) -> str | None:
        """The command that leads to, or opens, a receptacle; None where the agent stands in front of it."""
        place = self._game.receptacles[receptacle]
        if place.location != world.location:
            return f"go to {place.name}"
        return f"open {place.name}" if to_open and not world.is_accessible(receptacle) else None
