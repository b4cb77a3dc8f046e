"""The device mesh: its axes, how one is named on the command line, and which array axis lies on which mesh axis.

`data` replicates params and splits rows, `fsdp` splits params and rows, `tensor` splits heads, MLP and vocabulary.
Trying another sharding means editing `RULES`, nothing else. jax is imported by the functions that need it, so that
a launcher can refuse a wrong `--mesh` before it touches a device.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from agentrl_jax.errors import ConfigError

if TYPE_CHECKING:
    from jax import Array
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

AXES = ("data", "fsdp", "tensor")

# Logical axis -> the mesh axes it is split over, outermost first. No two axes of one array may name the same mesh
# axis. An embedding is split over its vocabulary alone: ids of a row sharded over fsdp then look it up without
# rematerialisation.
RULES: dict[str, tuple[str, ...]] = {
    "rows": ("data", "fsdp"),
    "vocab": ("tensor", "fsdp"),
    "vocab_width": (),
    "head_vocab": ("tensor",),
    "width": ("fsdp",),
    "heads": ("tensor",),
    "kv_heads": ("tensor",),
    "mlp": ("tensor",),
    "head_dim": (),
    "head_norm": (),
    "gate_up": (),
    "norm": (),
    "layers": (),
}

# What an axis is split over instead where the other one of its array, named here, does not divide.
SPARE: dict[str, tuple[str, tuple[str, ...]]] = {"vocab_width": ("vocab", ("fsdp",))}

_ArrayT = TypeVar("_ArrayT", bound="Array")


@dataclass(frozen=True, slots=True, kw_only=True)
class MeshShape:
    """How many devices lie along each axis of the learner's mesh."""

    data: int = 1
    fsdp: int = 1
    tensor: int = 1

    def __post_init__(self) -> None:
        for name in AXES:
            if getattr(self, name) < 1:
                raise ConfigError(f"mesh axis {name} must be >= 1, got {getattr(self, name)}")

    @property
    def num_devices(self) -> int:
        return self.data * self.fsdp * self.tensor

    @property
    def num_row_shards(self) -> int:
        """Over how many devices the rows of a micro-batch are split."""
        return self.data * self.fsdp


def parse_mesh(text: str) -> MeshShape:
    """Return the mesh that `text` names: a number of devices (all fsdp), or axes such as `data=2,fsdp=4,tensor=2`.

    >>> parse_mesh("16")
    MeshShape(data=1, fsdp=16, tensor=1)
    >>> parse_mesh("data=2,tensor=4")
    MeshShape(data=2, fsdp=1, tensor=4)

    Raises ConfigError for anything else.
    """
    fields = [field.strip() for field in text.split(",")]
    if len(fields) == 1 and "=" not in text:
        fields = [f"fsdp={fields[0]}"]
    sizes: dict[str, int] = {}
    for field in fields:
        name, _, number = (part.strip() for part in field.partition("="))
        # No machine has a mesh of more than nine digits, and Python refuses to read numbers of thousands.
        is_size = number.isascii() and number.isdigit() and len(number) <= 9 and int(number) >= 1
        if name not in AXES or name in sizes or not is_size:
            raise ConfigError(
                f"mesh must be a number of devices like 16, or sizes >= 1 of the axes {', '.join(AXES)}, each at most "
                f"once, like data=2,fsdp=4,tensor=2; got {text!r}"
            )
        sizes[name] = int(number)
    return MeshShape(**sizes)


def make_mesh(shape: MeshShape) -> "Mesh":
    """Return a mesh over the first devices of this JAX process group.

    Raises ConfigError if there are too few, or a process would hold none of them.
    """
    import jax

    available = jax.device_count()
    if shape.num_devices > available:
        raise ConfigError(
            f"mesh data={shape.data},fsdp={shape.fsdp},tensor={shape.tensor} needs {shape.num_devices} devices, but "
            f"JAX sees {available} ({jax.default_backend()}); name a smaller --mesh"
        )
    auto = (jax.sharding.AxisType.Auto,) * len(AXES)
    mesh = jax.make_mesh((shape.data, shape.fsdp, shape.tensor), AXES, axis_types=auto)
    num_members = len({device.process_index for device in mesh.devices.flat})
    if num_members < jax.process_count():
        raise ConfigError(
            f"a mesh of {shape.num_devices} devices is held by {num_members} of {jax.process_count()} processes, which "
            f"have {available} devices; every process must hold some of it: name a larger --mesh"
        )
    return mesh


def check_rows(rows: int, shape: MeshShape) -> None:
    """Raise ConfigError unless the rows of a micro-batch can be split evenly over the mesh."""
    if rows < 1 or rows % shape.num_row_shards:
        raise ConfigError(
            f"rows_per_micro_batch must be a multiple of data*fsdp = {shape.num_row_shards}, because each device of "
            f"these axes takes its share of the rows; got {rows}"
        )


def local_rows(mesh: "Mesh", rows: int) -> slice:
    """Return which of the `rows` rows of a micro-batch this process gives to the learner: those of its own devices.

    All of them where one process holds the mesh. Raises ConfigError unless they split evenly, and in one piece each.
    """
    check_rows(rows, MeshShape(**mesh.shape))
    by_rows = named_sharding(mesh, ("rows", None), (rows, 1))
    indices = by_rows.addressable_devices_indices_map((rows, 1)).values()
    held = {index[0].indices(rows)[:2] for index in indices if index is not None}
    first, last = min(start for start, _ in held), max(stop for _, stop in held)
    if sum(stop - start for start, stop in held) != last - first:
        raise ConfigError(
            f"this process's devices hold rows {sorted(held)} of {rows}, which are not one piece; expected a mesh "
            "whose devices are in the order of their processes"
        )
    return slice(first, last)


def num_row_shares(mesh: "Mesh") -> int:
    """How many such pieces make up a micro-batch: 1 where one process holds all rows."""
    num_shards = MeshShape(**mesh.shape).num_row_shards
    mine = local_rows(mesh, num_shards)
    num_mine: int = mine.stop - mine.start
    return num_shards // num_mine


def check_axes(axes: Sequence[str | None]) -> None:
    """Raise ConfigError if `axes`, the logical axes of one array, have an unknown name or share a mesh axis."""
    owner: dict[str, str] = {}
    for axis in axes:
        if axis is None:
            continue
        if axis not in RULES:
            raise ConfigError(f"logical axis {axis!r} has no rule; sharding.RULES knows {', '.join(RULES)}")
        for name in RULES[axis]:
            if name not in AXES:
                raise ConfigError(f"the rule of logical axis {axis!r} names {name!r}; mesh axes are {', '.join(AXES)}")
            if name in owner:
                raise ConfigError(
                    f"logical axes {owner[name]!r} and {axis!r} of one array are both split over mesh axis {name!r}; "
                    "change one of them in sharding.RULES"
                )
            owner[name] = axis


def partition(axes: Sequence[str | None], sizes: Sequence[int], mesh_sizes: Mapping[str, int]) -> "PartitionSpec":
    """Return where the dimensions of an array lie, given their logical names (None: never split) and sizes.

    mesh_sizes: devices along each of `AXES`. A dimension whose size its mesh axes do not divide is not split:
    always, on every process. Raises ConfigError as `check_axes` does.
    """
    from jax.sharding import PartitionSpec

    check_axes(axes)

    def split(wanted: tuple[str, ...], size: int) -> tuple[str, ...] | None:
        fits = bool(wanted) and size % math.prod(mesh_sizes[name] for name in wanted) == 0
        return wanted if fits else None

    spec = {axis: split(RULES[axis], size) for axis, size in zip(axes, sizes, strict=True) if axis is not None}
    for axis, (other, wanted) in SPARE.items():
        if axis in spec and spec.get(other) is None:
            spec[axis] = split(wanted, sizes[axes.index(axis)])
    return PartitionSpec(*(None if axis is None else spec[axis] for axis in axes))  # type: ignore[no-untyped-call]


def named_sharding(mesh: "Mesh", axes: Sequence[str | None], sizes: Sequence[int]) -> "NamedSharding":
    """`partition` on a mesh of devices."""
    from jax.sharding import NamedSharding

    return NamedSharding(mesh, partition(axes, sizes, mesh.shape))


def constrain(array: _ArrayT, *axes: str | None) -> _ArrayT:
    """Ask the compiler to lay `array` out by its logical axes; the identity outside `jax.set_mesh`."""
    import jax

    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty:
        return array
    spec = partition(axes, array.shape, mesh.shape)
    result: _ArrayT = jax.lax.with_sharding_constraint(array, spec)  # type: ignore[no-untyped-call]
    return result


def on_own_rows(function: Callable[..., Any], *by_rows: Any, shared: Any) -> Any:
    """`function(*by_rows, shared)`, each device on its own rows; just that outside `jax.set_mesh`.

    by_rows: arrays, and the results of `function`, whose leading axis is rows. shared: an array that all rows read. Its
    gradients are added up over the devices once, after `function`: left to the compiler, in every turn of a loop.
    """
    import jax

    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty:
        return function(*by_rows, shared)
    rows = tuple(
        name for name in partition(("rows",), by_rows[0].shape[:1], mesh.shape)[0] or () if mesh.shape[name] > 1
    )
    if not rows:
        return function(*by_rows, shared)

    def run(*arguments: Any) -> Any:
        *own, common = arguments
        return function(*own, jax.lax.pcast(common, rows, to="varying"))

    split, whole = jax.sharding.PartitionSpec(rows), jax.sharding.PartitionSpec()  # type: ignore[no-untyped-call]
    specs = (*[split] * len(by_rows), whole)
    return jax.shard_map(run, in_specs=specs, out_specs=split, axis_names=set(rows))(*by_rows, shared)
