"""WebShop: searches, clicks and purchases, each with its page and its list of what can be clicked.

kb_per_live_session: of one session with a product's page open; the catalogue, which all share, is catalogue_mb.
search_us: a search whose answer is not kept from before.
"""

import tracemalloc
from collections.abc import Mapping
from time import process_time

from agentrl_jax.env import Action, EnvFamily, FamilyOptions
from benchmarks.env_cases import CaseOptions, EnvCase, expert_turns, steps_per_cpu_s
from envs.webshop.calls import search_call
from envs.webshop.catalogue import Catalogue
from envs.webshop.tasks import make_family


def measure(options: CaseOptions) -> Mapping[str, float]:
    """The published catalogue, or generated ones of the hardest level where there is no data."""
    shop = make_family(FamilyOptions(data=options.data, level=1 if options.data else 3))
    num_tasks = 30 if options.is_quick else 200
    goals = [shop.shop(shop.task("eval", index)) for index in range(num_tasks)]
    catalogue = Catalogue(goals[0][0].products)
    begun_s = process_time()
    for _, goal in goals:
        catalogue.search(goal.instruction)
    searched_s = process_time() - begun_s
    played = expert_turns(shop, num_tasks, noise=0.3)
    return {
        "steps_per_cpu_s": steps_per_cpu_s(shop, played, least_s=0.1 if options.is_quick else 1.0),
        "search_us": 1e6 * searched_s / num_tasks,
        "kb_per_live_session": _kilobytes_of_a_session(shop, num_tasks),
        "catalogue_mb": _megabytes(goals[0][0]),
    }


def _kilobytes_of_a_session(shop: EnvFamily, count: int) -> float:
    tracemalloc.start()
    alive = [shop.make(shop.task("eval", 0)) for _ in range(count)]
    for env in alive:
        env.reset()
        env.step(Action(calls=(search_call("red"),)))
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return size / count / 1024


def _megabytes(catalogue: Catalogue) -> float:
    """Of the index and what a catalogue keeps beside the products' texts."""
    tracemalloc.start()
    again = Catalogue(catalogue.products)
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert again.products
    return size / 2**20


CASES = (
    EnvCase(
        name="webshop",
        units={
            "steps_per_cpu_s": "1/s",
            "search_us": "us",
            "kb_per_live_session": "KiB",
            "catalogue_mb": "MiB",
        },
        measure=measure,
    ),
)
