"""Spans of every episode, for OpenTelemetry: episode → turn → engine call, env call. Off unless asked for.

An episode only notes when its calls began and ended; once it is over, a thread makes spans of its notes. Nothing is
imported, noted or allocated if telemetry is off, and nothing on the loop ever waits for an exporter.
"""

import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from queue import SimpleQueue
from typing import Literal, NamedTuple

import trio

from agentrl_jax.errors import ConfigError
from agentrl_jax.types import Trajectory

SPANS_NAME = "spans.jsonl"
_MAX_WAITING = 10_000


CallName = Literal["reset", "generate", "step"]


class CallTime(NamedTuple):
    """One call that an episode made. turn: counted from 0, -1 before the first. Times are of the episode's clock, in s.

    engine: its name, for "generate". A call that failed or was cancelled ended then.
    """

    what: CallName
    turn: int
    begun_s: float
    ended_s: float
    engine: str = ""


ObserveEpisode = Callable[[Trajectory, Sequence[CallTime]], None]
"""Told of each episode that has ended, with its calls in order. Must return at once."""

WriteSpans = Callable[[Trajectory, Sequence[CallTime]], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class TelemetryStatistics:
    """A snapshot. num_episodes: made into spans; num_waiting: not yet; num_dropped: never, too many were waiting."""

    num_episodes: int
    num_waiting: int
    num_dropped: int


class Telemetry:
    """Takes ended episodes from the loop and has `write` make spans of them in a thread of its own."""

    def __init__(self, write: WriteSpans, *, max_waiting: int = _MAX_WAITING) -> None:
        self._write = write
        self._max_waiting = max_waiting
        self._queue: SimpleQueue[tuple[Trajectory, Sequence[CallTime]] | None] = SimpleQueue()
        self._num_episodes = self._num_dropped = 0

    def observe(self, trajectory: Trajectory, calls: Sequence[CallTime]) -> None:
        """An `ObserveEpisode`: the episode waits for the thread, or is counted as dropped if too many do."""
        if self._queue.qsize() >= self._max_waiting:
            self._num_dropped += 1
        else:
            self._queue.put((trajectory, calls))

    def work(self) -> None:
        """Make spans until `finish` and all before it; to be run in a thread."""
        while (episode := self._queue.get()) is not None:
            self._write(*episode)
            self._num_episodes += 1

    def finish(self) -> None:
        """Have `work` return once everything that waits is done."""
        self._queue.put(None)

    def statistics(self) -> TelemetryStatistics:
        return TelemetryStatistics(
            num_episodes=self._num_episodes, num_waiting=self._queue.qsize(), num_dropped=self._num_dropped
        )


def check_installed() -> None:
    """Raise ConfigError unless OpenTelemetry's SDK can be imported."""
    if find_spec("opentelemetry") is None or find_spec("opentelemetry.sdk") is None:
        raise ConfigError("--telemetry needs OpenTelemetry's SDK: pip install opentelemetry-sdk")


@asynccontextmanager
async def open_telemetry(
    run_dir: Path, *, is_on: bool, clock: Callable[[], float] = trio.current_time
) -> AsyncIterator[Telemetry | None]:
    """Spans into RUN_DIR/spans.jsonl, and to every exporter that OTEL_TRACES_EXPORTER names; leaving flushes both.

    is_on: False yields None, and does nothing. clock: the one that `EpisodeSetup` measures with. The SDK reads its own
    standard environment: resource, sampler, batching, the exporters' endpoints. Raises ConfigError if the SDK or a
    named exporter is not installed.
    """
    if not is_on:
        yield None
        return
    check_installed()
    from agentrl_jax.controller.spans import open_spans

    with open_spans(run_dir / SPANS_NAME, epoch_s=time.time() - clock()) as write:
        telemetry = Telemetry(write)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_run_in_thread, telemetry)
            try:
                yield telemetry
            finally:
                telemetry.finish()


async def _run_in_thread(telemetry: Telemetry) -> None:
    # Shielded: what has been observed is written, also of a run that is being cancelled.
    with trio.CancelScope(shield=True):
        limiter = trio.CapacityLimiter(1)
        await trio.to_thread.run_sync(telemetry.work, thread_name="telemetry", limiter=limiter)
