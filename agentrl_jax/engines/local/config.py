"""Sizes of the embedded engine. Every shape it computes with follows from them."""

from dataclasses import dataclass, replace
from typing import Literal

from agentrl_jax.cli import Derived
from agentrl_jax.errors import ConfigError
from agentrl_jax.models.config import ModelConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalEngineConfig:
    """How many turns run at a time, how long a segment may be, and in which pieces the device works."""

    num_slots: int = 64
    """Turns that are sampled at the same time; each has its own part of the cache"""
    cache_tokens: Derived[int] = 512
    """Longest segment, prompt and sampled ids together. Every decode step reads the whole cache, so on a CPU a cache
    twice as long decodes half as fast: no longer than the longest episode"""
    prefill_shapes: tuple[tuple[int, int], ...] = ((4, 32), (16, 32))
    """(rows, tokens) of each compiled prefill. A long prompt is fed in chunks, between which running turns go on; every
    call takes the shape that fits what is pending best"""
    decode_block: int = 4
    """Steps of a decode call. A turn that ends within a block wastes the rest of it; a new turn waits for its end"""
    banned_ids: tuple[int, ...] = ()
    """Ids that are never sampled (placeholders of other modalities); log-probabilities are those of the others"""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Of weights, activations and cache: auto is float32 on a CPU, bfloat16 on an accelerator. Softmax and
    log-probabilities are always float32"""

    def __post_init__(self) -> None:
        if self.num_slots < 1:
            raise ConfigError(f"num_slots must be >= 1, got {self.num_slots}")
        if self.cache_tokens < 2:
            raise ConfigError(f"cache_tokens must be >= 2 (a prompt and a sampled id), got {self.cache_tokens}")
        if not 1 <= self.decode_block <= self.cache_tokens:
            raise ConfigError(f"decode_block must be in [1, cache_tokens={self.cache_tokens}], got {self.decode_block}")
        if not self.prefill_shapes:
            raise ConfigError("prefill_shapes needs at least one (rows, tokens) pair, got none")
        for rows, tokens in self.prefill_shapes:
            if rows < 1 or not 1 <= tokens <= self.cache_tokens:
                raise ConfigError(
                    f"a prefill shape needs rows >= 1 and tokens in [1, cache_tokens={self.cache_tokens}], "
                    f"got ({rows}, {tokens})"
                )

    def on_platform(self, platform: str) -> "LocalEngineConfig":
        """The config with the dtype that `auto` stands for on JAX's `platform` ("cpu", "gpu", …)."""
        return replace(self, dtype="float32" if platform == "cpu" else "bfloat16") if self.dtype == "auto" else self

    def check_model(self, model: ModelConfig) -> None:
        """Raise ConfigError if this engine cannot serve `model`."""
        if self.cache_tokens > model.max_positions:
            raise ConfigError(
                f"cache_tokens must not exceed the model's max_positions, got {self.cache_tokens} > "
                f"{model.max_positions}"
            )
        strange = [i for i in self.banned_ids if not 0 <= i < model.vocab_size]
        if strange or len(set(self.banned_ids)) >= model.vocab_size:
            raise ConfigError(
                f"banned_ids must be some, not all, of the vocabulary's {model.vocab_size} ids, got {self.banned_ids}"
            )
