"""`SftConfig`: everything that supervised fine-tuning on conversations is made of."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import tyro

from agentrl_jax.errors import ConfigError
from agentrl_jax.learner import LearnerConfig, LoraConfig
from agentrl_jax.packing import PackingConfig
from agentrl_jax.policy import NetworkConfig
from agentrl_jax.rendering.config import RenderingConfig
from agentrl_jax.report.sinks import SinkName
from agentrl_jax.row_sizes import packing_for
from agentrl_jax.runtime import RuntimeConfig
from agentrl_jax.saved_config import config_changes, config_from_json, config_to_json
from agentrl_jax.sharding import parse_mesh


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertConfig:
    """Conversations of scripted experts, instead of a file."""

    conversations: int = 2000
    """How many, over all environments in equal shares"""
    noise: float = 0.2
    """Share of random, well-formed actions in them"""
    level: int = 1
    """Difficulty of the tasks"""
    task_data: Path | None = None
    """Folder of real task data; without it every environment generates its own tasks"""

    def __post_init__(self) -> None:
        if self.conversations < 1:
            raise ConfigError(f"--expert.conversations must be >= 1, got {self.conversations}")
        if not 0.0 <= self.noise < 1.0:
            raise ConfigError(f"--expert.noise must be in [0, 1), got {self.noise}")


@dataclass(frozen=True, slots=True, kw_only=True)
class SftConfig:
    """Supervised fine-tuning on conversations with tool calls: the loss counts what the assistant says, nothing else.

    Without --model it starts from nothing: it trains a tokenizer and a small network on the conversations.
    """

    data: Path | None = None
    """JSONL file, one conversation a line in OpenAI's format: {"messages": [...], "tools": [...]}"""
    from_experts: str | None = None
    """Instead of --data: environments, separated by commas, whose scripted experts make the conversations, which are
    kept in RUN_DIR/conversations.jsonl"""
    valid: Path | None = None
    """JSONL file to validate on (default: a part of the data)"""
    valid_frac: float = 0.05
    """Without --valid: share of the conversations that is held out and validated on; 0 validates on none"""
    model: Path | None = None
    """Start from the weights and the tokenizer in this folder (Hugging Face layout, or RUN_DIR/model)"""
    mesh: str = "1"
    """Devices: a number (all on fsdp), or axes such as data=2,fsdp=4,tensor=2"""
    run_dir: Path | None = None
    """Where the run is recorded; must be new or empty (default: runs/sft-DATE-TIME)"""
    epochs: float = 3.0
    """Passes over the conversations"""
    max_steps: int | None = None
    """Steps, if they are not to follow from --epochs"""
    batch_size: int = 32
    """Conversations in one step"""
    constant_rate: bool = False
    """Keep the learning rate at its peak; otherwise it falls to 0 over the run (cosine)"""
    max_context_tokens: int | None = None
    """Longer conversations are left out, and counted (default: the longest one, as far as the model has positions)"""
    rows_per_device: int | None = None
    """Rows of a micro-batch on each device of the mesh's data and fsdp axes (default: four rows in all, but one on each
    device at least)"""
    row_buckets: int = 1
    """Lengths that rows may have: the longest conversation's, then a half of it, a quarter, and so on"""
    evaluate_every: int = 20
    """Steps between validations; there is always one before the first step and one after the last"""
    save_every: int = 100
    """Steps between checkpoints; there is always one at the end"""
    keep_checkpoints: int = 2
    """Checkpoints that stay; an older one is deleted once a newer one is durable"""
    track: tuple[SinkName, ...] = ()
    """Also write all figures for TensorBoard or Weights & Biases (offline), below RUN_DIR (needs agentrl_jax[track])"""
    seed: int = 0
    """Everything random is derived from it"""
    resume: Path | None = None
    """Go on with the run in this directory, from its newest checkpoint and with its settings"""

    learner: LearnerConfig = field(default_factory=lambda: LearnerConfig(learning_rate=3e-3))
    rendering: Annotated[RenderingConfig, tyro.conf.OmitArgPrefixes] = field(default_factory=RenderingConfig)
    lora: LoraConfig = field(default_factory=LoraConfig)
    network: NetworkConfig = field(default_factory=NetworkConfig)
    expert: ExpertConfig = field(default_factory=ExpertConfig)
    runtime: Annotated[RuntimeConfig, tyro.conf.OmitArgPrefixes] = field(default_factory=RuntimeConfig)

    def __post_init__(self) -> None:
        if not 0.0 <= self.valid_frac < 1.0:
            raise ConfigError(f"--valid-frac must be in [0, 1), got {self.valid_frac}")
        if not 0.0 < self.epochs < float("inf"):
            raise ConfigError(f"--epochs must be > 0, got {self.epochs}")
        least = {"batch_size": 1, "row_buckets": 1, "evaluate_every": 1, "save_every": 1, "keep_checkpoints": 1}
        optional = {"max_steps": 1, "max_context_tokens": 2, "rows_per_device": 1}
        for name, bound in {**least, **optional, "seed": 0}.items():
            value = getattr(self, name)
            if value is not None and value < bound:
                raise ConfigError(f"--{name.replace('_', '-')} must be >= {bound}, got {value}")
        if self.lora.is_on and self.model is None:
            raise ConfigError("--lora.rank needs --model: a network that starts from nothing has nothing to adapt")
        parse_mesh(self.mesh)

    @property
    def env_names(self) -> tuple[str, ...]:
        """Of --from-experts."""
        return tuple(name.strip() for name in (self.from_experts or "").split(",") if name.strip())

    def check_source(self) -> None:
        """Raise ConfigError unless it is said where the conversations come from, once."""
        if (self.data is None) == (self.from_experts is None):
            raise ConfigError(
                "conversations come from --data FILE.jsonl or from --from-experts NAMES: give one of them"
            )

    def packing(self, longest: int) -> PackingConfig:
        """Rows that hold conversations of up to `longest` tokens."""
        return packing_for(longest, mesh=self.mesh, rows_per_device=self.rows_per_device, row_buckets=self.row_buckets)

    def num_steps(self, num_conversations: int) -> int:
        """How many steps the run has, with so many conversations to learn from."""
        return self.max_steps or max(1, round(self.epochs * num_conversations / self.batch_size))

    def learner_for(self, num_steps: int) -> LearnerConfig:
        """The learner's settings: the model's own distribution, and a rate that falls over the whole run."""
        decay_steps = 0 if self.constant_rate else max(num_steps, self.learner.warmup_steps + 1)
        return replace(self.learner, temperature=1.0, decay_steps=self.learner.decay_steps or decay_steps)

    def check_resumes(self, saved: "SftConfig") -> None:
        """Raise ConfigError if a run that began as `saved` cannot go on as this."""
        changed = [name for name in _FIXED if getattr(self, name) != getattr(saved, name)]
        if changed:
            was = ", ".join(f"{name} = {getattr(saved, name)}" for name in changed)
            raise ConfigError(
                f"--resume goes on with the run's own conversations and network: it began with {was}, which cannot "
                "change now. Leave these flags out, or start a new run with --model"
            )

    def changes_from(self, saved: "SftConfig") -> dict[str, str]:
        """What differs, by dotted name: "old → new"."""
        return config_changes(saved, self)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values of every field, for RUN_DIR/config.json."""
        return config_to_json(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "SftConfig":
        """The inverse of `to_json`. Raises ConfigError if a field is unknown, of another type, or refused."""
        return config_from_json(cls, values)


_FIXED = (
    "data",
    "from_experts",
    "valid",
    "valid_frac",
    "model",
    "batch_size",
    "max_context_tokens",
    "seed",
    "rendering",
    "lora",
    "network",
    "expert",
)
"""What a run is made of: a resumed run cannot change it."""
