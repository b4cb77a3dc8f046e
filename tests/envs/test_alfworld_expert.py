"""Demonstrations: episodes as the env has them, won without noise, mostly won with some, over any start."""

from pathlib import Path
from random import Random

import pytest

from agentrl_jax.env import Action, FamilyOptions
from agentrl_jax.errors import ConfigError, EnvError
from agentrl_jax.seeding import derive_seed
from agentrl_jax.types import EpisodeEnd
from envs.alfworld import family
from envs.alfworld.env import AlfworldEnv
from envs.alfworld.expert import demonstrate, num_turns_needed
from envs.alfworld.instructions import LEVELS
from envs.alfworld.planner import Planner
from envs.alfworld.problem import parse_problem
from envs.alfworld.world import World


def turns_of(messages):
    return [message for message in messages if message.role == "assistant"]


def replay(alfworld, task, messages):
    env = alfworld.make(task)
    conversation, result = list(env.reset()), None
    for turn in turns_of(messages):
        result = env.step(Action(calls=turn.tool_calls))
        conversation += [turn, *result.messages]
    env.close()
    return tuple(conversation), result


@pytest.mark.parametrize("noise", [0.0, 0.25, 1.0])
@pytest.mark.parametrize("level", list(LEVELS))
def test_a_demonstration_is_exactly_the_episode_of_its_calls(noise, level):
    alfworld = family(FamilyOptions(level=level))
    rewards = []
    for index in range(40):
        task = alfworld.task("train", index)
        messages = alfworld.demonstrate(task, Random(index), noise=noise)
        conversation, result = replay(alfworld, task, messages)
        assert messages == conversation
        assert len(turns_of(messages)) <= alfworld.max_turns
        assert all(len(turn.tool_calls) == 1 for turn in turns_of(messages))
        assert result.end in (EpisodeEnd.COMPLETED, None)
        rewards.append(result.reward)
    assert sum(rewards) >= {0.0: 40, 0.25: 34, 1.0: 0}[noise]


def test_the_share_of_random_turns_is_the_noise():
    alfworld, is_random = family(FamilyOptions(level=3)), []
    for index in range(400):
        task = alfworld.task("train", index)
        game = alfworld.game(task)
        first = turns_of(alfworld.demonstrate(task, Random(index), noise=0.25))[0].tool_calls[0].arguments["action"]
        is_random.append(first != Planner(game, knows_all=False).next_command(World(game)))
    # A few random commands happen to be the expert's own.
    assert 0.17 < sum(is_random) / len(is_random) < 0.29


def test_the_expert_searches_places_in_order_and_remembers_them():
    alfworld = family(FamilyOptions())
    for index in range(60):
        messages = alfworld.demonstrate(alfworld.task("train", index), Random(0), noise=0.0)
        actions = [turn.tool_calls[0].arguments["action"] for turn in turns_of(messages)]
        searched = actions[:-3]
        assert searched == sorted(set(searched))
        assert [action.split()[0] for action in actions[-3:]] == ["take", "go", "move"]


@pytest.mark.parametrize("level", list(LEVELS))
def test_the_expert_recovers_from_wherever_it_is(level):
    alfworld = family(FamilyOptions(level=level))
    for index in range(40):
        game, rng = alfworld.game(alfworld.task("train", index)), Random(index)
        world, planner = World(game), Planner(game, knows_all=False)
        for _ in range(30):
            world.step(rng.choice(world.commands()))
            planner.observe(world)
        assert num_turns_needed(world, planner) <= alfworld.max_turns + 4


def test_the_same_rng_gives_the_same_demonstration():
    alfworld = family(FamilyOptions(level=2))
    task = alfworld.task("train", 5)
    first, again, other = (alfworld.demonstrate(task, Random(seed), noise=0.5) for seed in (1, 1, 2))
    assert first == again != other


@pytest.mark.parametrize("noise", [-0.1, 1.1, float("nan")])
def test_noise_out_of_range_is_refused(noise):
    alfworld = family(FamilyOptions())
    with pytest.raises(ConfigError, match="noise"):
        alfworld.demonstrate(alfworld.task("train", 0), Random(0), noise=noise)


@pytest.mark.parametrize("knows_all", [False, True])
def test_a_goal_that_nothing_fulfils_is_an_env_error(knows_all):
    problem = (
        "(define (problem p) (:init (atLocation agent1 loc_bar_0) (receptacleType Bed_bar_1 BedType) "
        "(receptacleAtLocation Bed_bar_1 loc_bar_1)) (:goal (and (exists (?r - receptacle) (exists (?o - object) "
        "(and (inReceptacle ?o ?r) (objectType ?o MugType) (receptacleType ?r BedType) ))))))"
    )
    game = parse_problem(problem, task="put a mug in bed", help_text="h")
    with pytest.raises(EnvError, match="no way to fulfil 'put a mug in bed'"):
        demonstrate(AlfworldEnv(game), game, Random(0), noise=0.0, max_turns=8, knows_all=knows_all)


@pytest.mark.data
def test_noise_never_leads_the_expert_into_a_dead_end(data_folder: Path) -> None:
    # A teddy bear can be taken from where it lies, but there may be no receptacle to put it down in again.
    published = family(FamilyOptions(data=data_folder))
    rng = Random(derive_seed(0, "demonstration", "alfworld", 63))
    assert published.demonstrate(published.task("train", 63), rng, noise=0.2)[-1].role in ("tool", "user")
