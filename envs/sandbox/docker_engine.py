"""A Docker engine: connecting to it, the containers that sandboxes are, and removing those that nobody owns."""

import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import docker
from docker.api import APIClient
from docker.errors import APIError, BuildError, DockerException, NotFound
from docker.types import LogConfig, Ulimit
from requests.exceptions import RequestException

from envs.sandbox.cgroups import GRADING_BYTES, start_time
from envs.sandbox.protocol import CAPABILITIES, HOME, Limits, SandboxGone, SandboxLost
from envs.sandbox.seccomp import docker_profile

LABEL = "agentrl_jax.owner"
REPOSITORY = "local-os"
"""Of the images: `local-os/default`, `local-os/packages`, `local-os/ubuntu`."""

_TIMEOUT_S = 60
# A container that its driver's process was creating when it died appears a moment later.
_LATE_S = 3
_SHARED_BYTES = 1 << 26
# bash as the first process takes in orphans, and no signal from within ends it. A driver's process that dies while its
# container starts says no first word, and an engine may miss that its end of the input is closed.
_WAITING = "trap '' INT TERM HUP; read -r -t 30 _ || exit; while read -r _; do :; done"


def connect(url: str | None) -> APIClient:
    """url: of the engine; None: as the environment says (DOCKER_HOST and so on). Raises SandboxLost."""
    return connect_client(url).api


def connect_client(url: str | None) -> docker.DockerClient:
    """The same, with what the SDK builds on it. Raises SandboxLost."""
    options: Any = {"timeout": _TIMEOUT_S, "max_pool_size": 128, "version": "auto"}
    with engine_errors():
        return docker.from_env(**options) if url is None else docker.DockerClient(base_url=url, **options)


@contextmanager
def engine_errors(*, is_inside: bool = False) -> Iterator[None]:
    """Map what the SDK raises to SandboxLost. is_inside: a container that does not run is SandboxGone."""
    try:
        yield
    except NotFound as error:
        raise (SandboxGone if is_inside else SandboxLost)(f"Docker: {error.explanation}") from error
    except APIError as error:
        is_gone = is_inside and error.status_code == 409
        raise (SandboxGone if is_gone else SandboxLost)(f"Docker: {error.explanation or error}") from error
    except BuildError:
        raise
    except (DockerException, RequestException, OSError) as error:
        raise SandboxLost(f"Docker: {error}") from error


def new_mark() -> str:
    """A name for this process as an owner of containers: where it runs, which one it is, and a word of its own."""
    return f"{_world()}.{os.getpid()}.{start_time(os.getpid())}.{secrets.token_hex(4)}"


def _world() -> str:
    """Where process ids mean the same: this boot of this machine, and a namespace of processes."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    boot_id = boot.read_text().strip() if boot.exists() else "none"
    return f"{boot_id}.{os.stat('/proc/self/ns/pid').st_ino}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Container:
    """name: its id. hold: a connection to its first process's input, which ends it when it is closed, be it by the
    death of this process."""

    name: str
    hold: Any

    def keep(self) -> None:
        """Say that the container has an owner."""
        self._held().sendall(b"\n")

    def let_go(self) -> None:
        held = self._held()
        self.hold._response.close()
        held.close()

    def _held(self) -> Any:
        return getattr(self.hold, "_sock", self.hold)


def create(api: APIClient, image: str, limits: Limits, mark: str) -> Container:
    """Create a container that waits, and start it. Raises SandboxLost."""
    with engine_errors():
        created = api.create_container(
            f"{REPOSITORY}/{image}",
            entrypoint=["/bin/bash", "--noprofile", "--norc", "-c"],
            command=[_WAITING],
            # Closed with the one connection to it.
            stdin_open=True,
            user="root",
            working_dir=HOME,
            hostname="sandbox",
            labels={LABEL: mark},
            host_config=_host_config(api, limits),
        )
        name = str(created["Id"])
        try:
            container = Container(name=name, hold=api.attach_socket(name, {"stdin": 1, "stream": 1}))
            api.start(name)
            container.keep()
        except BaseException:
            remove(api, name)
            raise
        return container


def _host_config(api: APIClient, limits: Limits) -> Any:
    return api.create_host_config(
        network_mode="none",
        mem_limit=limits.memory_bytes,
        memswap_limit=limits.memory_bytes,
        nano_cpus=int(limits.cpus * 1e9),
        pids_limit=limits.num_processes,
        shm_size=_SHARED_BYTES,
        cap_drop=["ALL"],
        cap_add=list(CAPABILITIES),
        security_opt=["no-new-privileges", f"seccomp={docker_profile()}"],
        # Engines limit what is written in all only with some storage drivers; this is of one file.
        ulimits=[
            Ulimit(name="core", soft=0, hard=0),
            Ulimit(name="fsize", soft=limits.disk_bytes, hard=limits.disk_bytes),
        ],
        log_config=LogConfig(type="none"),
        auto_remove=True,
    )


def stop_first(api: APIClient, container: str) -> None:
    """Stop a container's first process, for good. Raises SandboxGone if it is no more."""
    with engine_errors(is_inside=True):
        api.kill(container, "SIGSTOP")


def widen(api: APIClient, container: str, limits: Limits) -> None:
    """See `OwnedCgroups.widen`; of memory alone, as the SDK changes no limit of processes."""
    memory = limits.memory_bytes + GRADING_BYTES
    with engine_errors(is_inside=True):
        api.update_container(container, mem_limit=memory, memswap_limit=memory)


def remove(api: APIClient, container: str) -> None:
    """Remove a container, running or not. One that is gone, or being removed, is no error. Raises SandboxLost."""
    with engine_errors():
        try:
            api.remove_container(container, force=True, v=True)
        except APIError as error:
            if error.status_code not in (404, 409):
                raise


def marked(api: APIClient, mark: str | None = None) -> list[tuple[str, str]]:
    """Containers of drivers, with their marks."""
    label = LABEL if mark is None else f"{LABEL}={mark}"
    with engine_errors():
        return [(item["Id"], item["Labels"][LABEL]) for item in api.containers(all=True, filters={"label": label})]


def remove_marked(api: APIClient, mark: str) -> None:
    """Remove a dead driver's containers, and those that it was still creating."""
    begun = int(time.time())
    for container, _ in marked(api, mark):
        remove(api, container)
    with engine_errors():
        wanted = {"label": f"{LABEL}={mark}", "type": "container", "event": "create"}
        for event in api.events(since=begun, until=int(time.time()) + _LATE_S, filters=wanted, decode=True):
            remove(api, event["id"])


def sweep(api: APIClient) -> None:
    """Remove the containers of drivers whose process, of this machine, is no more."""
    world = _world()
    for container, mark in marked(api):
        owner, _, _ = mark.removeprefix(f"{world}.").rpartition(".")
        pid, _, began = owner.partition(".")
        if mark.startswith(world) and pid.isdecimal() and str(start_time(int(pid))) != began:
            remove(api, container)
