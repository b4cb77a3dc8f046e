"""What is to be bought.

The goals of a catalogue are made of its products' instructions as WebShop makes its synthetic goals: one for every
combination of a product's options, with a bound on the price. WebShop draws the bounds anew in every process; here
they follow from the product alone.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product as combinations
from random import Random

from agentrl_jax.seeding import derive_seed
from agentrl_jax.types import Split
from envs.webshop.catalogue import Product

# A bound is the higher one of two drawn from the next four multiples of ten dollars above the price.
PRICE_STEP = 10.0
NUM_STEPS = 4
MAX_BOUND = 990.0
# A product that costs more has no bound.
NO_BOUND = 1_000_000.0
# WebShop shuffles its goals so; AgentBench then tests on the first of them, and trains from START on.
SHUFFLE_SEED = 233
NUM_STD = 200
START = 1000
# One product in so many is held out by `unseen`.
HELD_OUT_EVERY = 10


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Goal:
    """instruction: what the policy is told. product: one that fulfils it, with `options`. max_price: in dollars."""

    instruction: str
    product: Product
    attributes: tuple[str, ...]
    options: Mapping[str, str]
    max_price: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Instruction:
    """A product with the sentence that asks for it, and the attributes that the sentence names."""

    product: Product
    text: str
    attributes: tuple[str, ...]


def price_bound(product: Product) -> float:
    """The bound on the price in dollars, the same in every process; NO_BOUND for the most expensive products."""
    first = int(product.price // PRICE_STEP) + 1
    steps = [PRICE_STEP * i for i in range(max(first, 1), first + NUM_STEPS) if PRICE_STEP * i <= MAX_BOUND]
    if len(steps) < 2:
        return NO_BOUND
    return max(Random(derive_seed("webshop price bound", product.asin)).sample(steps, 2))


def make_goal(instruction: Instruction, options: Mapping[str, str], max_price: float) -> Goal:
    """The goal with its instruction in WebShop's words."""
    chosen = ", and ".join(f"{name}: {value}" for name, value in options.items())
    text = f"{instruction.text} with {chosen}" if chosen else instruction.text
    if max_price < NO_BOUND:
        text += f", and price lower than {max_price:.2f} dollars"
    return Goal(
        instruction=text,
        product=instruction.product,
        attributes=instruction.attributes,
        options=options,
        max_price=max_price,
    )


def goals_of(instructions: Sequence[Instruction]) -> list[Goal]:
    """Every goal, in WebShop's order before it shuffles."""
    goals = []
    for instruction in instructions:
        options, bound = instruction.product.options, price_bound(instruction.product)
        names = sorted(options)
        for values in combinations(*(options[name] for name in names)):
            goals.append(make_goal(instruction, dict(zip(names, values, strict=True)), bound))
    return goals


def split_goals(goals: Sequence[Goal], eval_set: str) -> dict[Split, tuple[Goal, ...]]:
    """The goals of each split.

    std: AgentBench's, the first 200 of the shuffled goals; training has those from 1,000 on, which may ask for other
    options of the same products. unseen: the goals of every tenth product, by a hash of its id; training has the rest.
    """
    shuffled = list(goals)
    Random(SHUFFLE_SEED).shuffle(shuffled)
    if eval_set == "std":
        return {"train": tuple(shuffled[START:]), "eval": tuple(shuffled[:NUM_STD])}
    held_out = [_is_held_out(goal.product) for goal in shuffled]
    return {
        "train": tuple(goal for goal, is_out in zip(shuffled, held_out, strict=True) if not is_out),
        "eval": tuple(goal for goal, is_out in zip(shuffled, held_out, strict=True) if is_out),
    }


def _is_held_out(product: Product) -> bool:
    return derive_seed("webshop split", product.asin) % HELD_OUT_EVERY == 0
