"""One leaf of the params: what it is called on both sides, and how its layout changes on the way.

Ours: kernels as [inputs, outputs], heads and fused matrices as axes of their own, layers stacked on a leading axis.
Hugging Face's: matrices as [outputs, inputs], one tensor per layer. Values never change, only their layout.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from agentrl_jax.sharding import check_axes

Path: TypeAlias = tuple[str, ...]
HostArray: TypeAlias = npt.NDArray[Any]
Index: TypeAlias = tuple[slice, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ParamSpec:
    """One leaf of the tree.

    shape, axes: of the leaf, the leading `layers` axis included where the leaf is stacked. `axes` are logical
      names for sharding.RULES.
    hf_name: Hugging Face's name, with `{layer}` where the leaf is stacked.
    hf_axes: which of our axes (those of one layer) each axis of their tensor folds, in C order.
    initial: "normal" draws N(0, 1/fan_in), the others are constant.

    Raises ConfigError for axes that have no rule, or that collide on a mesh axis.
    """

    path: Path
    shape: tuple[int, ...]
    axes: tuple[str | None, ...]
    hf_name: str
    hf_axes: tuple[tuple[int, ...], ...]
    initial: Literal["normal", "zeros", "ones"]
    fan_in: int = 1

    def __post_init__(self) -> None:
        check_axes(self.axes)

    @property
    def is_stacked(self) -> bool:
        return "{layer}" in self.hf_name

    @property
    def has_decay(self) -> bool:
        """Weight decay pulls on matrices and embeddings, not on biases and norms."""
        return self.initial == "normal"

    @property
    def layer_shape(self) -> tuple[int, ...]:
        """Our shape of what one Hugging Face tensor holds."""
        return self.shape[1:] if self.is_stacked else self.shape

    @property
    def hf_shape(self) -> tuple[int, ...]:
        return tuple(prod(self.layer_shape[axis] for axis in fold) for fold in self.hf_axes)

    def stacked(self, prefix: str, num_layers: int) -> "ParamSpec":
        """The leaf that holds this one of every layer."""
        return replace(
            self,
            path=("layers", *self.path),
            shape=(num_layers, *self.shape),
            axes=("layers", *self.axes),
            hf_name=f"{prefix}.{{layer}}.{self.hf_name}",
        )

    def to_hf(self, array: HostArray) -> HostArray:
        """Return one layer's array (or an unstacked leaf) in Hugging Face's layout, C-contiguous."""
        return np.ascontiguousarray(array.transpose(self._order).reshape(self.hf_shape))

    def from_hf(self, array: HostArray) -> HostArray:
        """The inverse of `to_hf`, where possible as a view."""
        return self.read(tuple(slice(0, size) for size in self.layer_shape), lambda index: array[index])

    def read(self, index: Index, read_hf: Callable[[Index], HostArray]) -> HostArray:
        """Return the part `index` of one layer in our layout, reading no more than it holds.

        read_hf: returns a rectangle of the Hugging Face tensor. It is called once for each run of neighbours that
          the part has along their axes: several times only if an axis that folds ours is split within.
        """
        index = tuple(slice(*part.indices(size)[:2]) for part, size in zip(index, self.layer_shape, strict=True))
        runs = [
            _runs([self.layer_shape[axis] for axis in fold], [index[axis] for axis in fold]) for fold in self.hf_axes
        ]
        part = _gather((), runs, read_hf)
        shape = [index[axis].stop - index[axis].start for axis in self._order]
        return part.reshape(shape).transpose(np.argsort(self._order))

    @property
    def _order(self) -> tuple[int, ...]:
        return tuple(axis for fold in self.hf_axes for axis in fold)


def _runs(sizes: Sequence[int], index: Sequence[slice]) -> list[slice]:
    """The runs of neighbours that `index` picks from an array of shape `sizes`, in C order."""
    picked = np.arange(prod(sizes)).reshape(sizes)[tuple(index)].ravel()
    parts = np.split(picked, np.flatnonzero(np.diff(picked) != 1) + 1)
    return [slice(int(part[0]), int(part[-1]) + 1) for part in parts]


def _gather(done: Index, runs: Sequence[Sequence[slice]], read_hf: Callable[[Index], HostArray]) -> HostArray:
    if not runs:
        return read_hf(done)
    parts = [_gather((*done, run), runs[1:], read_hf) for run in runs[0]]
    return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=len(done))


def matrix(path: str, hf_name: str, inputs: dict[str, int], outputs: dict[str, int]) -> ParamSpec:
    """A kernel; `inputs` and `outputs` map logical axes to sizes."""
    dims = inputs | outputs
    return ParamSpec(
        path=(*path.split("."), "kernel"),
        shape=tuple(dims.values()),
        axes=tuple(dims),
        hf_name=f"{hf_name}.weight",
        hf_axes=(tuple(range(len(inputs), len(dims))), tuple(range(len(inputs)))),
        initial="normal",
        fan_in=prod(inputs.values()),
    )


def vector(path: str, hf_name: str, dims: dict[str, int], initial: Literal["zeros", "ones"]) -> ParamSpec:
    """A bias or the scale of a norm."""
    return ParamSpec(
        path=tuple(path.split(".")),
        shape=tuple(dims.values()),
        axes=tuple(dims),
        hf_name=hf_name,
        hf_axes=(tuple(range(len(dims))),),
        initial=initial,
    )


def table(path: str, hf_name: str, dims: dict[str, int]) -> ParamSpec:
    """An embedding [rows, width], which both sides hold alike. Its fan-in is its width: see params.init_params."""
    return ParamSpec(
        path=tuple(path.split(".")),
        shape=tuple(dims.values()),
        axes=tuple(dims),
        hf_name=hf_name,
        hf_axes=((0,), (1,)),
        initial="normal",
        fan_in=tuple(dims.values())[1],
    )
