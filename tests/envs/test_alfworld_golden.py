"""One kitchen, played by TextWorld 1.7.0 with ALFWorld 0.4.2's domain and grammar, and by this executor.

The kitchen is hand-written for the corners: two receptacles at one place, an object that stands in two receptacles, a
bowl with something in it, a knife, a lamp, an object that is cool from the start. The transcript was recorded from
TextWorld.
"""

from envs.alfworld.problem import parse_problem
from envs.alfworld.world import World

PROBLEM = """
(define (problem kitchen) (:domain alfred)
 (:objects agent1 - agent loc_bar_0 loc_bar_1 loc_bar_2 loc_bar_3 - location
   Apple_bar_1 Bowl_bar_1 DeskLamp_bar_1 Egg_bar_1 Knife_bar_1 Mug_bar_1 Mug_bar_2 - object
   AppleType BowlType DeskLampType EggType KnifeType MugType - otype
   CounterTop_bar_1 Drawer_bar_1 Drawer_bar_2 Fridge_bar_1 Microwave_bar_1 Sink_bar_1_bar_SinkBasin - receptacle
   CounterTopType DrawerType FridgeType MicrowaveType SinkBasinType - rtype)
 (:init (atLocation agent1 loc_bar_0)
  (receptacleType CounterTop_bar_1 CounterTopType) (receptacleAtLocation CounterTop_bar_1 loc_bar_1)
  (receptacleType Sink_bar_1_bar_SinkBasin SinkBasinType)
  (receptacleAtLocation Sink_bar_1_bar_SinkBasin loc_bar_1)
  (receptacleType Drawer_bar_1 DrawerType) (receptacleAtLocation Drawer_bar_1 loc_bar_2) (openable Drawer_bar_1)
  (receptacleType Drawer_bar_2 DrawerType) (receptacleAtLocation Drawer_bar_2 loc_bar_2) (openable Drawer_bar_2)
  (receptacleType Fridge_bar_1 FridgeType) (receptacleAtLocation Fridge_bar_1 loc_bar_3) (openable Fridge_bar_1)
  (receptacleType Microwave_bar_1 MicrowaveType) (receptacleAtLocation Microwave_bar_1 loc_bar_3)
  (openable Microwave_bar_1)
  (objectType Apple_bar_1 AppleType) (pickupable Apple_bar_1) (sliceable Apple_bar_1) (cleanable Apple_bar_1)
  (heatable Apple_bar_1) (coolable Apple_bar_1) (inReceptacle Apple_bar_1 CounterTop_bar_1)
  (objectAtLocation Apple_bar_1 loc_bar_1)
  (objectType Bowl_bar_1 BowlType) (pickupable Bowl_bar_1) (isReceptacleObject Bowl_bar_1)
  (inReceptacle Bowl_bar_1 CounterTop_bar_1)
  (objectAtLocation Bowl_bar_1 loc_bar_1) (objectType Egg_bar_1 EggType)
  (inReceptacleObject Egg_bar_1 Bowl_bar_1)
  (objectAtLocation Egg_bar_1 loc_bar_1) (objectType Knife_bar_1 KnifeType) (pickupable Knife_bar_1)
  (inReceptacle Knife_bar_1 Drawer_bar_2) (objectAtLocation Knife_bar_1 loc_bar_2)
  (objectType Mug_bar_1 MugType) (pickupable Mug_bar_1) (inReceptacle Mug_bar_1 CounterTop_bar_1)
  (inReceptacle Mug_bar_1 Sink_bar_1_bar_SinkBasin)
  (objectAtLocation Mug_bar_1 loc_bar_1) (objectType Mug_bar_2 MugType) (pickupable Mug_bar_2)
  (coolable Mug_bar_2) (isCool Mug_bar_2)
  (inReceptacle Mug_bar_2 Fridge_bar_1) (objectAtLocation Mug_bar_2 loc_bar_3)
  (objectType DeskLamp_bar_1 DeskLampType) (toggleable DeskLamp_bar_1)
  (inReceptacle DeskLamp_bar_1 CounterTop_bar_1)
  (objectAtLocation DeskLamp_bar_1 loc_bar_1)
  (canContain CounterTopType AppleType) (canContain CounterTopType MugType) (canContain CounterTopType BowlType)
  (canContain CounterTopType KnifeType) (canContain SinkBasinType AppleType) (canContain SinkBasinType MugType)
  (canContain FridgeType MugType) (canContain FridgeType AppleType) (canContain DrawerType KnifeType)
  (canContain MicrowaveType AppleType))
 (:goal (and (exists (?r - receptacle) (exists (?o - object) (and (coolable ?o) (objectType ?o AppleType)
   (receptacleType ?r FridgeType) (isCool ?o) (inReceptacle ?o ?r)))))))
"""

INTRODUCTION = (
    "-= Welcome to TextWorld, ALFRED! =-\n\n"
    "You are in the middle of a room. Looking quickly around you, you see a countertop 1, a drawer 2, a drawer 1, "
    "a fridge 1, a microwave 1, and a sinkbasin 1.\n\n"
    "Your task is to: put a cool apple in fridge."
)
TRANSCRIPT = [
    ("look", "You are in the middle of a room. Looking quickly around you, you see nothing."),
    ("go to drawer 1", "You arrive at drawer 1. The drawer 1 is closed."),
    ("open drawer 2", "You open the drawer 2. The drawer 2 is open. In it, you see nothing."),
    ("examine drawer 2", "The drawer 2 is open. In it, you see nothing."),
    ("look", "You are facing the drawer 2, and drawer 1. Next to it, you see nothing."),
    ("close drawer 2", "You close the drawer 2."),
    ("open drawer 1", "You open the drawer 1. The drawer 1 is open. In it, you see a knife 1."),
    ("take knife 1 from drawer 1", "You pick up the knife 1 from the drawer 1."),
    ("examine knife 1", "There's nothing special about knife 1."),
    ("inventory", "You are carrying: a knife 1."),
    (
        "go to countertop 1",
        "You arrive at countertop 1. On the countertop 1, you see a apple 1, a bowl 1, a desklamp 1, and a mug 2.",
    ),
    ("slice apple 1 with knife 1", "You sliced the apple 1 with the knife 1."),
    ("slice bowl 1 with knife 1", "Nothing happens."),
    ("move knife 1 to countertop 1", "You move the knife 1 to the countertop 1."),
    ("look", "You are facing the countertop 1, and sinkbasin 1. Next to it, you see nothing."),
    ("take mug 1 from countertop 1", "Nothing happens."),
    ("take mug 2 from countertop 1", "You pick up the mug 2 from the countertop 1."),
    ("move mug 2 to countertop 1", "You move the mug 2 to the countertop 1."),
    ("move mug 2 to sinkbasin 1", "Nothing happens."),
    ("look", "You are facing the countertop 1, and sinkbasin 1. Next to it, you see nothing."),
    ("take bowl 1 from countertop 1", "You pick up the bowl 1 from the countertop 1."),
    ("examine bowl 1", "This is a normal bowl 1. In it, you see a egg 1."),
    ("move bowl 1 to sinkbasin 1", "Nothing happens."),
    ("move bowl 1 to countertop 1", "You move the bowl 1 to the countertop 1."),
    ("use desklamp 1", "You turn on the desklamp 1."),
    ("use desklamp 1", "You turn on the desklamp 1."),
    ("take apple 1 from countertop 1", "You pick up the apple 1 from the countertop 1."),
    ("examine apple 1", "This is a sliced apple 1."),
    ("clean apple 1 with sinkbasin 1", "You clean the apple 1 using the sinkbasin 1."),
    ("examine apple 1", "This is a clean sliced apple 1."),
    ("move apple 1 to sinkbasin 1", "You move the apple 1 to the sinkbasin 1."),
    ("look", "You are facing the countertop 1, and sinkbasin 1. Next to it, you see a apple 1."),
    ("take apple 1 from sinkbasin 1", "You pick up the apple 1 from the sinkbasin 1."),
    ("go to fridge 1", "You arrive at fridge 1. The fridge 1 is closed."),
    ("look", "You are facing the fridge 1, and microwave 1. Next to it, you see nothing."),
    ("heat apple 1 with microwave 1", "You heat the apple 1 using the microwave 1."),
    ("examine apple 1", "This is a hot and clean sliced apple 1."),
    ("cool apple 1 with fridge 1", "You cool the apple 1 using the fridge 1."),
    ("examine apple 1", "This is a cool and clean sliced apple 1."),
    ("move apple 1 to fridge 1", "Nothing happens."),
    ("open fridge 1", "You open the fridge 1. The fridge 1 is open. In it, you see a mug 1."),
    ("examine fridge 1", "The fridge 1 is open. In it, you see a mug 1."),
    ("move apple 1 to fridge 1", "You move the apple 1 to the fridge 1."),
    ("take mug 1 from fridge 1", "You pick up the mug 1 from the fridge 1."),
    ("examine mug 1", "This is a cold mug 1."),
    ("move mug 1 to fridge 1", "You move the mug 1 to the fridge 1."),
    ("take apple 1 from fridge 1", "You pick up the apple 1 from the fridge 1."),
    (
        "go to countertop 1",
        "You arrive at countertop 1. On the countertop 1, you see a bowl 1, a desklamp 1, a knife 1, and a mug 2.",
    ),
    ("look", "You are facing the countertop 1, and sinkbasin 1. Next to it, you see nothing."),
    ("move apple 1 to countertop 1", "You move the apple 1 to the countertop 1."),
    ("move apple 1 to sinkbasin 1", "Nothing happens."),
    ("take apple 1 from countertop 1", "You pick up the apple 1 from the countertop 1."),
    ("go to microwave 1", "You arrive at microwave 1. The microwave 1 is closed."),
    ("open microwave 1", "You open the microwave 1. The microwave 1 is open. In it, you see nothing."),
    ("move apple 1 to microwave 1", "You move the apple 1 to the microwave 1."),
    ("go to sinkbasin 1", "You arrive at sinkbasin 1. On the sinkbasin 1, you see a mug 2."),
    ("look", "You are facing the countertop 1, and sinkbasin 1. Next to it, you see nothing."),
    ("take knife 1 from countertop 1", "You pick up the knife 1 from the countertop 1."),
    ("look", "You are facing the countertop 1, and sinkbasin 1. Next to it, you see nothing."),
    ("slice apple 1 with knife 1", "Nothing happens."),
    ("go to fridge 1", "You arrive at fridge 1. The fridge 1 is open. In it, you see a mug 1."),
    ("slice apple 1 with knife 1", "You sliced the apple 1 with the knife 1."),
]
# The admissible commands after some of these.
COMMANDS = {
    "take knife 1 from drawer 1": [
        "close drawer 1",
        "examine drawer 1",
        "examine drawer 2",
        "examine knife 1",
        "go to countertop 1",
        "go to fridge 1",
        "go to microwave 1",
        "go to sinkbasin 1",
        "help",
        "inventory",
        "look",
        "move knife 1 to drawer 1",
        "open drawer 2",
    ],
    "go to countertop 1": [
        "examine countertop 1",
        "examine knife 1",
        "examine sinkbasin 1",
        "go to drawer 1",
        "go to drawer 2",
        "go to fridge 1",
        "go to microwave 1",
        "help",
        "inventory",
        "look",
        "move knife 1 to countertop 1",
        "slice apple 1 with knife 1",
        "use desklamp 1",
    ],
    "move knife 1 to countertop 1": [
        "examine countertop 1",
        "examine sinkbasin 1",
        "go to drawer 1",
        "go to drawer 2",
        "go to fridge 1",
        "go to microwave 1",
        "help",
        "inventory",
        "look",
        "take apple 1 from countertop 1",
        "take bowl 1 from countertop 1",
        "take knife 1 from countertop 1",
        "take mug 2 from countertop 1",
        "take mug 2 from sinkbasin 1",
        "use desklamp 1",
    ],
    "heat apple 1 with microwave 1": [
        "cool apple 1 with fridge 1",
        "examine apple 1",
        "examine fridge 1",
        "examine microwave 1",
        "go to countertop 1",
        "go to drawer 1",
        "go to drawer 2",
        "go to sinkbasin 1",
        "heat apple 1 with microwave 1",
        "help",
        "inventory",
        "look",
        "open fridge 1",
        "open microwave 1",
    ],
    "take knife 1 from countertop 1": [
        "examine countertop 1",
        "examine knife 1",
        "examine sinkbasin 1",
        "go to drawer 1",
        "go to drawer 2",
        "go to fridge 1",
        "go to microwave 1",
        "help",
        "inventory",
        "look",
        "move knife 1 to countertop 1",
        "use desklamp 1",
    ],
}


# The numbers of the commands after which the goal held.
WON_AFTER = [42, 43, 44, 45]


def kitchen():
    task = "Your task is to: put a cool apple in fridge."
    return World(parse_problem(PROBLEM, task=task, help_text="Available commands:\n"))


def test_every_observation_is_textworlds():
    world = kitchen()
    assert world.introduction() == INTRODUCTION
    assert [(command, world.step(command)) for command, _ in TRANSCRIPT] == TRANSCRIPT


def test_the_admissible_commands_are_textworlds():
    world, seen = kitchen(), {}
    for command, _ in TRANSCRIPT:
        world.step(command)
        seen.setdefault(command, world.commands())
    assert {command: seen[command] for command in COMMANDS} == COMMANDS


def test_the_game_is_won_when_textworld_says_so():
    world, won_after = kitchen(), []
    for number, (command, _) in enumerate(TRANSCRIPT):
        world.step(command)
        won_after += [number] if world.is_won else []
    assert won_after == WON_AFTER
