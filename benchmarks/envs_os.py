"""os_interaction: sessions in sandboxes, and commands in their shells.

start_ms: from opening a machine to the first command's answer. command_ms: a command that prints a word. Both are wall
time, the least of several, since other processes do the work. session_cpu_ms: processor time of all of them for a
session that is opened, used once and closed (of bubblewrap; an engine's is not known).

A good answer: bubblewrap start_ms <= 45, command_ms <= 1; docker command_ms <= 5. The case docker needs an engine that
answers and has the images.
"""

import time
from collections.abc import Callable, Mapping
from contextlib import closing

from benchmarks.env_cases import CaseOptions, EnvCase
from envs.sandbox.bubblewrap import BubblewrapDriver
from envs.sandbox.protocol import Driver, Limits

_LIMITS = Limits()
_LIMIT_S = 60.0


def measure_bubblewrap(options: CaseOptions) -> Mapping[str, float]:
    with closing(BubblewrapDriver()) as driver:
        begun_s = time.process_time() + driver.used_s()
        figures, num_sessions = _measure(driver, options)
        used_s = time.process_time() + driver.used_s() - begun_s
    return {**figures, "session_cpu_ms": 1e3 * used_s / num_sessions}


def measure_docker(options: CaseOptions) -> Mapping[str, float]:
    from envs.sandbox.docker_driver import DockerDriver

    with closing(DockerDriver()) as driver:
        figures, _ = _measure(driver, options)
        return figures


def _measure(driver: Driver, options: CaseOptions) -> tuple[dict[str, float], int]:
    num_sessions, num_commands = (3, 20) if options.is_quick else (20, 200)
    starts = []
    for _ in range(num_sessions):
        begun_s = time.perf_counter()
        with closing(driver.open("default", _LIMITS)) as machine:
            machine.run("true", timeout_s=_LIMIT_S)
            starts.append(time.perf_counter() - begun_s)
    with closing(driver.open("default", _LIMITS)) as machine:
        machine.run("true", timeout_s=_LIMIT_S)
        commands = [_timed(lambda: machine.run("echo word", timeout_s=_LIMIT_S)) for _ in range(num_commands)]
    return {"start_ms": 1e3 * min(starts), "command_ms": 1e3 * sorted(commands)[len(commands) // 2]}, num_sessions + 1


def _timed(call: Callable[[], object]) -> float:
    begun_s = time.perf_counter()
    call()
    return time.perf_counter() - begun_s


CASES = (
    EnvCase(
        name="os-bubblewrap",
        units={"start_ms": "ms", "command_ms": "ms", "session_cpu_ms": "ms"},
        measure=measure_bubblewrap,
    ),
    EnvCase(name="os-docker", units={"start_ms": "ms", "command_ms": "ms"}, measure=measure_docker),
)
