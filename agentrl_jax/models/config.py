"""Architecture of a decoder, as a frozen value."""

from dataclasses import dataclass

from agentrl_jax.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """A Qwen2-architecture decoder: RMSNorm, rotary grouped-query attention with q/k/v biases, SwiGLU.

    `max_positions` bounds the length of a segment. Field names follow our axis letters in docs/design.md.
    """

    vocab_size: int
    width: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    mlp_width: int
    rope_theta: float = 1_000_000.0
    norm_eps: float = 1e-6
    tie_embeddings: bool = True
    max_positions: int = 32_768

    def __post_init__(self) -> None:
        for name in ("vocab_size", "width", "num_layers", "num_heads", "num_kv_heads", "head_dim", "mlp_width"):
            if getattr(self, name) < 1:
                raise ConfigError(f"model {name} must be >= 1, got {getattr(self, name)}")
        if self.num_heads % self.num_kv_heads:
            raise ConfigError(
                f"num_heads must be a multiple of num_kv_heads, got {self.num_heads} and {self.num_kv_heads}"
            )
        if self.head_dim % 2:
            raise ConfigError(f"head_dim must be even (rotary pairs), got {self.head_dim}")
