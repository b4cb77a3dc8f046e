"""A visit to the shop: where the customer is, and what a search or a click does.

Follows WebShop's text mode: observations, and the list of what can be clicked, are the same, word for word. A visit
belongs to one episode; visits share nothing but an immutable catalogue.
"""

from collections.abc import Collection, Sequence

from envs.webshop import pages
from envs.webshop.catalogue import Catalogue, Product
from envs.webshop.goals import Goal
from envs.webshop.reward import reward_of


class Shop:
    """One visit.

    hits: what the last search found, None before one. page: of the hits, from 1. product: the one looked at.
    sub_page: which of its pages, None for the main one. options: chosen values by option name. reward: None until
    something was bought.
    """

    __slots__ = ("_catalogue", "goal", "hits", "options", "page", "product", "query", "reward", "sub_page")

    def __init__(self, catalogue: Catalogue, goal: Goal) -> None:
        self._catalogue = catalogue
        self.goal = goal
        self.query = ""
        self.hits: Sequence[Product] | None = None
        self.page = 1
        self.product: Product | None = None
        self.sub_page: str | None = None
        self.options: dict[str, str] = {}
        self.reward: float | None = None

    def copy(self) -> "Shop":
        other = Shop(self._catalogue, self.goal)
        other.query, other.hits, other.page = self.query, self.hits, self.page
        other.product, other.sub_page = self.product, self.sub_page
        other.options, other.reward = dict(self.options), self.reward
        return other

    @property
    def has_search_bar(self) -> bool:
        return self.hits is None

    def observation(self) -> str:
        instruction = self.goal.instruction
        if self.hits is None:
            return pages.home(instruction)
        if self.product is None:
            body = pages.results(self.hits, self.page)
        elif self.sub_page is None:
            body = pages.item(self.product)
        else:
            body = pages.sub_page(self.product, self.sub_page)
        return pages.below(instruction, body)

    def clickables(self) -> Collection[str]:
        """What can be clicked, in the order of the page."""
        if self.hits is None:
            return (pages.SEARCH,)
        if self.product is None:
            return pages.result_buttons(self.hits, self.page)
        if self.sub_page is not None:
            return (pages.BACK, pages.PREVIOUS)
        return pages.item_buttons(self.product)

    def available_actions(self) -> str:
        """Search bar and clickables, as AgentBench prints them."""
        return f"{{'has_search_bar': {self.has_search_bar}, 'clickables': {list(self.clickables())}}}"

    def search(self, keywords: str) -> None:
        """Search from any page; nothing happens without keywords."""
        if keywords:
            self.query = keywords.lower()
            self._show_results(self._catalogue.search(self.query), 1)

    def click(self, value: str) -> None:
        """Click what is named so, in either case. The search button does nothing, nor does what is not on the page."""
        value = value.lower()
        if value not in self.clickables() or self.hits is None:
            return
        if value == pages.BACK:
            self.hits, self.product, self.sub_page, self.options = None, None, None, {}
        elif self.product is None:
            self._click_result(value, self.hits)
        elif value == pages.PREVIOUS and self.sub_page is None:
            self._show_results(self.hits, self.page)
        elif value == pages.PREVIOUS:
            self.sub_page = None
        elif value == pages.BUY:
            self.reward = reward_of(self.product, self.options.values(), self.goal)
        elif value in pages.SUB_PAGES:
            self.sub_page = value
        else:
            name = pages.item_buttons(self.product)[value]
            # Only the values of options have a name.
            if name is not None:
                self.options[name] = value

    def _click_result(self, value: str, hits: Sequence[Product]) -> None:
        if value in (pages.NEXT, pages.PREVIOUS):
            self._show_results(hits, self.page + (1 if value == pages.NEXT else -1))
        else:
            self.product = self._catalogue.by_asin[value.upper()]

    def _show_results(self, hits: Sequence[Product], page: int) -> None:
        self.hits, self.page, self.product, self.sub_page, self.options = hits, page, None, None, {}
