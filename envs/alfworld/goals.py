"""The six goals of household games as PDDL states them: read and written by the same templates.

The words in capitals are the slots that a game fills in.
"""

import re

from agentrl_jax.errors import EnvError
from envs.alfworld.game import TRAIT_OF, Goal, LightGoal, PlaceGoal, State

_SLOT = re.compile(r"\b(?:THING|PLACE|LAMP|STATE|TRAIT)\b")
_STATE_OF: dict[str, State] = {"isClean": "clean", "isHot": "hot", "isCool": "cool"}
_PREDICATE_OF: dict[State, str] = {state: predicate for predicate, state in _STATE_OF.items()}

_PLACE = """(exists (?r - receptacle) (exists (?o - object) (and
    (inReceptacle ?o ?r) (objectType ?o THING) (receptacleType ?r PLACE) )))"""
_TREAT = """(exists (?r - receptacle) (exists (?o - object) (and
    (TRAIT ?o) (objectType ?o THING) (receptacleType ?r PLACE) (STATE ?o) (inReceptacle ?o ?r) )))"""
_TWO = """(exists (?r - receptacle) (exists (?o1 - object) (and
    (objectType ?o1 THING) (receptacleType ?r PLACE) (inReceptacle ?o1 ?r)
    (exists (?o2 - object) (and
        (not (= ?o1 ?o2)) (objectType ?o2 THING) (receptacleType ?r PLACE) (inReceptacle ?o2 ?r) )) )))"""
_LIGHT = """(exists (?ot - object ?r - receptacle ?a - agent ?l - location) (and
    (objectType ?ot LAMP) (toggleable ?ot) (isToggled ?ot) (receptacleAtLocation ?r ?l) (atLocation ?a ?l)
    (inReceptacle ?ot ?r) ))
    (exists (?o - object ?a - agent) (and (objectType ?o THING) (holds ?a ?o) ))"""


def _canonical(text: str) -> str:
    return " ".join(re.findall(r"[()]|[^\s()]+", text))


def _pattern(template: str) -> re.Pattern[str]:
    """A template as a pattern: a slot that stands twice must be filled with the same type twice."""
    seen: set[str] = set()

    def slot(match: re.Match[str]) -> str:
        name = match.group()
        if name in seen:
            return f"(?P={name})"
        seen.add(name)
        return rf"(?P<{name}>\w+)"

    return re.compile(_SLOT.sub(slot, re.escape(_canonical(f"(:goal (and {template}))"))))


_PATTERNS = {"place": _pattern(_PLACE), "treat": _pattern(_TREAT), "two": _pattern(_TWO), "light": _pattern(_LIGHT)}


def parse_goal(text: str) -> Goal:
    """The goal of a problem's `(:goal …)`. Raises EnvError for a goal of another form."""
    goal = _canonical(text)
    for form, pattern in _PATTERNS.items():
        if match := pattern.fullmatch(goal):
            types = match.groupdict()
            if form == "light":
                return LightGoal(thing_type=types["THING"], lamp_type=types["LAMP"])
            state = _STATE_OF.get(types.get("STATE", ""))
            if form == "treat" and (state is None or types["TRAIT"] != TRAIT_OF[state]):
                break
            return PlaceGoal(
                thing_type=types["THING"],
                receptacle_type=types["PLACE"],
                state=state,
                count=2 if form == "two" else 1,
            )
    raise EnvError(f"expected a goal of one of ALFWorld's six forms, got {goal[:300]}")


def write_goal(goal: Goal) -> str:
    """The `(:goal …)` of a problem, such that `parse_goal` reads it back."""
    slots = {"THING": goal.thing_type}
    if isinstance(goal, LightGoal):
        template = _LIGHT
        slots["LAMP"] = goal.lamp_type
    else:
        template = _TWO if goal.count == 2 else _PLACE
        slots["PLACE"] = goal.receptacle_type
        if goal.state is not None:
            template = _TREAT
            slots |= {"TRAIT": TRAIT_OF[goal.state], "STATE": _PREDICATE_OF[goal.state]}
    return f"(:goal (and {_SLOT.sub(lambda match: slots[match.group()], template)}))"
