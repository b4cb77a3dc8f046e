"""The published catalogue, from the pack of a data folder (`--data`).

`FOLDER/webshop/products_1000.jsonl.xz` holds WebShop's small set, one product a line, with the sentences of its
synthetic instructions and the nouns of its titles. WebShop is published under the MIT licence.
"""

import json
import lzma
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from random import Random
from typing import Any

from agentrl_jax.errors import ConfigError
from agentrl_jax.seeding import derive_seed
from envs.webshop.catalogue import Catalogue, Product
from envs.webshop.goals import Goal, Instruction, goals_of

FOLDER = "webshop"
PRODUCTS_FILE = "products_1000.jsonl.xz"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pack:
    """goals: all of them, in the order of the products."""

    catalogue: Catalogue
    goals: tuple[Goal, ...]


def load_pack(data: Path) -> Pack:
    """The catalogue and its goals, read once per process. Raises ConfigError naming the file that is at fault."""
    return _load_pack(data.resolve() / FOLDER / PRODUCTS_FILE)


@lru_cache(maxsize=2)
def _load_pack(path: Path) -> Pack:
    if not path.is_file():
        raise ConfigError(f"environment webshop expects WebShop's products in {path}, which is missing")
    try:
        with lzma.open(path, "rt", encoding="utf-8") as file:
            rows = [json.loads(line) for line in file]
        products = [product_of(row) for row in rows]
        instructions = [
            Instruction(product=product, text=row["instruction"], attributes=tuple(row["instruction_attributes"]))
            for row, product in zip(rows, products, strict=True)
            if row["instruction"] is not None
        ]
        catalogue = Catalogue(products)
    except (lzma.LZMAError, OSError, EOFError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"{path}: expected a product in every line of a file compressed with xz, but {error!r}"
        ) from error
    return Pack(catalogue=catalogue, goals=tuple(goals_of(instructions)))


def product_of(row: Mapping[str, Any]) -> Product:
    """A product from its line. One with a price range costs what is drawn from it, the same in every process."""
    low, high = row["pricing"][0], row["pricing"][-1]
    rng = Random(derive_seed("webshop price", row["asin"]))
    return Product(
        asin=row["asin"],
        title=row["name"],
        query=row["query"],
        category=row["product_category"],
        description=row["description"],
        bullets=tuple(row["bullet_points"]),
        price=low if low == high else rng.uniform(low, high),
        price_tag=row["price_tag"],
        options={name: tuple(values) for name, values in row["options"].items()},
        attributes=tuple(row["attributes"]),
        nouns=tuple(row["name_nouns"]),
    )
