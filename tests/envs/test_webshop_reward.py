"""What a purchase is worth, by hand."""

import pytest

from envs.webshop.catalogue import Product
from envs.webshop.goals import NO_BOUND, Goal, Instruction, goals_of, make_goal, price_bound, split_goals
from envs.webshop.reward import reward_of, similar, type_reward

LAMP = {
    "asin": "B0LAMP0001",
    "title": "Acme Oak Lamp",
    "query": "lamps",
    "category": "Home \u203a Lighting \u203a Lamps",
    "description": "Dimmable and bright.",
    "bullets": ("Easy clean shade", "LED"),
    "price": 25.0,
    "price_tag": "$25.0",
    "options": {"size": ("small", "x-large"), "color": ("dark red", "sky blue")},
    "attributes": ("solid wood",),
    "nouns": ("acme", "oak", "lamp"),
}


def product(**changes):
    return Product(**{**LAMP, **changes})


def goal(**changes):
    fields = {
        "instruction": "Find me a lamp",
        "product": product(),
        "attributes": ("solid wood", "easy clean"),
        "options": {"color": "dark red", "size": "small"},
        "max_price": 30.0,
    }
    return Goal(**{**fields, **changes})


@pytest.mark.parametrize(
    ("bought", "options", "wanted", "reward"),
    [
        ({}, ("dark red", "small"), {}, 1.0),
        ({}, ("small",), {}, 4 / 5),
        ({}, (), {}, 3 / 5),
        ({"price": 30.0}, (), {}, 3 / 5),
        ({"price": 30.01}, (), {}, 2 / 5),
        ({"attributes": ()}, ("dark red", "small"), {}, 4 / 5),
        ({"attributes": (), "bullets": ()}, ("dark red", "small"), {}, 3 / 5),
        ({"attributes": ("wood, solid",)}, ("dark red", "small"), {}, 1.0),
        # Both are "dark" to the colour rule: its list is alphabetical.
        ({}, ("dark green", "small"), {}, 1.0),
        ({}, ("sky blue", "small"), {}, 4 / 5),
        # A set of words that contains the other's counts as equal: the published rule is that lenient.
        ({}, ("dark red", "x-small"), {}, 1.0),
        ({}, (), {"options": {}, "attributes": ("solid wood",)}, 1.0),
        ({"nouns": ()}, ("dark red", "small"), {}, 0.0),
    ],
)
def test_a_purchase_is_worth_its_matched_parts(bought, options, wanted, reward):
    assert reward_of(product(**bought), options, goal(**wanted)) == pytest.approx(reward)


@pytest.mark.parametrize(
    ("bought", "wanted_nouns", "expected"),
    [
        ({"query": "x", "category": "y"}, ("lamp", "oak", "acme"), 1.0),
        ({"query": "x", "category": "y", "nouns": ("lamp",)}, ("lamp", "a", "b", "c", "d"), 0.5),
        ({"category": "y", "nouns": ("lamp",)}, ("lamp", "a", "b", "c", "d"), 1.0),
        ({"query": "x", "nouns": ("lamp",), "category": "Lamps \u203a Home"}, ("lamp", "a", "b", "c", "d"), 1.0),
        ({"query": "x", "nouns": ("lamp",), "category": "Lamps"}, ("lamp", "a", "b", "c", "d"), 0.5),
        ({"nouns": ("lamp",)}, ("lamp", *"abcdefghijk"), 0.1),
        ({"nouns": ("mug",)}, ("lamp",), 0.0),
        ({"nouns": ("mug",)}, (), 1.0),
        ({"nouns": ("mug",), "query": "x", "category": "y"}, (), 0.5),
    ],
)
def test_the_type_of_a_product_scales_its_worth(bought, wanted_nouns, expected):
    assert type_reward(product(**bought), goal(product=product(nouns=wanted_nouns))) == expected


def test_repeated_nouns_of_the_wanted_title_count_each_time():
    wanted = goal(product=product(nouns=("lamp", "oak", "oak", "oak", "oak"), query="z", category=""))
    assert type_reward(product(nouns=("lamp",), category=""), wanted) == 0.5


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        # token_set_ratio is 85.7 and 85.2; as published, they are compared after rounding.
        ("abcdefg", "abcdefh", True),
        ("caf\xe9", "CAF", True),
        ("", "", False),
        ("red", "", False),
        ("natural wood", "wood natural finish", True),
    ],
)
def test_similarity_is_that_of_word_sets(first, second, expected):
    assert similar(first, second) is expected
    assert similar(second, first) is expected


def test_a_goal_for_every_combination_of_options_in_webshops_words():
    instruction = Instruction(product=product(), text="Find me lamps", attributes=("solid wood",))
    goals = goals_of([instruction])
    bound = price_bound(product())
    assert bound in (40.0, 50.0, 60.0)
    assert [goal.instruction for goal in goals] == [
        f"Find me lamps with color: {color}, and size: {size}, and price lower than {bound:.2f} dollars"
        for color in ("dark red", "sky blue")
        for size in ("small", "x-large")
    ]
    assert {goal.max_price for goal in goals} == {bound}


@pytest.mark.parametrize(
    ("price", "bounds"),
    [(5.0, {20, 30, 40}), (10.0, {30, 40, 50}), (965.0, {980, 990}), (979.99, {990}), (980.0, {NO_BOUND})],
)
def test_a_bound_is_the_higher_of_two_of_the_next_four_tens(price, bounds):
    drawn = {price_bound(product(price=price, asin=str(i))) for i in range(60)}
    assert drawn == bounds


def test_what_has_no_options_and_no_bound_is_asked_for_in_bare_words():
    bare = Instruction(product=product(options={}, price=2000.0), text="Find me lamps", attributes=("solid wood",))
    (found,) = goals_of([bare])
    assert (found.instruction, found.max_price) == ("Find me lamps", NO_BOUND)


def test_splits_never_share_a_goal_and_unseen_never_a_product():
    instructions = [
        Instruction(product=product(asin=f"B{i:09d}"), text="Find me lamps", attributes=("solid wood",))
        for i in range(400)
    ]
    goals = goals_of(instructions)
    std, unseen = split_goals(goals, "std"), split_goals(goals, "unseen")
    assert (len(std["eval"]), len(std["train"])) == (200, 600)
    assert not set(map(id, std["eval"])) & set(map(id, std["train"]))
    assert len(unseen["eval"]) + len(unseen["train"]) == 1600
    asins = {split: {goal.product.asin for goal in goals} for split, goals in unseen.items()}
    assert not asins["train"] & asins["eval"]
    assert 20 < len(asins["eval"]) < 60


def test_make_goal_joins_options_in_the_order_given():
    instruction = Instruction(product=product(), text="Find me lamps", attributes=())
    made = make_goal(instruction, {"size": "small", "color": "red"}, NO_BOUND)
    assert made.instruction == "Find me lamps with size: small, and color: red"
