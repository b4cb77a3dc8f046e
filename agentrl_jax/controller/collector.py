"""The garbage collector while thousands of episodes are alive.

Episodes leave no reference cycles, so whatever the collector visits on their account is time lost, in every thread at
once: by default it looks through all live objects whenever a quarter more of them have aged, which is most of a second
at 10,000 episodes. It stays on for the cycles that others make (environments, tracebacks), but seldom walks far.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

# New objects (more by so many than have gone) before a young collection, whose pause they bound: some milliseconds.
# Young collections before one of the middle generation, and those before a full one: both visit whatever is alive, so
# they come every half a million new objects.
_THRESHOLDS = (1_000, 500, 2)


@contextmanager
def calm_collector() -> Iterator[None]:
    """Within the block, leave what exists already out of all collections, and make full ones rare.

    Enter it once modules, params and data are there. Everything is as before when the block ends. Not reentrant.
    """
    before = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_THRESHOLDS)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()
