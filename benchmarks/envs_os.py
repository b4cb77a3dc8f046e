"""os_interaction: sessions in sandboxes, and commands in their shells.

start_ms: from opening a machine to the first command's answer, the least of several. command_ms: a command that prints
a word, the median of many. Both are wall time, since other processes do the work. session_cpu_ms: processor time of all
of them for a session that is opened, used once and closed (of bubblewrap; an engine's is not known).

A good answer: bubblewrap start_ms <= 45, command_ms <= 1; docker command_ms <= 5. The case docker needs an engine that
answers and has the images.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from statistics import median

from benchmarks.env_cases import CaseOptions, EnvCase
from envs.sandbox.bubblewrap import BubblewrapDriver
from envs.sandbox.protocol import Driver, Limits

_LIMITS = Limits()
_LIMIT_S = 60.0


def measure_bubblewrap(options: CaseOptions) -> Mapping[str, float]:
    with closing(BubblewrapDriver()) as driver:
        begun_s = time.process_time() + driver.used_s()
        starts = _starts(driver, options)
        used_s = time.process_time() + driver.used_s() - begun_s
        commands = _commands(driver, options)
    return {**_figures(starts, commands), "session_cpu_ms": 1e3 * used_s / len(starts)}


def measure_docker(options: CaseOptions) -> Mapping[str, float]:
    from envs.sandbox.docker_driver import DockerDriver

    with closing(DockerDriver()) as driver:
        return _figures(_starts(driver, options), _commands(driver, options))


def _starts(driver: Driver, options: CaseOptions) -> list[float]:
    """Seconds to the first answer of each of some sessions, which are closed at once."""
    starts = []
    for _ in range(3 if options.is_quick else 20):
        begun_s = time.perf_counter()
        with closing(driver.open("default", _LIMITS)) as machine:
            machine.run("true", timeout_s=_LIMIT_S)
            starts.append(time.perf_counter() - begun_s)
    return starts


def _commands(driver: Driver, options: CaseOptions) -> list[float]:
    """Seconds of each of many commands of one session."""
    with closing(driver.open("default", _LIMITS)) as machine:
        machine.run("true", timeout_s=_LIMIT_S)
        count = 20 if options.is_quick else 200
        return [_timed(lambda: machine.run("echo word", timeout_s=_LIMIT_S)) for _ in range(count)]


def _figures(starts: Sequence[float], commands: Sequence[float]) -> dict[str, float]:
    return {"start_ms": 1e3 * min(starts), "command_ms": 1e3 * median(commands)}


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
