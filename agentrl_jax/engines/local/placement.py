"""Where an engine's arrays lie: on one device, or split over the tensor axis of a mesh by the learner's own rules."""

from typing import Any, TypeAlias

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec, Sharding, SingleDeviceSharding

from agentrl_jax.engines.local.cache import LayerCache
from agentrl_jax.errors import ConfigError
from agentrl_jax.models.config import ModelConfig
from agentrl_jax.models.params import build_tree
from agentrl_jax.sharding import AXES, named_sharding

Place: TypeAlias = jax.Device | Mesh


def engine_place(num_devices: int | None, learner: Mesh) -> Place:
    """Return where engines compute beside a learner: the first device, or a mesh of `num_devices` along `tensor`.

    On a CPU these are the learner's own and those after them; elsewhere the ones that it does not use. Raises
    ConfigError if there are too few.
    """
    if num_devices is None:
        return jax.devices()[0]
    is_cpu = jax.default_backend() == "cpu"
    free = [device for device in jax.local_devices() if is_cpu or device not in set(learner.devices.flat)]
    if num_devices > len(free):
        raise ConfigError(
            f"--engine-devices {num_devices}: there are {len(free)} "
            + ("devices" if is_cpu else f"devices outside of the learner's mesh of {learner.size}")
        )
    return tensor_mesh(free[:num_devices])


def tensor_mesh(devices: list[jax.Device]) -> Mesh:
    """A mesh whose tensor axis has all the devices."""
    auto = (jax.sharding.AxisType.Auto,) * len(AXES)
    return Mesh(np.array(devices).reshape(1, 1, -1), AXES, axis_types=auto)


def first_device(place: Place) -> jax.Device:
    """The device itself, or the first of the mesh."""
    if isinstance(place, Mesh):
        first: jax.Device = place.devices.flat[0]
        return first
    return place


def everywhere(place: Place) -> Sharding:
    """Of arrays that every device holds whole."""
    if isinstance(place, Mesh):
        return NamedSharding(place, PartitionSpec())  # type: ignore[no-untyped-call]
    return SingleDeviceSharding(place)


def params_placement(model: ModelConfig, place: Place) -> dict[str, Any]:
    """The sharding of each param."""
    if isinstance(place, Mesh):
        return build_tree(model, lambda spec: named_sharding(place, spec.axes, spec.shape))
    return build_tree(model, lambda spec: everywhere(place))


def caches_placement(model: ModelConfig, place: Place) -> tuple[LayerCache, ...]:
    """The sharding of each layer's keys and values: by KV head, if the tensor axis divides them."""
    one = everywhere(place)
    if isinstance(place, Mesh):
        one = named_sharding(place, (None, "kv_heads", None, None), (1, model.num_kv_heads, 1, 1))
    return tuple(LayerCache(one, one) for _ in range(model.num_layers))  # type: ignore[arg-type]
