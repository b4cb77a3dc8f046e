"""The cases of `benchmarks.controller`, each run in a process of its own: `python -m benchmarks.controller_cases`.

Prints one JSON object of metric to value. Processor time is the process's own (`time.process_time`), resident memory
what Linux's /proc says, so that neither other programs nor other cases count.
"""

import json
import os
import resource
import sys
import time
import tracemalloc
from collections.abc import Callable, Mapping
from functools import partial

import numpy as np
import trio
import trio.testing

from agentrl_jax.controller.collector import calm_collector
from agentrl_jax.controller.episode import run_episode
from agentrl_jax.controller.monitor import LoopMonitor
from agentrl_jax.testing.envs import ScriptedFamily
from benchmarks.controller_world import NUM_IDS, Shape, World
from benchmarks.processor_clock import ProcessorClock
from benchmarks.remote_case import remote

Metrics = Mapping[str, float]

_PARK_AFTER_TURNS = 3
_KB, _MB = 1e3, 1e6


def concurrent(num_episodes: int, num_turns: int, latency_s: float, in_threads: bool, on_wall_clock: bool) -> Metrics:
    """`num_episodes` live at a time until `num_turns` turns are taken, from the first start on.

    The time it takes to cancel what is still live at the end does not count.
    """
    clock = None if on_wall_clock else ProcessorClock()
    groups = num_episodes // 8
    shape = Shape(num_groups=groups, groups_per_step=max(1, groups // 25), latency_s=latency_s, in_threads=in_threads)
    world = World(shape, turns_wanted=num_turns)
    monitor = LoopMonitor(window=100_000)

    async def main() -> Metrics:
        async with trio.open_nursery() as nursery:
            await nursery.start(monitor.run)
            begun, begun_s = time.process_time(), trio.current_time()
            nursery.start_soon(world.run, sys.maxsize)
            await world.has_turns.wait()
            cpu_s, passed_s = time.process_time() - begun, trio.current_time() - begun_s
            lag = monitor.statistics()
            nursery.cancel_scope.cancel()
        return {
            "cpu_ms_per_turn": 1e3 * cpu_s / world.num_turns,
            "turns_per_s": world.num_turns / passed_s,
            "lag_p50_ms": 1e3 * lag.lag_p50_s,
            "lag_p99_ms": 1e3 * lag.lag_p99_s,
            "lag_max_ms": 1e3 * lag.lag_max_s,
            "peak_episodes": world.peak_live,
        }

    with calm_collector():
        return trio.run(main, clock=clock)


def live_memory(num_episodes: int, traced: bool) -> Metrics:
    """Bytes of an episode that has taken three turns and waits for an engine's answer.

    traced: what Python allocates, without the data of arrays (numpy reports it as a domain of its own). Otherwise the
    growth of resident memory, ids and all.
    """
    parks_above = 2 * NUM_IDS * (_PARK_AFTER_TURNS + 1) - NUM_IDS // 2
    world = World(Shape(num_groups=num_episodes // 8, groups_per_step=1, num_turns=9, parks_above=parks_above))

    async def main() -> float:
        async with trio.open_nursery() as nursery:
            if traced:
                tracemalloc.start()
            before = _python_bytes() if traced else _resident_bytes()
            nursery.start_soon(world.run, 1)
            await trio.testing.wait_all_tasks_blocked(0.01)
            used = (_python_bytes() if traced else _resident_bytes()) - before
            tracemalloc.stop()
            if not world.num_turns == _PARK_AFTER_TURNS * world.num_live:
                raise RuntimeError(f"{world.num_live} episodes should have taken 3 turns each: {world.num_turns}")
            nursery.cancel_scope.cancel()
        return used / world.peak_live

    name = "python_kb_per_episode" if traced else "resident_kb_per_episode"
    return {name: trio.run(main) / _KB}


def slope(num_warm: int, num_episodes: int) -> Metrics:
    """Growth of resident memory over `num_episodes` episodes that follow `num_warm` others; least squares."""
    shape = Shape(num_groups=25, groups_per_step=25)
    world = World(shape)
    points: list[tuple[int, int]] = []
    steps = (num_warm + num_episodes) // (shape.group_size * shape.groups_per_step)

    def on_step() -> None:
        if world.num_ended >= num_warm:
            points.append((world.num_ended, _resident_bytes()))

    with calm_collector():
        trio.run(partial(world.run, steps, on_step))
    episodes, resident = np.array(points, float).T
    return {"rss_mb_per_1000_episodes": float(np.polyfit(episodes, resident, 1)[0]) * 1e3 / _MB}


def process_each(num_processes: int) -> Metrics:
    """The same work with one operating system process per episode: an interpreter each, one after the other."""
    turns = Shape(num_groups=1, groups_per_step=1).num_turns
    command = [sys.executable, "-m", "benchmarks.controller_cases", "one_episode"]
    children = []
    for _ in range(num_processes):
        quiet = (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)
        process = os.posix_spawn(sys.executable, command, os.environ, file_actions=[quiet])
        _, status, usage = os.wait4(process, 0)
        if status:
            raise RuntimeError(f"{' '.join(command)} ended with status {status}")
        children.append(usage)
    cpu_s = sum(usage.ru_utime + usage.ru_stime for usage in children) / num_processes
    peak_bytes = 1024 * max(usage.ru_maxrss for usage in children)
    return {"cpu_ms_per_turn": 1e3 * cpu_s / turns, "resident_kb_per_episode": peak_bytes / _KB}


def one_episode() -> Metrics:
    """One episode, alone in this process."""
    world = World(Shape(num_groups=1, groups_per_step=1))

    async def main() -> None:
        await run_episode(ScriptedFamily().task("train", 0), 0, 0, setup=world.setup())

    trio.run(main)
    return {}


def _python_bytes() -> int:
    snapshot = tracemalloc.take_snapshot()
    arrays = tracemalloc.DomainFilter(inclusive=False, domain=np.lib.tracemalloc_domain)
    return sum(trace.size for trace in snapshot.filter_traces([arrays]).traces)


def _resident_bytes() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


CASES: Mapping[str, Callable[..., Metrics]] = {
    case.__name__: case for case in (concurrent, live_memory, slope, process_each, one_episode, remote)
}


if __name__ == "__main__":
    print(json.dumps(CASES[sys.argv[1]](*(json.loads(argument) for argument in sys.argv[2:]))))
