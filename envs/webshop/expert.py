"""The scripted expert, which shows whole episodes for supervised warm-up: it knows what to buy."""

from random import Random

from agentrl_jax.env import Action, Env, Message, ToolCall
from agentrl_jax.errors import ConfigError, EnvError
from envs.webshop import pages
from envs.webshop.calls import SEARCH_ACTION, click_call, search_call
from envs.webshop.catalogue import PAGE_SIZE, Catalogue
from envs.webshop.goals import Goal
from envs.webshop.shop import Shop

# Of the random actions on a product's page: how many buy it, and so end the episode, mostly wrongly.
BUY_FRAC = 0.1
# Of the random actions: how many search for some words of the instruction.
SEARCH_FRAC = 0.1
# The expert's longest way; a longer one means that it goes in circles.
MAX_PLAN = 50


class Expert:
    """query: what finds the goal's product: its title if the instruction names it, else the instruction, unless the
    search finds the product by its title or id only.
    """

    def __init__(self, catalogue: Catalogue, goal: Goal) -> None:
        self._goal = goal
        instruction, title = goal.instruction.lower(), goal.product.title.lower()
        queries = (title if title in instruction else instruction, title, goal.product.asin.lower())
        self.query = next((query for query in queries if goal.product in catalogue.search(query)), title)

    def next_call(self, shop: Shop) -> ToolCall:
        """The expert's action where `shop` stands."""
        goal = self._goal
        if shop.hits is None or shop.query != self.query:
            return search_call(self.query)
        if shop.product is None:
            return click_call(self._on_results(shop, [hit.asin for hit in shop.hits].index(goal.product.asin)))
        if shop.product is not goal.product or shop.sub_page is not None:
            return click_call(pages.PREVIOUS)
        return click_call(self._on_item(shop))

    def _on_results(self, shop: Shop, position: int) -> str:
        page = position // PAGE_SIZE + 1
        if page == shop.page:
            return self._goal.product.asin.lower()
        return pages.NEXT if page > shop.page else pages.PREVIOUS

    def _on_item(self, shop: Shop) -> str:
        """The first missing option that a click would set; else the purchase."""
        buttons = pages.item_buttons(self._goal.product)
        for name, value in self._goal.options.items():
            if shop.options.get(name) != value and buttons[value] == name:
                return value
        return pages.BUY

    def num_turns_needed(self, shop: Shop) -> int:
        """How many turns the expert would need from here on."""
        shop = shop.copy()
        for num_turns in range(MAX_PLAN):
            if shop.reward is not None:
                return num_turns
            carry_out(shop, self.next_call(shop))
        raise EnvError(f"the expert's way to buy {self._goal.product.asin} has no end")

    def random_call(self, shop: Shop, rng: Random) -> ToolCall:
        """A well-formed call that need not make sense."""
        words = self._goal.instruction.lower().split()
        choices = [value for value in shop.clickables() if value not in (pages.SEARCH, pages.BUY)]
        if not choices or rng.random() < SEARCH_FRAC:
            first = rng.randrange(len(words))
            return search_call(" ".join(words[first : first + rng.randint(1, 3)]))
        if shop.product is not None and shop.sub_page is None and rng.random() < BUY_FRAC:
            return click_call(pages.BUY)
        return click_call(rng.choice(choices))


def carry_out(shop: Shop, call: ToolCall) -> None:
    (argument,) = call.arguments.values()
    if call.name == SEARCH_ACTION.name:
        shop.search(argument)
    else:
        shop.click(argument)


def demonstrate(
    env: Env, catalogue: Catalogue, goal: Goal, rng: Random, *, noise: float, max_turns: int
) -> tuple[Message, ...]:
    """Play `env`, an env of `goal`, from reset to its end; returns the messages in the form an episode has.

    A turn is random with probability `noise`, unless the expert needs all the turns that are left: every
    demonstration ends with a purchase within `max_turns`. The caller closes `env`. Raises ConfigError for `noise` out
    of [0, 1].
    """
    if not 0.0 <= noise <= 1.0:
        raise ConfigError(f"noise must be between 0 and 1, got {noise}")
    messages = list(env.reset())
    shop, expert = Shop(catalogue, goal), Expert(catalogue, goal)
    for turns_left in range(max_turns, 0, -1):
        call = expert.next_call(shop)
        if rng.random() < noise:
            drawn = expert.random_call(shop, rng)
            after = shop.copy()
            carry_out(after, drawn)
            if expert.num_turns_needed(after) < turns_left:
                call = drawn
        result = env.step(Action(calls=(call,)))
        messages += (Message(role="assistant", tool_calls=(call,)), *result.messages)
        if result.end is not None:
            break
        carry_out(shop, call)
    return tuple(messages)
