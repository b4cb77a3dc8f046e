"""The executor on its own: what it lists can be done, what it does not list changes nothing; and what it costs."""

import pickle
import time
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl_jax.env import FamilyOptions
from agentrl_jax.errors import EnvError
from envs.alfworld import family
from envs.alfworld.game import LightGoal, PlaceGoal
from envs.alfworld.goals import parse_goal, write_goal
from envs.alfworld.problem import parse_problem
from envs.alfworld.texts import listing
from envs.alfworld.world import World


def game(index=0, level=3):
    alfworld = family(FamilyOptions(level=level))
    return alfworld.game(alfworld.task("train", index))


def state_of(world):
    return pickle.dumps(
        (world.location, world.held, world.inside, world.opened, world.toggled, world.sliced, world.treated)
    )


def walk(world, rng, num_commands):
    played = []
    for _ in range(num_commands):
        command = rng.choice(world.commands())
        played.append((command, world.step(command), tuple(world.commands())))
    return played


@given(index=st.integers(0, 50), seed=st.integers(0, 10**6))
def test_every_listed_command_can_be_carried_out(index, seed):
    world = World(game(index))
    walk(world, Random(seed), 12)
    commands = world.commands()
    assert commands == sorted(set(commands))
    for command in commands:
        assert world.copy().step(command) != "Nothing happens."


@given(index=st.integers(0, 50), seed=st.integers(0, 10**6))
def test_what_is_not_listed_changes_nothing(index, seed):
    rng = Random(seed)
    world = World(game(index))
    walk(world, rng, 6)
    other = World(game(index))
    walk(other, rng, 6)
    before = state_of(world)
    for command in ("", "dance", "go to", "go to nowhere 1", *(set(other.commands()) - set(world.commands()))):
        assert world.step(command) == "Nothing happens."
    assert state_of(world) == before


def test_a_copy_shares_nothing_that_changes():
    for index in range(20):
        world = World(game(index))
        walk(world, Random(index), 8)
        before, copy = state_of(world), world.copy()
        assert walk(copy, Random(1), 20) == walk(world.copy(), Random(1), 20)
        assert state_of(world) == before


def test_threads_play_the_same_game_as_one_thread():
    played = game(3)
    serial = [walk(World(played), Random(seed), 40) for seed in range(16)]
    with ThreadPoolExecutor(8) as pool:
        parallel = list(pool.map(lambda seed: walk(World(played), Random(seed), 40), range(16)))
    assert parallel == serial


@pytest.mark.parametrize(
    ("names", "text"), [([], "nothing"), (["a"], "a"), (["a", "b"], "a, and b"), (["a", "b", "c"], "a, b, and c")]
)
def test_a_listing_reads_as_textworlds(names, text):
    assert listing(names) == text


GOALS = [
    PlaceGoal(thing_type="MugType", receptacle_type="DeskType"),
    PlaceGoal(thing_type="MugType", receptacle_type="DeskType", state="clean"),
    PlaceGoal(thing_type="MugType", receptacle_type="DeskType", state="hot"),
    PlaceGoal(thing_type="MugType", receptacle_type="DeskType", state="cool"),
    PlaceGoal(thing_type="MugType", receptacle_type="DeskType", count=2),
    LightGoal(thing_type="MugType", lamp_type="DeskLampType"),
]


@pytest.mark.parametrize("goal", GOALS)
def test_a_goal_that_is_written_is_read_back(goal):
    text = write_goal(goal)
    assert parse_goal(text) == goal
    assert parse_goal(text.replace("(", " ( ").replace(")", "\n)")) == goal


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("inReceptacle", "nextTo"),
        ("(objectType ?o2 MugType)", "(objectType ?o2 CupType)"),
        ("(not (= ?o1 ?o2))", ""),
        (":goal", ":metric"),
    ],
)
def test_a_goal_of_another_form_is_refused(old, new):
    text = write_goal(GOALS[4])
    assert old in text
    with pytest.raises(EnvError, match="six forms"):
        parse_goal(text.replace(old, new))


def test_a_state_goal_must_ask_for_the_matching_trait():
    with pytest.raises(EnvError, match="six forms"):
        parse_goal(write_goal(GOALS[1]).replace("cleanable", "heatable"))


HOUSE = (
    "(define (problem p) (:init (atLocation agent1 loc_bar_0) (receptacleType Bed_bar_1 BedType) "
    "(receptacleAtLocation Bed_bar_1 loc_bar_1) (objectType Mug_bar_1 MugType) (inReceptacle Mug_bar_1 Bed_bar_1) "
    "(objectAtLocation Mug_bar_1 loc_bar_1)) " + write_goal(GOALS[0]) + ")"
)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("(:init", "(:start", "PDDL problem"),
        ("(:goal", "(:aim", "PDDL problem"),
        ("(atLocation agent1 loc_bar_0)", "", "not complete"),
        ("(receptacleType Bed_bar_1 BedType)", "", "not complete"),
        ("(objectType Mug_bar_1 MugType)", "", "not complete"),
        ("(objectType Mug_bar_1 MugType)", "(objectType Mug_bar_1)", "not complete"),
        ("(objectType Mug_bar_1 MugType)", "(flies Mug_bar_1)", "flies"),
    ],
)
def test_a_broken_problem_is_refused(old, new, message):
    assert parse_problem(HOUSE, task="t", help_text="h").things[0].name == "mug 1"
    with pytest.raises(EnvError, match=message):
        parse_problem(HOUSE.replace(old, new), task="t", help_text="h")


def test_a_step_with_its_commands_costs_well_under_a_third_of_a_millisecond():
    worlds = [World(game(index)) for index in range(20)]
    started_s = time.process_time()
    num_steps = sum(len(walk(world, Random(0), 50)) for world in worlds)
    # The bar is 0.3 ms; it takes about 0.02.
    assert (time.process_time() - started_s) / num_steps < 0.3e-3


def test_a_live_game_takes_little_memory():
    played = game()
    walk(World(played), Random(0), 5)
    tracemalloc.start()
    worlds = [World(played) for _ in range(50)]
    for world in worlds:
        walk(world, Random(0), 5)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak / len(worlds) < 40 * 1024
