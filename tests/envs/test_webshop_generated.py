"""Generated shops: small, solvable, and never the same instruction in both splits."""

from random import Random

import pytest

from agentrl_jax.env import Action, FamilyOptions
from agentrl_jax.errors import ConfigError, EnvError
from agentrl_jax.types import EpisodeEnd, Task
from envs.webshop import family
from envs.webshop.calls import click_call, search_call
from envs.webshop.generated import LEVELS, split_of
from envs.webshop.words import COLOURS, FINISHES, IDS, SIZES, STYLES, THINGS

LISTS = (THINGS, COLOURS, SIZES, FINISHES, STYLES, IDS)


def replayed(shop, task, messages):
    """The results of playing the assistant turns of a demonstration."""
    env = shop.make(task)
    env.reset()
    return [env.step(Action(calls=m.tool_calls)) for m in messages if m.role == "assistant"]


def instruction_of(shop, task):
    return shop.shop(task)[1].instruction.split(", and price")[0]


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("split", ["train", "eval"])
def test_the_expert_earns_everything_within_the_turns(level, split):
    shop = family(FamilyOptions(level=level, seed=3))
    for index in range(25):
        task = shop.task(split, index)
        messages = shop.demonstrate(task, Random(index), noise=0.0)
        results = replayed(shop, task, messages)
        assert len(results) <= shop.max_turns - 2
        assert [result.reward for result in results] == [0.0] * (len(results) - 1) + [1.0]


@pytest.mark.parametrize("level", LEVELS)
def test_noisy_demonstrations_end_with_a_purchase_and_are_what_an_episode_shows(level):
    shop = family(FamilyOptions(level=level))
    rewards = []
    for index in range(60):
        task = shop.task("train", index)
        messages = shop.demonstrate(task, Random(index), noise=0.6)
        results = replayed(shop, task, messages)
        assert len(results) <= shop.max_turns
        assert results[-1].end is EpisodeEnd.COMPLETED
        assert [m for m in messages if m.role == "tool"] == [m for result in results for m in result.messages]
        rewards.append(results[-1].reward)
    assert 0.6 < sum(rewards) / len(rewards) < 1.0


@pytest.mark.parametrize("level", LEVELS)
def test_a_customer_who_buys_at_random_earns_little(level):
    shop = family(FamilyOptions(level=level))
    rewards = []
    for index in range(100):
        task, rng = shop.task("train", index), Random(index)
        catalogue, goal = shop.shop(task)
        env = shop.make(task)
        env.reset()
        env.step(Action(calls=(search_call(goal.instruction),)))
        env.step(Action(calls=(click_call(rng.choice(catalogue.products[:10]).asin),)))
        rewards.append(env.step(Action(calls=(click_call("buy now"),))).reward)
    assert max(rewards) < 1.0
    assert sum(rewards) / len(rewards) < 0.4


def test_instructions_of_eval_are_never_given_in_training_at_any_level_or_seed():
    seen = {"train": set(), "eval": set()}
    for level in LEVELS:
        for seed in (0, 1):
            shop = family(FamilyOptions(level=level, seed=seed))
            for split, instructions in seen.items():
                instructions |= {instruction_of(shop, shop.task(split, index)) for index in range(60)}
    assert not seen["train"] & seen["eval"]
    assert len(seen["eval"]) > 150


def test_a_split_depends_on_words_and_options_in_any_order():
    assert split_of("Find me red lamp", {"a": "x", "b": "y"}) == split_of("Find me red lamp", {"b": "y", "a": "x"})
    splits = [split_of(f"Find me {i} lamp", {}) for i in range(800)]
    assert 60 < splits.count("eval") < 140


def test_a_level_1_page_is_short_and_its_words_are_known():
    shop = family(FamilyOptions())
    task = shop.task("train", 0)
    messages = shop.demonstrate(task, Random(0), noise=0.0)
    assert len(messages) == 2 + 2 * 4
    assert sum(len(message.content) for message in messages) < 1900
    titles = {word for product in shop.shop(task)[0].products for word in product.title.split()}
    assert titles <= set(shop.vocabulary())


def test_words_are_single_distinct_and_in_no_other_list():
    words = [word for list_ in LISTS for word in list_]
    assert len(words) == len(set(words))
    assert all(word == word.lower() and word.isalnum() for word in words)


def test_no_two_products_of_a_catalogue_have_one_title_or_id():
    for level in LEVELS:
        shop = family(FamilyOptions(level=level))
        for index in range(5):
            products = shop.shop(shop.task("train", index))[0].products
            assert len(products) == LEVELS[level].num_alike + LEVELS[level].num_others
            assert len({p.title for p in products}) == len({p.asin for p in products}) == len(products)


def test_what_is_refused():
    with pytest.raises(ConfigError, match="generated levels 1, 2, 3, got 9"):
        family(FamilyOptions(level=9))
    shop = family(FamilyOptions())
    with pytest.raises(EnvError, match="train tasks 0 to 19999, asked for 20000"):
        shop.task("train", 20_000)
    with pytest.raises(EnvError, match="cannot make an env"):
        shop.make(Task(env="kg", split="train", index=0, seed=0))
    with pytest.raises(ConfigError, match="noise must be between 0 and 1"):
        shop.demonstrate(shop.task("train", 0), Random(0), noise=1.5)
