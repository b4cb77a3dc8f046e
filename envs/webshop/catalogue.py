"""Products, and the catalogue that all sessions share."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from envs.webshop.text_index import TextIndex

# A search shows no more, this many on a page.
MAX_HITS = 50
PAGE_SIZE = 10


@dataclass(frozen=True, kw_only=True, eq=False)
class Product:
    """asin: its upper-case id. query: what it was found by, a kind of product. category: a path, parted by U+203A.

    options: name to values, in lower case. price: what it costs, in dollars. nouns: lower-case nouns of the title,
    with repetitions; they decide whether two products are of one type.
    """

    asin: str
    title: str
    query: str
    category: str = ""
    description: str = ""
    bullets: tuple[str, ...] = ()
    price: float
    price_tag: str
    options: Mapping[str, tuple[str, ...]]
    attributes: tuple[str, ...]
    nouns: tuple[str, ...]

    @property
    def document(self) -> str:
        """What search looks at."""
        options = ", and ".join(f"{name}: {', '.join(values)}" for name, values in self.options.items())
        return " ".join((self.title, self.description, self.bullets[0] if self.bullets else "", options))

    @cached_property
    def texts(self) -> tuple[str, str, str]:
        """Title, bullets and description in lower case."""
        return self.title.lower(), " ".join(self.bullets).lower(), self.description.lower()

    @cached_property
    def categories(self) -> frozenset[str]:
        return frozenset(part.strip() for part in self.category.split("\u203a"))


class Catalogue:
    """Immutable once made; sessions on threads share it, and forked processes share its pages."""

    def __init__(self, products: Sequence[Product]) -> None:
        self.products = tuple(products)
        self.by_asin = {product.asin: product for product in products}
        self._index = TextIndex(product.document for product in products)

    def search(self, query: str) -> tuple[Product, ...]:
        """The products that the query finds, best first."""
        return tuple(self.products[number] for number in self._index.search(query, MAX_HITS))
