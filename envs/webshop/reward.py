"""What a purchase is worth: WebShop's reward.

    r = r_type * (matched attributes + matched options + [price <= bound]) / (attributes + options + 1)

r_type is 1 if the product is of the type that was asked for, less if its title has little in common with the wanted
one's. Source: Yao et al. 2022 (arXiv 2207.01206), section 3, and the published code where the paper is silent.
"""

import re
from collections.abc import Collection

from rapidfuzz import fuzz, utils

from envs.webshop.catalogue import Product
from envs.webshop.colours import normalised
from envs.webshop.goals import Goal

# A text matches another from this similarity on, in percent, rounded.
MIN_SIMILARITY = 86
_LATIN_1 = re.compile("[\x80-\xff]")


def reward_of(product: Product, options: Collection[str], goal: Goal) -> float:
    """The reward in [0, 1] of buying `product` with these option values, for `goal`."""
    num_matched = _num_attributes(product, goal) + _num_options(options, goal) + (product.price <= goal.max_price)
    return type_reward(product, goal) * num_matched / (len(goal.attributes) + len(goal.options) + 1)


def type_reward(product: Product, goal: Goal) -> float:
    """1, 0.5, 0.1 or 0: is the product of the wanted type?

    title: the fraction of the wanted title's nouns that the product's title has; 0.2 if the wanted title has none.
    """
    wanted = goal.product
    title = 0.2 if not wanted.nouns else len({*wanted.nouns} & {*product.nouns}) / len(wanted.nouns)
    if title == 0.0:
        return 0.0
    if title < 0.1:
        return 0.1
    is_of_type = product.query == wanted.query or len(product.categories & wanted.categories) >= 2 or title > 0.2
    return 1.0 if is_of_type else 0.5


def _num_attributes(product: Product, goal: Goal) -> int:
    """How many wanted attributes the product has: in its list, or word for word in one of its texts."""
    return sum(
        any(similar(own, wanted) for own in product.attributes) or any(wanted in text for text in product.texts)
        for wanted in goal.attributes
    )


def _num_options(options: Collection[str], goal: Goal) -> int:
    chosen = [normalised(value) for value in options]
    return sum(any(similar(own, normalised(wanted)) for own in chosen) for wanted in goal.options.values())


def similar(first: str, second: str) -> bool:
    """Whether the texts' sets of words are alike.

    >>> similar("x-large", "large"), similar("red wine", "wine, red"), similar("blue", "green")
    (True, True, False)
    """
    return round(fuzz.token_set_ratio(_plain(first), _plain(second))) >= MIN_SIMILARITY


def _plain(text: str) -> str:
    return utils.default_process(_LATIN_1.sub("", text))
