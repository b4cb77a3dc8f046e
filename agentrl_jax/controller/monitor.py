"""How late the event loop is: a task that measures how long after its time it wakes.

One thread runs every episode, so whatever blocks it (a slow function, a flush on the wrong side of a thread) delays
all of them. The lag is what an engine's answer or a deadline waits before anybody looks at it.
"""

from collections import deque
from dataclasses import dataclass
from math import ceil
from typing import NoReturn

import trio

from agentrl_jax.errors import ConfigError

LEAST_INTERVAL_S = 0.1
"""Watching must not become the load."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopStatistics:
    """Lags in seconds over the last `num_samples` wakes (nearest-rank percentiles; 0 before the first).

    num_wakes counts since the start.
    """

    num_wakes: int
    num_samples: int
    lag_p50_s: float
    lag_p99_s: float
    lag_max_s: float


class LoopMonitor:
    """Wakes every `interval_s` and remembers how late it was, the last `window` times.

    A wake that was due while the loop was blocked is not made up for: one long block counts once, with its length.
    Raises ConfigError for an interval below LEAST_INTERVAL_S or an empty window.
    """

    def __init__(self, *, interval_s: float = LEAST_INTERVAL_S, window: int = 600) -> None:
        if not interval_s >= LEAST_INTERVAL_S:
            raise ConfigError(f"a monitor's interval_s must be at least {LEAST_INTERVAL_S}, got {interval_s}")
        if window < 1:
            raise ConfigError(f"a monitor's window must be at least 1, got {window}")
        self._interval_s = interval_s
        self._lags: deque[float] = deque(maxlen=window)
        self._num_wakes = 0

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> NoReturn:
        """Measure until cancelled."""
        task_status.started()
        while True:
            due = trio.current_time() + self._interval_s
            await trio.sleep_until(due)
            self._lags.append(trio.current_time() - due)
            self._num_wakes += 1

    def statistics(self) -> LoopStatistics:
        lags = sorted(self._lags)
        return LoopStatistics(
            num_wakes=self._num_wakes,
            num_samples=len(lags),
            lag_p50_s=_rank(lags, 0.5),
            lag_p99_s=_rank(lags, 0.99),
            lag_max_s=_rank(lags, 1.0),
        )


def _rank(ascending: list[float], share: float) -> float:
    return ascending[ceil(share * len(ascending)) - 1] if ascending else 0.0
