"""Architecture of a decoder, as a frozen value; and what sets the model families apart."""

from dataclasses import dataclass
from typing import Literal, TypeAlias

from agentrl_jax.errors import ConfigError

Family: TypeAlias = Literal["qwen2", "qwen3", "llama", "glm", "glm4"]
"""Hugging Face's `model_type`. qwen2: Qwen2.5 too; llama: SmolLM2 too; glm: GLM-4-9B-chat-hf; glm4: GLM-4-0414."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FamilyTraits:
    """What all models of a family share.

    All are decoders with RMSNorm in front of each sublayer, rotary grouped-query attention and SwiGLU.

    qkv_biases: which values ModelConfig.qkv_bias may have.
    has_qk_norm: RMSNorm over each head of q and k, before the rotation.
    has_out_norms: RMSNorm also behind each sublayer, before it is added ("sandwich").
    has_fused_gate_up: gate and up are one matrix.
    rotates_neighbours: rotary pairs are (x[2i], x[2i+1]) instead of (x[i], x[i + n/2]), and a part of each head may
      be left as it is.
    """

    architecture: str
    qkv_biases: tuple[bool, ...]
    has_qk_norm: bool = False
    has_out_norms: bool = False
    has_fused_gate_up: bool = False
    rotates_neighbours: bool = False


TRAITS: dict[Family, FamilyTraits] = {
    "qwen2": FamilyTraits(architecture="Qwen2ForCausalLM", qkv_biases=(True,)),
    "qwen3": FamilyTraits(architecture="Qwen3ForCausalLM", qkv_biases=(False,), has_qk_norm=True),
    "llama": FamilyTraits(architecture="LlamaForCausalLM", qkv_biases=(False,)),
    "glm": FamilyTraits(
        architecture="GlmForCausalLM", qkv_biases=(True, False), has_fused_gate_up=True, rotates_neighbours=True
    ),
    "glm4": FamilyTraits(
        architecture="Glm4ForCausalLM",
        qkv_biases=(True, False),
        has_out_norms=True,
        has_fused_gate_up=True,
        rotates_neighbours=True,
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeScaling:
    """Llama 3's stretching of the slow rotary frequencies (rope_type "llama3"); see rope.rotary_turns."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_positions: int

    def __post_init__(self) -> None:
        if not (self.factor >= 1 and self.high_freq_factor > self.low_freq_factor > 0):
            raise ConfigError(
                "rope scaling needs factor >= 1 and high_freq_factor > low_freq_factor > 0, got "
                f"{self.factor}, {self.high_freq_factor} and {self.low_freq_factor}"
            )
        if self.original_max_positions < 1:
            raise ConfigError(f"original_max_positions must be >= 1, got {self.original_max_positions}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """A decoder of one of the families. Field names follow our axis letters in docs/design.md.

    rotary_frac: fraction of each head that is rotated, from its front.
    max_positions: bounds the length of a segment.
    """

    family: Family = "qwen2"
    vocab_size: int
    width: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    mlp_width: int
    qkv_bias: bool = True
    rope_theta: float = 1_000_000.0
    rope_scaling: RopeScaling | None = None
    rotary_frac: float = 1.0
    norm_eps: float = 1e-6
    tie_embeddings: bool = True
    max_positions: int = 32_768

    def __post_init__(self) -> None:
        if self.family not in TRAITS:
            raise ConfigError(f"model family must be one of {', '.join(TRAITS)}, got {self.family!r}")
        for name in ("vocab_size", "width", "num_layers", "num_heads", "num_kv_heads", "head_dim", "mlp_width"):
            if getattr(self, name) < 1:
                raise ConfigError(f"model {name} must be >= 1, got {getattr(self, name)}")
        if self.num_heads % self.num_kv_heads:
            raise ConfigError(
                f"num_heads must be a multiple of num_kv_heads, got {self.num_heads} and {self.num_kv_heads}"
            )
        if self.qkv_bias not in self.traits.qkv_biases:
            raise ConfigError(f"qkv_bias must be {self.traits.qkv_biases[0]} for {self.family}, got {self.qkv_bias}")
        self._check_rotary()

    def _check_rotary(self) -> None:
        if not 0 < self.rotary_frac <= 1:
            raise ConfigError(f"rotary_frac must be in (0, 1], got {self.rotary_frac}")
        if self.rotary_frac != 1 and not self.traits.rotates_neighbours:
            raise ConfigError(f"rotary_frac must be 1 for {self.family}, got {self.rotary_frac}")
        if self.rotary_dim % 2 or not self.rotary_dim:
            raise ConfigError(
                f"rotary pairs need an even part of each head, got {self.rotary_dim} of head_dim {self.head_dim}"
            )

    @property
    def traits(self) -> FamilyTraits:
        return TRAITS[self.family]

    @property
    def rotary_dim(self) -> int:
        """How many numbers of each head are rotated."""
        return int(self.head_dim * self.rotary_frac)
