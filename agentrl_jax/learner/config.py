"""Settings of the learner, and its learning rate as a function of the step."""

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from agentrl_jax.cli import Derived
from agentrl_jax.errors import ConfigError
from agentrl_jax.models.attention import AttentionChoice

ComputeDType: TypeAlias = Literal["auto", "float32", "bfloat16"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnerConfig:
    """The optimiser (AdamW, Loshchilov & Hutter 2019) and how log-probabilities are computed."""

    learning_rate: float = 4e-4
    """Peak learning rate"""
    warmup_steps: int = 0
    """Steps of linear rise before the peak"""
    decay_steps: int = 0
    """Step at which a cosine decay reaches 0; 0 keeps the peak for good"""
    beta1: float = 0.9
    """Decay of the gradient's running mean"""
    beta2: float = 0.99
    """Decay of the squared gradient's running mean"""
    eps: float = 1e-8
    """Added to the root of the squared mean"""
    weight_decay: float = 0.0
    """Pull on matrices and embeddings towards 0, times the learning rate"""
    max_grad_norm: float = 1.0
    """Gradients of a larger global norm are scaled down to it"""
    temperature: Derived[float] = 1.0
    """Of the policy whose log-probabilities are trained: the sampling temperature"""
    banned_ids: Derived[tuple[int, ...]] = ()
    """Ids that the engines never sample, whose share the others have there: left out of the distribution here too"""
    logprob_chunk: int = 512
    """Columns of the rows whose logits exist at a time"""
    compute_dtype: ComputeDType = "auto"
    """Of activations; auto: float32 on a CPU, bfloat16 on accelerators"""
    attention: AttentionChoice = "auto"
    """Kernel of the attention layers; auto: pallas on NVIDIA GPUs that have what it needs, xla elsewhere"""
    remat: bool = True
    """Compute a layer again in the backward pass instead of keeping it (less memory, and faster on a CPU)"""
    offload_optimizer: bool = False
    """Keep the optimiser's moments in the host's memory between updates: two thirds of the state (slower)"""
    max_skipped_steps: int = 8
    """So many steps in a row without a finite loss and gradient end the run"""

    def __post_init__(self) -> None:
        for name in ("learning_rate", "eps", "max_grad_norm", "temperature"):
            if not 0.0 < getattr(self, name) < float("inf"):
                raise ConfigError(f"learner {name} must be finite and > 0, got {getattr(self, name)}")
        for name in ("beta1", "beta2"):
            if not 0.0 <= getattr(self, name) < 1.0:
                raise ConfigError(f"learner {name} must be in [0, 1), got {getattr(self, name)}")
        for name, least in (("warmup_steps", 0), ("logprob_chunk", 1), ("max_skipped_steps", 1)):
            if getattr(self, name) < least:
                raise ConfigError(f"learner {name} must be >= {least}, got {getattr(self, name)}")
        if not 0.0 <= self.weight_decay < float("inf"):
            raise ConfigError(f"learner weight_decay must be finite and >= 0, got {self.weight_decay}")
        if self.decay_steps and self.decay_steps <= self.warmup_steps:
            raise ConfigError(
                f"learner decay_steps must be 0 or > warmup_steps, got {self.decay_steps} and {self.warmup_steps}"
            )


def learning_rate_at(config: LearnerConfig, step: Int[Array, ""] | int) -> Float[Array, ""]:
    """Return the rate of the update after `step` updates, a function of nothing else.

    peak · (step + 1) / (warmup + 1) up to step = warmup, then peak, or peak · (1 + cos(π · (step − warmup) /
    (decay_steps − warmup))) / 2, which is 0 from decay_steps on. Outside of JAX it is NumPy that computes it.
    """
    xp: Any = jnp if isinstance(step, jax.Array) else np
    step = xp.asarray(step, xp.float32)
    factor = xp.minimum(1.0, (step + 1) / (config.warmup_steps + 1))
    if config.decay_steps:
        progress = (step - config.warmup_steps) / (config.decay_steps - config.warmup_steps)
        factor = factor * (1 + xp.cos(xp.pi * xp.clip(progress, 0.0, 1.0))) / 2
    rate: Float[Array, ""] = config.learning_rate * factor
    return rate
