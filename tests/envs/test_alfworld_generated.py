"""Generated households: small, solvable, not solved at the start, and never the same instruction in both splits."""

from collections import Counter
from random import Random

import pytest

from agentrl_jax.env import Action, EnvFamily, EnvRegistry, FamilyOptions, Message
from agentrl_jax.errors import ConfigError, EnvError
from agentrl_jax.policy import NetworkConfig, create_policy
from agentrl_jax.preparation import play_demonstrations
from agentrl_jax.rendering.transcript import TemplateRenderer
from agentrl_jax.types import Task
from envs import register_all
from envs.alfworld import family
from envs.alfworld.calls import action_call
from envs.alfworld.expert import num_turns_needed
from envs.alfworld.generated import GeneratedGames
from envs.alfworld.instructions import LEVELS
from envs.alfworld.planner import Planner
from envs.alfworld.problem import parse_problem
from envs.alfworld.world import World

SPLITS = ("train", "eval")


def random_episode(alfworld, index):
    """What a policy that draws from the listed actions sees."""
    env, rng = alfworld.make(alfworld.task("eval", index)), Random(index)
    messages = list(env.reset())
    for _ in range(alfworld.max_turns):
        listed = messages[-1].content.partition("Available actions:\n")[2].split("\n")
        call = action_call(rng.choice(listed))
        result = env.step(Action(calls=(call,)))
        messages += (Message(role="assistant", tool_calls=(call,)), *result.messages)
        if result.end is not None:
            break
    return tuple(messages)


def test_level_1_is_as_small_as_the_quickstart_needs(tmp_path):
    alfworld = family(FamilyOptions())
    assert alfworld.max_turns <= 8
    demonstrations = play_demonstrations([alfworld], 300, noise=0.25, seed=0)
    policy = create_policy(
        demonstrations, tmp_path, network=NetworkConfig(), keep_whole=sorted(alfworld.vocabulary()), seed=0
    )
    renderer = TemplateRenderer(policy.tokenizer, tools=alfworld.tools)
    for index in range(100):
        world = World(alfworld.game(alfworld.task("eval", index)))
        assert len(world.game.receptacles) <= 6
        # Never more, whatever is carried where: every object in one place is the longest list.
        assert 1 + (len(world.game.receptacles) - 1) + 3 + len(world.game.things) <= 12
        messages = random_episode(alfworld, index)
        lists = [m.content.partition("Available actions:\n")[2].split("\n") for m in messages if m.role == "tool"]
        assert max(map(len, lists)) <= 12
        # About 290.
        assert len(renderer.full_render(messages, alfworld.tools, add_generation_prompt=False)) <= 600


@pytest.mark.parametrize("level", list(LEVELS))
def test_the_expert_needs_at_most_the_turns_there_are_and_no_game_starts_won(level):
    alfworld = family(FamilyOptions(level=level))
    for split in SPLITS:
        for index in range(150):
            game = alfworld.game(alfworld.task(split, index))
            needed = num_turns_needed(World(game), Planner(game, knows_all=False))
            assert 3 <= needed <= alfworld.max_turns
            assert num_turns_needed(World(game), Planner(game, knows_all=True)) <= needed


def test_level_1_leaves_the_expert_three_turns_to_spare():
    """It looks last where the object is to be brought: at most two visits, then take, go, move."""
    alfworld = family(FamilyOptions())
    games = [alfworld.game(alfworld.task("train", index)) for index in range(300)]
    needed = Counter(num_turns_needed(World(game), Planner(game, knows_all=False)) for game in games)
    assert set(needed) == {4, 5}
    assert alfworld.max_turns == 8


@pytest.mark.parametrize("level", list(LEVELS))
def test_train_and_eval_share_no_instruction_at_any_level(level):
    tasks = {split: {i.task for kind in LEVELS[level].instructions[split].values() for i in kind} for split in SPLITS}
    everything = {split: set() for split in SPLITS}
    for other in LEVELS.values():
        for split in SPLITS:
            everything[split] |= {i.task for kind in other.instructions[split].values() for i in kind}
    assert not tasks["eval"] & everything["train"]
    assert not tasks["train"] & everything["eval"]
    for split in SPLITS:
        assert all(LEVELS[level].instructions[split][kind] for kind in LEVELS[level].kinds)


def test_all_tasks_ask_for_an_instruction_of_their_split():
    for seed in (0, 1):
        alfworld, games = family(FamilyOptions(seed=seed)), GeneratedGames(LEVELS[1])
        asked = {
            split: {
                games.instruction(alfworld.task(split, index).seed, split).task
                for index in range(alfworld.num_tasks(split))
            }
            for split in SPLITS
        }
        assert len(asked["train"]) == 82
        assert len(asked["eval"]) == 14
        assert not asked["train"] & asked["eval"]


def test_the_text_of_a_task_is_that_of_its_goal():
    alfworld = family(FamilyOptions(level=3))
    kinds = Counter()
    for index in range(300):
        game = alfworld.game(alfworld.task("train", index))
        kinds[game.task.split()[4]] += 1
        assert game.goal.thing_type.removesuffix("Type").lower() in game.task
    assert set(kinds) == {"put", "clean", "heat", "cool", "look"}


def test_the_place_of_the_object_cannot_be_guessed():
    """In level 1 it lies in each of the two other places, by the order of the list, equally often."""
    alfworld, ranks = family(FamilyOptions()), Counter()
    for index in range(800):
        game = alfworld.game(alfworld.task("train", index))
        others = [i for i, r in enumerate(game.receptacles) if r.type != game.goal.receptacle_type]
        (target,) = (i for i, thing in enumerate(game.things) if thing.type == game.goal.thing_type)
        ranks[next(rank for rank, i in enumerate(others) if target in game.inside[i])] += 1
    assert len(ranks) == 2
    assert max(ranks.values()) < 1.3 * min(ranks.values())


def test_a_problem_is_pddl_that_names_everything_it_uses():
    games = GeneratedGames(LEVELS[3])
    for seed in range(20):
        problem = games.problem(seed, "train")
        declared = set(problem.partition("(:objects ")[2].partition(")")[0].split())
        used = set(problem.partition("(:init ")[2].replace("(", " ").replace(")", " ").split())
        names = {word for word in used if "_bar_" in word or (word.endswith("Type") and word[0].isupper())}
        assert names <= declared
        assert problem.count("(") == problem.count(")")
        assert parse_problem(problem, task="t", help_text="h").receptacles


def test_tasks_depend_on_the_seed_and_the_index_alone():
    first, again, other = (family(FamilyOptions(seed=seed)) for seed in (1, 1, 2))
    texts = [[f.make(f.task("train", i)).reset()[1].content for i in range(30)] for f in (first, again, other)]
    assert texts[0] == texts[1]
    # Houses may look alike from the middle of the room.
    assert len(set(texts[0])) >= 25
    assert len(set(texts[0]) & set(texts[2])) <= 3


def test_the_family_is_registered_and_fits_the_protocol():
    registry = EnvRegistry()
    register_all(registry)
    alfworld = registry.make("alfworld", FamilyOptions())
    assert isinstance(alfworld, EnvFamily)
    assert (alfworld.num_tasks("train"), alfworld.num_tasks("eval")) == (20_000, 2_000)
    assert {"mug", "desk"} <= set(alfworld.vocabulary())
    assert {"sinkbasin", "microwave", "fridge", "desklamp"} <= set(family(FamilyOptions(level=2)).vocabulary())


def test_what_is_out_of_range_is_refused():
    with pytest.raises(ConfigError, match="levels 1, 2, 3, got 4"):
        family(FamilyOptions(level=4))
    alfworld = family(FamilyOptions())
    for index in (-1, 20_000):
        with pytest.raises(EnvError, match="train tasks 0 to 19999"):
            alfworld.task("train", index)
    with pytest.raises(EnvError, match="kg"):
        alfworld.make(Task(env="kg", split="train", index=0, seed=0))
