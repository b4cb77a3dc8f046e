"""From `--mesh` to devices."""

import os
from collections.abc import Callable
from contextlib import suppress

import jax
from jax.sharding import Mesh

from agentrl_jax.sharding import MeshShape, make_mesh

MAX_HOST_DEVICES = 64
"""A CPU rehearses meshes of up to so many devices; each costs threads and memory."""


def open_mesh(shape: MeshShape, say: Callable[[str], None]) -> Mesh:
    """Return the mesh, and say what it consists of. Call it before JAX is used for anything else.

    On a CPU there is one device, so as many host devices as the mesh needs are asked for; accelerators are what they
    are. Raises ConfigError if there are too few.
    """
    with suppress(RuntimeError):  # JAX is in use already: it keeps its devices, and make_mesh says if they are too few
        jax.config.update("jax_num_cpu_devices", min(shape.num_devices, MAX_HOST_DEVICES))  # type: ignore[no-untyped-call]
    mesh = make_mesh(shape)
    axes = " ".join(f"{name}={size}" for name, size in mesh.shape.items())
    platform = jax.default_backend()
    if platform == "cpu":
        say(
            f"mesh {axes}: {shape.num_devices} host device{'s' if shape.num_devices > 1 else ''} on this machine's CPU "
            f"({os.cpu_count()} cores)"
            + (", to rehearse the sharding, not to be faster" if shape.num_devices > 1 else "")
        )
    else:
        say(f"mesh {axes}: {shape.num_devices} of {jax.device_count()} {platform} devices")
    return mesh
