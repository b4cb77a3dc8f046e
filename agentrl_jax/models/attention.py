"""Causal attention within packed segments: what every backend computes, and which one runs where.

xla is the reference and runs anywhere. pallas is a Triton flash attention for NVIDIA GPUs. cudnn is cuDNN's, with its
packed layout, for Hopper and later.
"""

from collections.abc import Mapping
from typing import Literal, NamedTuple, Protocol, TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from agentrl_jax.errors import ConfigError
from agentrl_jax.models.attention_cudnn import attend_cudnn, why_not_cudnn
from agentrl_jax.models.attention_pallas import attend_pallas, why_not_pallas
from agentrl_jax.models.attention_xla import attend_xla

Backend: TypeAlias = Literal["xla", "pallas", "cudnn"]
AttentionChoice: TypeAlias = Literal["auto", "xla", "pallas", "cudnn"]


class Attend(Protocol):
    """softmax(q·kᵀ / sqrt(Dh)) v over the tokens of the same segment at the same or an earlier position.

    Grouped queries: head h reads KV head h // (H / K) (Ainslie et al. 2023). Segments are contiguous and their
    positions ascend along a row (batch.py), so a later column is never attended. Padding (segment 0) is never
    attended by others, gets exactly 0, and gives no gradient. The result has q's dtype. Under `jax.set_mesh` rows
    may be split over data and fsdp, heads over tensor; nothing else is.
    """

    def __call__(
        self,
        q: Float[Array, "B T H Dh"],
        k: Float[Array, "B T K Dh"],
        v: Float[Array, "B T K Dh"],
        segment_ids: Int[Array, "B T"],
        positions: Int[Array, "B T"],
        /,
    ) -> Float[Array, "B T H Dh"]: ...


BACKENDS: Mapping[Backend, Attend] = {"xla": attend_xla, "pallas": attend_pallas, "cudnn": attend_cudnn}


class AttentionPlan(NamedTuple):
    """Which backend runs, and why, in words for the log."""

    backend: Backend
    reason: str

    @property
    def attend(self) -> Attend:
        return BACKENDS[self.backend]


def plan_attention(choice: AttentionChoice, device: jax.Device, *, head_dim: int, dtype: jnp.dtype) -> AttentionPlan:
    """Return the backend for a model of this head size and compute dtype on devices like `device`.

    auto: pallas where it runs, else xla. Raises ConfigError, with the reason, for a backend that cannot run there.
    """
    if choice == "xla":
        return AttentionPlan("xla", "asked for")
    if choice == "auto":
        obstacle = why_not_pallas(device, head_dim=head_dim, dtype=dtype)
        if obstacle is None:
            return AttentionPlan("pallas", f"flash attention on {device.device_kind}")
        return AttentionPlan("xla", f"pallas {obstacle}")
    why_not = {"pallas": why_not_pallas, "cudnn": why_not_cudnn}[choice]
    obstacle = why_not(device, head_dim=head_dim, dtype=dtype)
    if obstacle is not None:
        raise ConfigError(f"--learner.attention {choice} {obstacle}; choose auto or xla")
    return AttentionPlan(choice, "asked for")
