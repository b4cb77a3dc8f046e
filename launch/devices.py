"""From `--mesh` and what JAX has to be told first to devices."""

import os
import platform
import sys
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

import jax
from jax.sharding import Mesh

from agentrl_jax.errors import ConfigError
from agentrl_jax.redaction import without_secrets
from agentrl_jax.runtime import RuntimeConfig, settle, start
from agentrl_jax.sharding import MeshShape, make_mesh

DEFAULTS = RuntimeConfig()

MAX_HOST_DEVICES = 64
"""A CPU rehearses meshes of up to so many devices; each costs threads and memory."""


def provenance(mesh: Mesh) -> dict[str, Any]:
    """When and from what a process of a run started: enough to know later what its numbers were made with."""
    return {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": without_secrets(sys.argv),
        "versions": {name: version(name) for name in ("agentrl_jax", "jax", "jaxlib", "flax", "optax")},
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        "devices": f"{mesh.size} of {jax.device_count()} {jax.devices()[0].device_kind}",
    }


def check_alone(what: str) -> None:
    """Raise ConfigError if this is one of several processes, and `what` knows of one only."""
    if jax.process_count() > 1:
        raise ConfigError(
            f"{what} runs in one process, but this is one of {jax.process_count()}: start one, which uses all GPUs "
            "that it sees (under SLURM: srun --ntasks=1; elsewhere: leave --coordinator-address, --num-processes and "
            "--process-id out)"
        )


def open_mesh(shape: MeshShape, say: Callable[[str], None], runtime: RuntimeConfig = DEFAULTS) -> Mesh:
    """Return the mesh, and say what it consists of. Call it before JAX is used for anything else.

    On a CPU there is one device, so as many host devices as the mesh needs are asked for, divided among the processes
    that share it; accelerators are what they are. Raises ConfigError if there are too few, and as `runtime` says.
    """
    group = start(runtime)
    num_processes = 1 if group is None else group.num_processes or 1
    with suppress(RuntimeError):  # JAX is in use already: it keeps its devices, and make_mesh says if they are too few
        num_own = min(-(-shape.num_devices // num_processes), MAX_HOST_DEVICES)
        jax.config.update("jax_num_cpu_devices", num_own)  # type: ignore[no-untyped-call]
    cache = settle(runtime)
    mesh = make_mesh(shape)
    if group is not None:
        say(f"process {jax.process_index()} of {jax.process_count()}, named by {group.named_by}")
    if cache is not None:
        say(f"compiled programs are kept in {cache}")
    axes = " ".join(f"{name}={size}" for name, size in mesh.shape.items())
    backend = jax.default_backend()
    if backend == "cpu":
        say(
            f"mesh {axes}: {shape.num_devices} host device{'s' if shape.num_devices > 1 else ''} on this machine's CPU "
            f"({os.cpu_count()} cores)"
            + (", to rehearse the sharding, not to be faster" if shape.num_devices > 1 else "")
        )
    else:
        say(f"mesh {axes}: {shape.num_devices} of {jax.device_count()} {backend} devices")
    return mesh
