"""Run trio code in virtual time, under Hypothesis or on its own."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

import trio
from trio.testing import MockClock

T = TypeVar("T")


def run_virtual(main: Callable[[], Awaitable[T]]) -> T:
    """Run `main` to its end on a clock that jumps whenever every task sleeps, starting at 0.

    With `st.random_module()` among a property's strategies, Hypothesis owns the order in which trio runs its tasks
    and replays a failing schedule exactly. Code that waits for threads must not run under this clock: a pending
    deadline would pass while the thread works.
    """
    return trio.run(main, clock=MockClock(autojump_threshold=0.0))
