"""Several processes, one mesh: joining JAX's process group, before any device exists, and talking within it.

JAX finds the group's members itself under SLURM (srun), Open MPI (mpirun) and in indexed Kubernetes jobs; elsewhere
they are named. What the members give each other goes over the devices, as everything else does: all of them make the
same calls in the same order, from one thread at a time. What one of them waits for, for however long, it is told by the
group's own key-value store instead: a collective would keep a GPU busy, and on CPUs it fails after half an hour.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from agentrl_jax.errors import AgentRLError, ConfigError

_FOR_EVER_MS = 1 << 40

HEARTBEAT_S = 60
"""A process that has not been heard of for so long ends the others, which would wait for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessGroupConfig:
    """Which processes share the mesh. By default: those that SLURM, Open MPI or Kubernetes started together."""

    coordinator_address: str | None = None
    """host:port on which process 0 waits for the others; only where nothing has started the processes together"""
    num_processes: int | None = None
    """How many processes share the mesh; with --coordinator-address"""
    process_id: int | None = None
    """Which of them this is, from 0; with --coordinator-address"""

    def __post_init__(self) -> None:
        given = (self.coordinator_address, self.num_processes, self.process_id)
        if all(value is None for value in given):
            return
        if self.coordinator_address is None or self.num_processes is None or self.process_id is None:
            raise ConfigError(
                "--coordinator-address, --num-processes and --process-id belong together: give all three or none, got "
                f"{', '.join(map(str, given))}"
            )
        host, _, port = self.coordinator_address.rpartition(":")
        if not host or not (port.isascii() and port.isdigit() and len(port) <= 5 and 0 < int(port) < 65_536):
            raise ConfigError(
                f"--coordinator-address must be host:port, the same on every process, got {self.coordinator_address!r}"
            )
        if self.num_processes < 1:
            raise ConfigError(f"--num-processes must be >= 1, got {self.num_processes}")
        if not 0 <= self.process_id < self.num_processes:
            raise ConfigError(
                f"--process-id must be in [0, --num-processes = {self.num_processes}), got {self.process_id}"
            )

    @property
    def is_named(self) -> bool:
        return self.coordinator_address is not None


class ProcessGroup(NamedTuple):
    """named_by: who named the members. num_processes: how many they are; None where only JAX finds out."""

    named_by: str
    num_processes: int | None


def detect(environment: Mapping[str, str]) -> ProcessGroup | None:
    """Return the group that this process was started in, by its environment; None if it is alone."""

    def size(name: str) -> int:
        text = environment.get(name, "")
        return int(text) if text.isdigit() else 0

    if size("SLURM_NTASKS") > 1 and "SLURM_STEP_NODELIST" in environment:
        return ProcessGroup("SLURM", size("SLURM_NTASKS"))
    if size("OMPI_COMM_WORLD_SIZE") > 1:
        return ProcessGroup("Open MPI", size("OMPI_COMM_WORLD_SIZE"))
    if "KUBERNETES_SERVICE_HOST" in environment and "JOB_COMPLETION_INDEX" in environment:
        return ProcessGroup("Kubernetes", None)
    return None


_NUMBERED_BY = {
    "SLURM": "SLURM_PROCID",
    "Open MPI": "OMPI_COMM_WORLD_RANK",
    "Kubernetes": "JOB_COMPLETION_INDEX",
}


def leads(config: ProcessGroupConfig, environment: Mapping[str, str]) -> bool:
    """Whether this process will be the first, which is known before it joins; also where there is no group."""
    if config.is_named:
        return config.process_id == 0
    group = detect(environment)
    return group is None or environment.get(_NUMBERED_BY[group.named_by], "0") == "0"


def join(config: ProcessGroupConfig) -> ProcessGroup | None:
    """Join the process group, if there is one, and return it. Call it before JAX has a device.

    Returns once all processes have joined. Raises ConfigError if the group cannot be formed.
    """
    group = ProcessGroup("the flags", config.num_processes) if config.is_named else detect(os.environ)
    if group is None:
        return None
    import jax

    try:
        jax.distributed.initialize(
            config.coordinator_address,
            config.num_processes,
            config.process_id,
            heartbeat_timeout_seconds=HEARTBEAT_S,
        )
    except (RuntimeError, ValueError) as error:
        raise ConfigError(
            f"cannot join the process group of {group.named_by}: {error}. Name it with --coordinator-address, "
            "--num-processes and --process-id, the same on every process but the last"
        ) from error
    return group


class ProcessError(AgentRLError):
    """Another process of the group has failed; what went wrong stands in its own output."""


def is_first() -> bool:
    """True in process 0, which decides and writes; also where there is no group."""
    import jax

    return bool(jax.process_index() == 0)


def is_alone() -> bool:
    """True where no other process shares the devices."""
    import jax

    return bool(jax.process_count() == 1)


def share(tree: Any) -> Any:
    """Return process 0's `tree` of NumPy arrays in every process; the others give one of the same shapes and dtypes."""
    from jax.experimental import multihost_utils

    return multihost_utils.broadcast_one_to_all(tree)


def tell(key: str, data: bytes) -> None:
    """Let `wait_for(key)` return `data` in every process. A key is told once."""
    _store().key_value_set_bytes(key, data)


def wait_for(key: str) -> bytes:
    """Wait until another process tells `key`, and return what it tells. Raises ProcessError if process 0 is gone."""
    try:
        data: bytes = _store().blocking_key_value_get_bytes(key, _FOR_EVER_MS)
    except RuntimeError as error:
        raise ProcessError(f"process 0, from which this one waits to hear, is gone: {error}") from error
    return data


def forget(key: str) -> None:
    """Free what was told under `key`, once all have heard it."""
    _store().key_value_delete(key)


def _store() -> Any:
    from orbax.checkpoint import multihost

    return multihost.get_jax_distributed_client()


def any_of(flag: bool) -> bool:
    """Return whether any process gave True."""
    from jax.experimental import multihost_utils

    return bool(multihost_utils.process_allgather(np.array(flag, np.int32)).any())


def gathered(tree: Any) -> Any:
    """Return the arrays of `tree` whole and on the host, in every process, whichever of them hold their parts."""
    import jax
    from jax.experimental import multihost_utils

    def gather(leaf: Any) -> Any:
        is_here = not isinstance(leaf, jax.Array) or leaf.is_fully_addressable
        return jax.device_get(leaf) if is_here else multihost_utils.process_allgather(leaf, tiled=True)

    return jax.tree.map(gather, tree)


@contextmanager
def together() -> Iterator[None]:
    """Leave the block when all processes have, and in none as if nothing had happened if one failed in it.

    Raises ProcessError in those that did not fail themselves.
    """
    try:
        yield
    except BaseException:
        any_of(True)
        raise
    if any_of(False):
        raise ProcessError("another process of the group failed in a step that all take together: see its output")
