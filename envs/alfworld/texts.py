"""What a household game says, sentence by sentence as ALFWorld's grammar derives it."""

from collections.abc import Sequence

from envs.alfworld.game import State, Thing

WELCOME = "-= Welcome to TextWorld, ALFRED! =-"
NOTHING_HAPPENS = "Nothing happens."
# What an appliance does to a thing to bring it into a state.
VERBS: dict[State, str] = {"clean": "clean", "hot": "heat", "cool": "cool"}


def listing(names: Sequence[str]) -> str:
    """`a`, `a, and b`, `a, b, and c`; of no names `nothing`."""
    if not names:
        return "nothing"
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])}, and {names[-1]}"


def indefinite(names: Sequence[str]) -> str:
    """A listing with articles; the article is always "a"."""
    return listing([f"a {name}" for name in names])


def middle_of_room(names: Sequence[str]) -> str:
    return f"You are in the middle of a room. Looking quickly around you, you see {indefinite(names)}."


def facing(receptacles: Sequence[str], beside: Sequence[str]) -> str:
    return f"You are facing the {listing(receptacles)}. Next to it, you see {indefinite(beside)}."


def contents(receptacle: str, things: Sequence[str], *, is_openable: bool, is_open: bool) -> str:
    if not is_openable:
        return f"On the {receptacle}, you see {indefinite(things)}."
    if not is_open:
        return f"The {receptacle} is closed."
    return f"The {receptacle} is open. In it, you see {indefinite(things)}."


def examined(thing: Thing, states: frozenset[State], inner: Sequence[str], *, is_sliced: bool, is_on: bool) -> str:
    """What a held thing looks like. Containers show what they hold and nothing of their state."""
    name = thing.name
    if "isReceptacleObject" in thing.traits:
        return f"This is a normal {name}. In it, you see {indefinite(inner)}."
    temperature = "hot" if "hot" in states else "cool" if "cool" in states else ""
    words = [temperature, "clean" if "clean" in states else ""]
    state = " and ".join(filter(None, words))
    if state and is_sliced:
        return f"This is a {state} sliced {name}."
    if state:
        # On its own, cool is called cold.
        return f"This is a {'cold' if state == 'cool' else state} {name}."
    if "toggleable" in thing.traits and is_on:
        return f"This {name} is on."
    if is_sliced and "sliceable" in thing.traits:
        return f"This is a sliced {name}."
    return f"There's nothing special about {name}."
