"""One driver a process for each kind of sandbox, chosen by what `--sandbox` says or this machine has."""

import atexit
import os
import threading
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

from agentrl_jax.errors import ConfigError
from envs.sandbox.bubblewrap import BubblewrapDriver
from envs.sandbox.protocol import Driver, Limits, Sandbox

DOCKER, BUBBLEWRAP = "docker", "bubblewrap"
_DEFAULT_SOCKET = Path("/var/run/docker.sock")


@dataclass
class SharedDriver:
    """A driver that is started once in each process that opens sandboxes. kind: what makes them; place: see
    `shared_driver`."""

    kind: str
    place: str | None
    _drivers: dict[int, Driver] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def services(self) -> tuple[str, ...]:
        """What must run beside the envs."""
        return (DOCKER,) if self.kind == DOCKER else ()

    def open(self, image: str, limits: Limits) -> Sandbox:
        return self.driver().open(image, limits)

    def driver(self) -> Driver:
        """This process's own: a forked one's is its parent's. Raises ConfigError if it cannot be started."""
        with self._lock:
            if os.getpid() not in self._drivers:
                self._drivers[os.getpid()] = self._start()
            return self._drivers[os.getpid()]

    def close(self) -> None:
        """End this process's driver, and all its sandboxes."""
        with self._lock:
            driver = self._drivers.pop(os.getpid(), None)
        if driver is not None:
            driver.close()

    def _start(self) -> Driver:
        if self.kind == BUBBLEWRAP:
            return BubblewrapDriver(None if self.place is None else Path(self.place))
        from envs.sandbox.docker_driver import DockerDriver

        return DockerDriver(self.place)


_shared: dict[str | None, SharedDriver] = {}
_shared_lock = threading.Lock()


def shared_driver(wanted: str | None) -> SharedDriver:
    """The driver that `wanted` names, started: "bubblewrap", "bubblewrap:FOLDER" with a root file system, "docker", or
    "docker:URL" of an engine. None: the Docker engine of this machine if one answers and has the images, else
    bubblewrap.

    Raises ConfigError if it does not work here, before any sandbox is opened.
    """
    with _shared_lock:
        if wanted not in _shared:
            _shared[wanted] = _found(wanted)
    return _shared[wanted]


def _found(wanted: str | None) -> SharedDriver:
    if wanted is None:
        wanted = DOCKER if _has_engine() else BUBBLEWRAP
    kind, _, place = wanted.partition(":")
    if kind not in (DOCKER, BUBBLEWRAP):
        raise ConfigError(f"--sandbox must be {BUBBLEWRAP}[:FOLDER] or {DOCKER}[:URL], got {wanted!r}")
    shared = SharedDriver(kind, place or None)
    shared.driver()
    return shared


def _has_engine() -> bool:
    """Whether an engine answers that has what the driver needs."""
    if find_spec(DOCKER) is None or not ("DOCKER_HOST" in os.environ or _DEFAULT_SOCKET.exists()):
        return False
    from envs.sandbox.docker_driver import is_ready

    return is_ready(None)


@atexit.register
def _close_all() -> None:
    for shared in _shared.values():
        shared.close()
