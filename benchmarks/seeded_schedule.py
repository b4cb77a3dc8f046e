"""The order in which trio runs its tasks, as a function of a seed: for simulations that give the same figures again.

trio shuffles tasks that can run at the same time, so that nobody relies on their order. What it has for tests that are
to replay a schedule (Hypothesis's plugin uses it) is used here: such tasks are sorted by their age and then shuffled by
a generator of trio's own, which is seeded. The names are private to trio; a test says if they mean something else.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from trio._core import _run


@contextmanager
def seeded_schedule(seed: int) -> Iterator[None]:
    """Every `trio.run` in the body that does the same gets the same schedule for the same seed."""
    was_sorted, state = _run._ALLOW_DETERMINISTIC_SCHEDULING, _run._r.getstate()
    vars(_run)["_ALLOW_DETERMINISTIC_SCHEDULING"] = True
    _run._r.seed(seed)
    try:
        yield
    finally:
        vars(_run)["_ALLOW_DETERMINISTIC_SCHEDULING"] = was_sorted
        _run._r.setstate(state)
