"""A household game in play: state, admissible commands, and what a command does.

Follows the PDDL domain and grammar of ALFWorld's published games, without a planner: the text of every observation
and the list of admissible commands are those of TextWorld. A world belongs to one episode; worlds share nothing but
immutable games, so threads may play as many as they like.
"""

from bisect import bisect_left
from collections.abc import Callable

from envs.alfworld import texts
from envs.alfworld.game import TRAIT_OF, Game, PlaceGoal, State

# A method and its arguments: bound methods would tie a world into a cycle with its own commands.
Effect = tuple[Callable[..., str], tuple[int | State, ...]]


class World:
    """The changing half of a game.

    location: where the agent stands. inside: for each receptacle the things in it. held: the thing in hand.
    treated: for each state the things that are in it.
    """

    __slots__ = (
        *("game", "held", "inside", "location", "opened", "sliced", "toggled", "treated"),
        *("_commands", "_moved", "_spots"),
    )

    def __init__(self, game: Game) -> None:
        self.game = game
        self.location = game.start
        self.held: int | None = None
        self.inside = [set(things) for things in game.inside]
        self.opened: set[int] = set()
        self.toggled: set[int] = set()
        self.sliced: set[int] = set()
        self.treated: dict[State, set[int]] = {"clean": set(), "hot": set(), "cool": set(game.cool)}
        self._spots = list(game.spots)
        # What was taken out of a receptacle lies next to it if it is put into another one at the same location.
        self._moved: set[tuple[int, int]] = set()
        self._commands: dict[str, Effect] | None = None

    def copy(self) -> "World":
        other = World(self.game)
        other.location, other.held = self.location, self.held
        other.inside = [set(things) for things in self.inside]
        other.opened, other.toggled, other.sliced = set(self.opened), set(self.toggled), set(self.sliced)
        other.treated = {state: set(things) for state, things in self.treated.items()}
        other._spots = list(self._spots)
        other._moved = set(self._moved)
        return other

    @property
    def here(self) -> tuple[int, ...]:
        """The receptacles where the agent stands."""
        return self.game.receptacles_at.get(self.location, ())

    @property
    def is_won(self) -> bool:
        goal, things = self.game.goal, self.game.things
        if isinstance(goal, PlaceGoal):
            return any(
                receptacle.type == goal.receptacle_type
                and len(self.inside[i]) >= goal.count
                and sum(self.fits(thing, goal) for thing in self.inside[i]) >= goal.count
                for i, receptacle in enumerate(self.game.receptacles)
            )
        if self.held is None or things[self.held].type != goal.thing_type:
            return False
        lit = self.toggled.intersection(thing for receptacle in self.here for thing in self.inside[receptacle])
        return any(things[i].type == goal.lamp_type and "toggleable" in things[i].traits for i in lit)

    def fits(self, thing: int, goal: PlaceGoal) -> bool:
        """Whether a thing has the type and the state that a goal asks for."""
        if self.game.things[thing].type != goal.thing_type:
            return False
        return goal.state is None or (
            thing in self.treated[goal.state] and TRAIT_OF[goal.state] in self.game.things[thing].traits
        )

    def is_accessible(self, receptacle: int) -> bool:
        """Whether what is inside can be seen and reached from in front of it."""
        return not self.game.receptacles[receptacle].is_openable or receptacle in self.opened

    def introduction(self) -> str:
        """The first observation: three paragraphs, of which the last is the task."""
        if self.here:
            room = self._look()
        else:
            room = texts.middle_of_room([receptacle.name for receptacle in self.game.receptacles])
        return f"{texts.WELCOME}\n\n{room}\n\n{self.game.task}"

    def commands(self) -> list[str]:
        """The admissible commands, sorted."""
        ways = [command for command, i in self.game.ways if self.game.receptacles[i].location != self.location]
        local = sorted(self._local())
        split = bisect_left(local, "go to ")
        return local[:split] + ways + local[split:]

    def step(self, command: str) -> str:
        """Carry out a command and return the observation; one that is not admissible changes nothing."""
        effect = self._local().get(command) or self._way(command)
        if effect is None:
            return texts.NOTHING_HAPPENS
        self._commands = None
        method, arguments = effect
        return method(self, *arguments)

    def _way(self, command: str) -> Effect | None:
        i = bisect_left(self.game.ways, (command, -1))
        if i == len(self.game.ways) or self.game.ways[i][0] != command:
            return None
        receptacle = self.game.ways[i][1]
        return (World._go, (receptacle,)) if self.game.receptacles[receptacle].location != self.location else None

    def _local(self) -> dict[str, Effect]:
        """Every admissible command but `go to`, with what it does; kept until the state changes."""
        if self._commands is None:
            commands: dict[str, Effect] = {name: (method, ()) for name, method in _ALWAYS.items()}
            for receptacle in self.here:
                self._add_receptacle(commands, receptacle)
            if self.held is not None:
                self._add_held(commands, self.held)
            self._commands = commands
        return self._commands

    def _add_receptacle(self, commands: dict[str, Effect], receptacle: int) -> None:
        things, place = self.game.things, self.game.receptacles[receptacle]
        commands[f"examine {place.name}"] = (World._examine_receptacle, (receptacle,))
        if place.is_openable:
            is_open = receptacle in self.opened
            commands[f"{'close' if is_open else 'open'} {place.name}"] = (World._turn, (receptacle,))
        for thing in self.inside[receptacle]:
            if "toggleable" in things[thing].traits:
                commands[f"use {things[thing].name}"] = (World._use, (thing,))
        if not self.is_accessible(receptacle):
            return
        if self.held is None:
            for thing in self.inside[receptacle]:
                if "pickupable" in things[thing].traits:
                    commands[f"take {things[thing].name} from {place.name}"] = (World._take, (thing, receptacle))
        elif (place.type, things[self.held].type) in self.game.can_contain:
            commands[f"move {things[self.held].name} to {place.name}"] = (World._put, (self.held, receptacle))

    def _add_held(self, commands: dict[str, Effect], held: int) -> None:
        thing = self.game.things[held]
        commands[f"examine {thing.name}"] = (World._examine_thing, (held,))
        for receptacle in self.here:
            place = self.game.receptacles[receptacle]
            if place.appliance is not None and TRAIT_OF[place.appliance] in thing.traits:
                verb = texts.VERBS[place.appliance]
                commands[f"{verb} {thing.name} with {place.name}"] = (World._treat, (held, receptacle, place.appliance))
        if thing.is_knife:
            for other, spots in enumerate(self._spots):
                if self.location in spots and "sliceable" in self.game.things[other].traits:
                    commands[f"slice {self.game.things[other].name} with {thing.name}"] = (World._slice, (other, held))

    def _names(self, things: set[int]) -> list[str]:
        return [self.game.things[i].name for i in sorted(things)]

    def _contents(self, receptacle: int) -> str:
        place = self.game.receptacles[receptacle]
        return texts.contents(
            place.name,
            self._names(self.inside[receptacle]),
            is_openable=place.is_openable,
            is_open=receptacle in self.opened,
        )

    def _help(self) -> str:
        return self.game.help_text

    def _inventory(self) -> str:
        if self.held is None:
            return "You are not carrying anything."
        return f"You are carrying: a {self.game.things[self.held].name}."

    def _look(self) -> str:
        here = self.here
        if not here:
            return texts.middle_of_room([])
        beside = sorted((thing, i) for thing, i in self._moved if i in here and self.location in self._spots[thing])
        return texts.facing(
            [self.game.receptacles[i].name for i in here], [self.game.things[thing].name for thing, _ in beside]
        )

    def _go(self, receptacle: int) -> str:
        place = self.game.receptacles[receptacle]
        self.location = place.location
        return f"You arrive at {place.name}. {self._contents(receptacle)}"

    def _turn(self, receptacle: int) -> str:
        place = self.game.receptacles[receptacle]
        if receptacle in self.opened:
            self.opened.remove(receptacle)
            return f"You close the {place.name}."
        self.opened.add(receptacle)
        return f"You open the {place.name}. {self._contents(receptacle)}"

    def _examine_receptacle(self, receptacle: int) -> str:
        return self._contents(receptacle)

    def _examine_thing(self, thing: int) -> str:
        return texts.examined(
            self.game.things[thing],
            frozenset(state for state, things in self.treated.items() if thing in things),
            [self.game.things[i].name for i in self.game.things[thing].inner],
            is_sliced=thing in self.sliced,
            is_on=thing in self.toggled,
        )

    def _take(self, thing: int, receptacle: int) -> str:
        self.inside[receptacle].remove(thing)
        self._moved.add((thing, receptacle))
        self._spots[thing] -= {self.location}
        self.held = thing
        return f"You pick up the {self.game.things[thing].name} from the {self.game.receptacles[receptacle].name}."

    def _put(self, thing: int, receptacle: int) -> str:
        self.inside[receptacle].add(thing)
        self._moved.discard((thing, receptacle))
        self._spots[thing] |= {self.location}
        self.held = None
        return f"You move the {self.game.things[thing].name} to the {self.game.receptacles[receptacle].name}."

    def _use(self, thing: int) -> str:
        # The grammar asks whether it was ever switched on, after switching it.
        self.toggled.add(thing)
        return f"You turn on the {self.game.things[thing].name}."

    def _treat(self, thing: int, receptacle: int, state: State) -> str:
        self.treated[state].add(thing)
        if state != "clean":
            self.treated["cool" if state == "hot" else "hot"].discard(thing)
        verb = texts.VERBS[state]
        return f"You {verb} the {self.game.things[thing].name} using the {self.game.receptacles[receptacle].name}."

    def _slice(self, thing: int, knife: int) -> str:
        self.sliced.add(thing)
        return f"You sliced the {self.game.things[thing].name} with the {self.game.things[knife].name}."


_ALWAYS: dict[str, Callable[[World], str]] = {"help": World._help, "inventory": World._inventory, "look": World._look}
