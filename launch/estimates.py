"""What training costs on devices, from shapes alone: operations, and bytes of a learner step and of an engine."""

from collections.abc import Iterable
from math import prod
from typing import NamedTuple, Protocol

from agentrl_jax.learner import LoraConfig
from agentrl_jax.learner.lora import adapter_specs
from agentrl_jax.models.config import ModelConfig
from agentrl_jax.models.families import param_specs
from agentrl_jax.models.params import num_params
from agentrl_jax.sharding import MeshShape, partition


class DeviceKind(NamedTuple):
    """The makers' figures of a device: dense bfloat16 operations per second, and bytes of memory."""

    flops: float
    memory: float


_GIB = 2.0**30

DEVICES = {
    "B200": DeviceKind(2.25e15, 180 * _GIB),
    "H200": DeviceKind(989e12, 141 * _GIB),
    "GH200": DeviceKind(989e12, 96 * _GIB),
    "H100": DeviceKind(989e12, 80 * _GIB),
    "H800": DeviceKind(989e12, 80 * _GIB),
    "H20": DeviceKind(148e12, 96 * _GIB),
    "A100-SXM4-80GB": DeviceKind(312e12, 80 * _GIB),
    "A100 80GB PCIe": DeviceKind(312e12, 80 * _GIB),
    "A100": DeviceKind(312e12, 40 * _GIB),
    "A800": DeviceKind(312e12, 80 * _GIB),
    "L40S": DeviceKind(362e12, 48 * _GIB),
    "A10": DeviceKind(125e12, 24 * _GIB),
    "4090": DeviceKind(165e12, 24 * _GIB),
}
"""By a part of the device's name; the longest counts."""


class StepBytes(NamedTuple):
    """Bytes on each device in the two phases of a step: adding up gradients, and the update."""

    params: int  # what is trained, in float32, and under adapters what is not
    reference: int  # the frozen policy of a KL term
    gradients: int  # the sums, in float32
    moments: int  # both of the optimiser, in float32
    resting_moments: int  # what of them is there while gradients are added up
    micro_batch: int  # its own gradients, in float32
    activations: int  # each layer's input, what one layer keeps while its gradient is computed, and gathered weights
    logits: int  # one chunk's: logits, probabilities and their gradient
    new: int  # scaled gradients, and params and moments before they take the place of the old ones

    @property
    def adding(self) -> int:
        """While gradients are added up."""
        resting = self.params + self.reference + self.gradients + self.resting_moments
        return resting + self.micro_batch + self.activations + self.logits

    @property
    def updating(self) -> int:
        """In the update."""
        return self.params + self.reference + self.gradients + self.moments + self.new

    @property
    def peak(self) -> int:
        return max(self.adding, self.updating)


class EngineBytes(NamedTuple):
    """Bytes of an embedded engine on each of its devices."""

    weights: int
    staged: int  # the next weights, while a publish brings them
    cache: int  # keys and values of every slot
    logits: int  # of a decode step and its sampling

    @property
    def total(self) -> int:
        return sum(self)


class _Spec(Protocol):
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def axes(self) -> tuple[str | None, ...]: ...


def device_kind(name: str) -> DeviceKind | None:
    """Return the makers' figures of the device that JAX calls `name`; None for one that is not listed."""
    parts = [part for part in DEVICES if part in name]
    return DEVICES[max(parts, key=len)] if parts else None


def step_flops(model: ModelConfig, *, num_tokens: int, length: int) -> float:
    """Return the useful operations of a step on segments of (on average over tokens) `length`, `num_tokens` together.

    6 per number of a matrix and token, and 6·L·H·Dh·length per token for causal attention (Chowdhery et al. 2022,
    appendix B, halved for causality). What is computed again does not count, nor does looking up an embedding.
    """
    lookup = 0 if model.tie_embeddings else model.vocab_size * model.width
    attention = 6.0 * model.num_layers * model.num_heads * model.head_dim * length
    return num_tokens * (6.0 * (num_params(model) - lookup) + attention)


def step_bytes(
    model: ModelConfig,
    *,
    mesh: MeshShape,
    rows: int,
    row_tokens: int,
    logprob_chunk: int,
    itemsize: int,
    remat: bool = True,
    lora: LoraConfig | None = None,
    has_reference: bool = False,
    offload: bool = False,
) -> StepBytes:
    """Return what a step needs on each device of `mesh`.

    rows: of a micro-batch, on this device. itemsize: of the compute dtype. lora: train adapters, over params that are
    in the compute dtype. offload: the moments are in the host's memory but for the update.

    Attention is taken to keep nothing but its inputs and its output, as the kernels for GPUs do. The update's bytes are
    those that XLA plans on a CPU.
    """
    whole = held_numbers(model, mesh)
    trained = whole if lora is None or not lora.is_on else _held(adapter_specs(model, lora), mesh)
    frozen = 0 if trained is whole else itemsize * whole
    tokens, tensor = rows * row_tokens, mesh.tensor
    heads = (model.num_heads + 2 * model.num_kv_heads) * model.head_dim
    kept = tokens * itemsize * (6 * model.width + (2 * heads + 4 * model.mlp_width) // tensor)
    inputs = tokens * itemsize * model.width * model.num_layers
    gathered = 2 * itemsize * model.vocab_size * model.width // tensor
    return StepBytes(
        params=4 * trained + frozen,
        reference=itemsize * whole if has_reference and not frozen else 0,
        gradients=4 * trained,
        moments=8 * trained,
        resting_moments=0 if offload else 8 * trained,
        micro_batch=4 * trained,
        activations=inputs + kept * (1 if remat else model.num_layers) + gathered,
        logits=3 * 4 * rows * min(logprob_chunk, row_tokens) * model.vocab_size // tensor,
        new=12 * trained,
    )


def engine_bytes(
    model: ModelConfig, *, num_slots: int, cache_tokens: int, num_devices: int, itemsize: int
) -> EngineBytes:
    """Return what an embedded engine needs on each of the devices that its model is split over."""
    mesh = MeshShape(tensor=num_devices)
    weights = itemsize * held_numbers(model, mesh)
    kv_heads = model.num_kv_heads // (num_devices if model.num_kv_heads % num_devices == 0 else 1)
    per_token = 2 * itemsize * model.num_layers * kv_heads * model.head_dim
    return EngineBytes(
        weights=weights,
        staged=weights,
        cache=num_slots * cache_tokens * per_token,
        logits=3 * 4 * num_slots * model.vocab_size,
    )


def held_numbers(model: ModelConfig, mesh: MeshShape) -> int:
    """Return how many of the params each device of `mesh` holds."""
    return _held(param_specs(model), mesh)


def _held(specs: Iterable[_Spec], mesh: MeshShape) -> int:
    """How many of the numbers each device of `mesh` holds."""
    sizes = {"data": mesh.data, "fsdp": mesh.fsdp, "tensor": mesh.tensor}
    total = 0
    for spec in specs:
        names = [name for part in partition(spec.axes, spec.shape, sizes) for name in _flat(part)]
        total += prod(spec.shape) // prod(sizes[name] for name in names)
    return total


def _flat(part: str | tuple[str, ...] | None) -> tuple[str, ...]:
    return () if part is None else (part,) if isinstance(part, str) else part
