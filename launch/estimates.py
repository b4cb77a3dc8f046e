"""What a learner step should cost on a device, from the model's shape alone: operations and bytes."""

from typing import NamedTuple

from agentrl_jax.models.config import ModelConfig
from agentrl_jax.models.params import num_params

PEAK_FLOPS = {
    "B200": 2.25e15,
    "H200": 989e12,
    "H100": 989e12,
    "H800": 989e12,
    "H20": 148e12,
    "GH200": 989e12,
    "A100": 312e12,
    "A800": 312e12,
    "L40S": 362e12,
    "A10": 125e12,
    "4090": 165e12,
}
"""Dense bfloat16 operations per second, by a part of the device's name (the longest counts); the makers' figures."""


class StepBytes(NamedTuple):
    """Bytes on each device at the peak of a step."""

    state: int  # float32 params and both moments
    gradients: int  # the sums, and those of one micro-batch
    activations: int  # each layer's input, what one layer keeps while its gradient is computed, and the head's copies
    logits: int  # one chunk's: logits, probabilities and their gradient

    @property
    def total(self) -> int:
        return sum(self)


def peak_flops(device_kind: str) -> float | None:
    """Return the maker's bfloat16 rate of a device, in operations per second; None for one that is not listed."""
    names = [name for name in PEAK_FLOPS if name in device_kind]
    return PEAK_FLOPS[max(names, key=len)] if names else None


def step_flops(model: ModelConfig, *, num_tokens: int, length: int) -> float:
    """Return the useful operations of a step on segments of (on average over tokens) `length`, `num_tokens` together.

    6 per number of a matrix and token, and 6·L·H·Dh·length per token for causal attention (Chowdhery et al. 2022,
    appendix B, halved for causality). What is computed again does not count, nor does looking up an embedding.
    """
    lookup = 0 if model.tie_embeddings else model.vocab_size * model.width
    attention = 6.0 * model.num_layers * model.num_heads * model.head_dim * length
    return num_tokens * (6.0 * (num_params(model) - lookup) + attention)


def step_bytes(
    model: ModelConfig, *, rows: int, row_tokens: int, logprob_chunk: int, shards: int, tensor: int, itemsize: int
) -> StepBytes:
    """Return what a step needs on each device.

    rows: of a micro-batch, on this device. shards: fsdp·tensor devices share params. tensor: those that share heads,
    MLP and vocabulary. itemsize: of the compute dtype.
    """
    params, tokens = num_params(model), rows * row_tokens
    heads = (model.num_heads + 2 * model.num_kv_heads) * model.head_dim
    one_layer = tokens * itemsize * (6 * model.width + (2 * heads + 4 * model.mlp_width) // tensor)
    inputs = model.num_layers * tokens * model.width * itemsize
    head = 2 * model.vocab_size * model.width * itemsize // tensor
    return StepBytes(
        state=12 * params // shards,
        gradients=8 * params // shards,
        activations=inputs + one_layer + head,
        logits=3 * 4 * rows * min(logprob_chunk, row_tokens) * model.vocab_size // tensor,
    )
