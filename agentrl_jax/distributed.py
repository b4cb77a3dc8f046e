"""Several processes, one mesh: joining JAX's process group, before any device exists.

JAX finds the group's members itself under SLURM (srun), Open MPI (mpirun) and in indexed Kubernetes jobs; elsewhere
they are named.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from agentrl_jax.errors import ConfigError


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


def join(config: ProcessGroupConfig) -> ProcessGroup | None:
    """Join the process group, if there is one, and return it. Call it before JAX has a device.

    Returns once all processes have joined. Raises ConfigError if the group cannot be formed.
    """
    group = ProcessGroup("the flags", config.num_processes) if config.is_named else detect(os.environ)
    if group is None:
        return None
    import jax

    try:
        jax.distributed.initialize(config.coordinator_address, config.num_processes, config.process_id)
    except (RuntimeError, ValueError) as error:
        raise ConfigError(
            f"cannot join the process group of {group.named_by}: {error}. Name it with --coordinator-address, "
            "--num-processes and --process-id, the same on every process but the last"
        ) from error
    return group
