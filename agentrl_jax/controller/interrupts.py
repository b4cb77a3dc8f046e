"""Ctrl-C and SIGTERM as a request to stop, then as an order."""

import signal
from collections.abc import Callable

import trio


async def watch_signals(
    stop: trio.Event,
    everything: trio.CancelScope,
    say: Callable[[str], None],
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Set `stop` at the first SIGINT or SIGTERM; cancel `everything` at the second, and return."""
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        task_status.started()
        async for _ in signals:
            if stop.is_set():
                everything.cancel()
                return
            say("stopping: finishing the running step, then saving (once more stops at once)")
            stop.set()
