"""Writes small random catalogues, each with one goal: shopped in by the same path as the published one.

An instruction's text without its price, hashed, decides its split, whatever the catalogue, the level or the family's
seed: no eval instruction is ever given in training.
"""

from dataclasses import dataclass
from functools import lru_cache
from random import Random

from agentrl_jax.errors import ConfigError, EnvError
from agentrl_jax.seeding import derive_seed
from agentrl_jax.types import Split
from envs.webshop.catalogue import Catalogue, Product
from envs.webshop.goals import NO_BOUND, Goal, Instruction, make_goal, price_bound
from envs.webshop.words import COLOURS, FINISHES, IDS, SIZES, STYLES, THINGS

# One instruction in EVAL_EVERY belongs to the eval split.
EVAL_EVERY = 8
MAX_DRAWS = 2_000
# What products cost, in dollars, where the instruction does not say what they may cost.
ROUND_PRICES = (10, 20, 30, 40)
_MAX_MADE = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """num_things, num_colours, num_ids: how many of the words it uses. num_alike: products of the wanted thing;
    num_others: of others. options: the options of every product. has_styles: titles and goals name a style too.
    has_prices: the instruction bounds the price.
    """

    num_things: int
    num_colours: int
    num_alike: int
    num_others: int
    options: dict[str, tuple[str, ...]]
    max_turns: int
    num_ids: int = len(IDS)
    has_styles: bool = False
    has_prices: bool = False

    @property
    def vocabulary(self) -> tuple[str, ...]:
        words = [*THINGS[: self.num_things], *COLOURS[: self.num_colours]]
        words += [value for values in self.options.values() for value in values]
        return (*words, *(STYLES if self.has_styles else ()), *IDS[: self.num_ids])


LEVELS = {
    1: Level(
        num_things=10, num_colours=8, num_ids=20, num_alike=2, num_others=1, options={"size": SIZES[:2]}, max_turns=7
    ),
    2: Level(
        num_things=16,
        num_colours=10,
        num_alike=6,
        num_others=6,
        options={"size": SIZES, "finish": FINISHES},
        max_turns=10,
        has_prices=True,
    ),
    3: Level(
        num_things=24,
        num_colours=12,
        num_alike=24,
        num_others=16,
        options={"size": SIZES, "finish": FINISHES},
        max_turns=15,
        has_styles=True,
        has_prices=True,
    ),
}


def level_of(number: int) -> Level:
    """Raises ConfigError for a level that does not exist."""
    if number not in LEVELS:
        raise ConfigError(f"environment webshop has generated levels {', '.join(map(str, LEVELS))}, got {number}")
    return LEVELS[number]


class GeneratedShops:
    """The shops of a level. A shop is a pure function of `seed` and `split`."""

    def __init__(self, level: Level) -> None:
        self._level = level
        self.shop = lru_cache(maxsize=_MAX_MADE)(self._shop)

    def _shop(self, seed: int, split: Split) -> tuple[Catalogue, Goal]:
        rng = Random(derive_seed(seed, "webshop"))
        for _ in range(MAX_DRAWS):
            wanted, options = self._draw(rng)
            words = f"Find me {' '.join(wanted)}"
            if split_of(words, options) == split:
                break
        else:
            raise EnvError(f"found no {split} instruction in {MAX_DRAWS} draws")
        products = self._products(wanted, rng)
        product = next(product for product in products if product.title == " ".join(wanted))
        instruction = Instruction(product=product, text=words, attributes=wanted[:-1])
        bound = price_bound(product) if self._level.has_prices else NO_BOUND
        return Catalogue(products), make_goal(instruction, options, bound)

    def _draw(self, rng: Random) -> tuple[tuple[str, ...], dict[str, str]]:
        """The words of a title, the thing last, and a value for every option."""
        level = self._level
        style = (rng.choice(STYLES),) if level.has_styles else ()
        title = (*style, rng.choice(COLOURS[: level.num_colours]), rng.choice(THINGS[: level.num_things]))
        return title, {name: rng.choice(values) for name, values in level.options.items()}

    def _products(self, wanted: tuple[str, ...], rng: Random) -> list[Product]:
        """The wanted product among others, no two of one title, in random order."""
        alike: dict[tuple[str, ...], None] = {wanted: None}
        others: dict[tuple[str, ...], None] = {}
        while len(alike) < self._level.num_alike or len(others) < self._level.num_others:
            title, _ = self._draw(rng)
            if title[-1] != wanted[-1] and len(others) < self._level.num_others:
                others[title] = None
            if len(alike) < self._level.num_alike:
                alike[(*title[:-1], wanted[-1])] = None
        titles = [*alike, *others]
        rng.shuffle(titles)
        ids = rng.sample(IDS[: self._level.num_ids], len(titles))
        return [self._product(id_, title, rng) for id_, title in zip(ids, titles, strict=True)]

    def _product(self, id_: str, title: tuple[str, ...], rng: Random) -> Product:
        price = rng.randint(5, 90) if self._level.has_prices else rng.choice(ROUND_PRICES)
        return Product(
            asin=id_,
            title=" ".join(title),
            query=title[-1],
            price=float(price),
            price_tag=f"${price}",
            options=self._level.options,
            attributes=title[:-1],
            nouns=title[-1:],
        )


def split_of(words: str, options: dict[str, str]) -> Split:
    """The split that an instruction belongs to."""
    parts = (part for option in sorted(options.items()) for part in option)
    return "eval" if derive_seed("webshop split", words, *parts) % EVAL_EVERY == 0 else "train"
