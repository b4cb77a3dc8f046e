"""The case `2000-remote` of `benchmarks.controller`: the controller of remote workers between two other processes."""

import sys
import time
from collections.abc import Mapping

import trio

from agentrl_jax.controller.collector import calm_collector
from agentrl_jax.controller.monitor import LoopMonitor
from agentrl_jax.controller.remote_config import ListenConfig
from agentrl_jax.controller.remote_controller import RemoteController, open_remote_controller
from agentrl_jax.controller.remote_server import ControllerServer
from benchmarks.remote_load import TASK

_ASKED_EVERY_S = 0.25


def remote(num_sessions: int, num_turns: int, think_s: float) -> Mapping[str, float]:
    """`num_sessions` sessions over HTTP, all live, until `num_turns` turns are taken; starts and ends are among them.

    Each turn is a request of a client, and one of the controller to the worker.
    """

    async def main() -> Mapping[str, float]:
        monitor = LoopMonitor(window=100_000)
        async with open_remote_controller() as controller, trio.open_nursery() as nursery:
            port = await nursery.start(ControllerServer(controller, ListenConfig(port=0), monitor).serve)
            url = f"http://127.0.0.1:{port}/api"
            async with trio.open_nursery() as others:
                others.start_soon(_run, "worker", url, str(num_sessions))
                await controller.roster.wait_served(TASK)
                others.start_soon(_run, "clients", url, str(num_sessions), str(think_s))
                await trio.sleep(1.5 * think_s)  # they have all started by then
                await nursery.start(monitor.run)
                found = await _measured(controller, num_turns)
                others.cancel_scope.cancel()
            nursery.cancel_scope.cancel()
        lag = monitor.statistics()
        return {
            **found,
            "lag_p50_ms": 1e3 * lag.lag_p50_s,
            "lag_p99_ms": 1e3 * lag.lag_p99_s,
            "lag_max_ms": 1e3 * lag.lag_max_s,
        }

    with calm_collector():
        return trio.run(main)


async def _measured(controller: RemoteController, num_turns: int) -> Mapping[str, float]:
    counts = controller.book.counts(TASK)
    begun, begun_s, before = time.process_time(), time.perf_counter(), counts.num_turns
    peak = 0
    while counts.num_turns < before + num_turns:
        await trio.sleep(_ASKED_EVERY_S)  # a turn more or less does not matter
        peak = max(peak, len(controller.book.store.live))
    turns = counts.num_turns - before
    if counts.failures:
        raise RuntimeError(f"calls failed: {dict(counts.failures)}")
    return {
        "cpu_ms_per_turn": 1e3 * (time.process_time() - begun) / turns,
        "turns_per_s": turns / (time.perf_counter() - begun_s),
        "peak_episodes": peak,
    }


async def _run(*arguments: str) -> None:
    """A process that lasts until this is cancelled; its failure is ours."""
    await trio.run_process([sys.executable, "-m", "benchmarks.remote_load", *arguments])
