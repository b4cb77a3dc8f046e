"""A clock for trio that counts this process's processor time, as if it had a core to itself and never had to wait.

While tasks run, time passes as processor time does; once all of them wait, it jumps to the next deadline. So a minute
of mostly idle schedule is measured in the seconds that it computes, and what other programs do to the schedule of a
shared machine does not look like lag. Not for code that waits for threads or sockets: it would jump over their answers.
"""

import math
import time

import trio


class ProcessorClock(trio.abc.Clock):
    """See the module."""

    def __init__(self) -> None:
        self._skipped_s = 0.0

    def start_clock(self) -> None:
        pass

    def current_time(self) -> float:
        return time.process_time() + self._skipped_s

    def deadline_to_sleep_time(self, deadline: float) -> float:
        """Asked only when no task can run."""
        if deadline == math.inf:
            return math.inf
        self._skipped_s += max(0.0, deadline - self.current_time())
        return 0.0
