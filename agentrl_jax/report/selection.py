"""Which episodes a report shows token by token, and which it lists: seeded, and fair to every task and end."""

from collections.abc import Collection, Sequence
from random import Random

import numpy as np

from agentrl_jax.report.episode_table import EpisodeTable

MAX_DETAILED = 200
"""Episodes with token detail in one report."""

MAX_LISTED = 50_000
"""Episodes with a summary in one report."""

MAX_BATCHES = 40
"""Recorded batches that one report reads."""


def evenly_spaced(values: Sequence[int], at_most: int) -> list[int]:
    """The first, the last, and others between them at even distances.

    >>> evenly_spaced([1, 2, 3, 4, 5, 6, 7, 8, 9], 3)
    [1, 5, 9]
    >>> evenly_spaced([3, 4], 5)
    [3, 4]
    """
    if len(values) <= at_most:
        return list(values)
    places = np.linspace(0, len(values) - 1, at_most).round().astype(int)
    return [values[place] for place in places]


def choose_detailed(
    table: EpisodeTable, *, seed: int, steps: Collection[int], at_most: int = MAX_DETAILED, first: Sequence[int] = ()
) -> list[int]:
    """Rows to show token by token: `first`, then one of each env and end in turn, until `at_most` (at least `first`).

    Within an env and end the order is drawn from `seed`, episodes of `steps` (whose batches are at hand) before others.
    Ascending but for `first`.
    """
    random, known = Random(seed), set(steps)
    strata: dict[tuple[int, int], list[int]] = {}
    columns = (table.columns[name] for name in ("env", "end"))
    for row, key in enumerate(zip(*columns, strict=True)):
        strata.setdefault(key, []).append(row)
    queues = []
    for _, rows in sorted(strata.items()):
        random.shuffle(rows)
        rows.sort(key=lambda row: table.columns["step"][row] not in known)
        queues.append(iter(rows))
    chosen: list[int] = []
    taken = set(first)
    while queues and len(first) + len(chosen) < at_most:
        for queue in list(queues):
            free = next((row for row in queue if row not in taken), None)
            if free is None:
                queues.remove(queue)
            elif len(first) + len(chosen) < at_most:
                chosen.append(free)
    return [*first, *sorted(chosen)]


def choose_listed(table: EpisodeTable, always: Collection[int], *, seed: int, at_most: int = MAX_LISTED) -> list[int]:
    """Ascending rows to list: all, or `always` and a seeded even draw of the others."""
    if len(table) <= at_most:
        return list(range(len(table)))
    others = sorted(set(range(len(table))) - set(always))
    drawn = Random(seed).sample(others, max(0, at_most - len(always)))
    return sorted({*always, *drawn})
