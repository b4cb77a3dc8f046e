"""A policy on disk and in memory: architecture, params and tokenizer, kept together in one folder.

The folder has Hugging Face's layout, so that transformers and SGLang load it, and so does `--model`. A tokenizer is
trained once and saved beside the weights: ids mean nothing without it.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from jax.sharding import Mesh

from agentrl_jax.env import Message, Tool
from agentrl_jax.errors import ConfigError
from agentrl_jax.models.config import ModelConfig
from agentrl_jax.models.export import ExportDType
from agentrl_jax.models.load import has_safetensors, inspect_pretrained, load_pretrained, place_params
from agentrl_jax.models.params import Params, init_params
from agentrl_jax.models.save import save_pretrained
from agentrl_jax.rendering.config import RenderingConfig, read_rendering, write_rendering
from agentrl_jax.rendering.templates import (
    IM_END,
    IM_START,
    TEMPLATES,
    ChatTemplate,
    conversation_to_json,
    hermes_template,
)
from agentrl_jax.rendering.tokenizer import ChatTokenizer, load_tokenizer
from agentrl_jax.rendering.tokenizer_files import write_template
from agentrl_jax.rendering.train_tokenizer import train_tokenizer
from agentrl_jax.wording import quoted

Conversation = tuple[Sequence[Message], Sequence[Tool]]

_SHARED_FRAC = 0.02
"""A system message that so many of the conversations, and more than one, begin with is one token of a new
tokenizer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkConfig:
    """The small Qwen2-architecture network that a run without --model starts from."""

    vocab_size: int = 640
    """Upper bound of the tokenizer's size; 256 of the ids are the bytes"""
    width: int = 96
    """Hidden size"""
    num_layers: int = 4
    """Decoder layers"""
    num_heads: int = 4
    """Attention heads"""
    num_kv_heads: int = 2
    """Key and value heads (grouped-query attention)"""
    mlp_width: int = 256
    """Inner size of the gated MLP"""
    rope_theta: float = 10_000.0
    """Base of the rotary angles"""

    def __post_init__(self) -> None:
        if self.num_heads < 1 or self.width % self.num_heads:
            raise ConfigError(f"network width must be a multiple of num_heads, got {self.width} and {self.num_heads}")
        self.model_config(self.vocab_size)

    def model_config(self, vocab_size: int) -> ModelConfig:
        """The architecture for a tokenizer of `vocab_size` ids. Raises ConfigError for sizes that do not fit."""
        return ModelConfig(
            vocab_size=vocab_size,
            width=self.width,
            num_layers=self.num_layers,
            num_heads=self.num_heads,
            num_kv_heads=self.num_kv_heads,
            head_dim=self.width // self.num_heads,
            mlp_width=self.mlp_width,
            rope_theta=self.rope_theta,
            tie_embeddings=True,
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Policy:
    """A policy that is not in memory yet.

    dtype: the precision of its weights on disk, in which `save` writes them again.
    tokenizer_folder: holds the tokenizer's files.
    load_params: reads or draws the initial params. With a mesh they are placed on it, in their own precision, and each
      process reads only its part.
    rendering: how its prompts were rendered in training, None if nobody recorded it.
    """

    model: ModelConfig
    dtype: ExportDType
    tokenizer: ChatTokenizer
    tokenizer_folder: Path
    load_params: Callable[[Mesh | None], Params]
    rendering: RenderingConfig | None = None

    def save(self, params: Params, folder: Path) -> None:
        """Write `params` of this architecture to `folder`, with the tokenizer and what else the policy came with."""
        if not (self.tokenizer_folder / "tokenizer.json").is_file():
            self.tokenizer.save(folder)
        save_pretrained(params, self.model, folder, dtype=self.dtype, source=self.tokenizer_folder)
        if self.rendering is not None:
            write_rendering(folder, self.rendering)
            if self.rendering.chat_template is not None:
                write_template(folder, TEMPLATES[self.rendering.chat_template])


def create_policy(
    conversations: Iterable[Conversation],
    folder: Path,
    *,
    network: NetworkConfig,
    keep_whole: Sequence[str],
    seed: int,
) -> Policy:
    """Train a tokenizer on `conversations`, save it to `folder`, and initialise a network for it.

    A system message that many of them share becomes one token, with its tools: to a network that starts from nothing
    it can be no more than a name, whatever its length.
    """
    source = hermes_template(preamble="", instructions="")
    template = ChatTemplate(source, {})
    texts = [
        template.render(*conversation_to_json(messages, tools), add_generation_prompt=False)
        for messages, tools in conversations
    ]
    train_tokenizer(
        texts,
        folder,
        vocab_size=network.vocab_size,
        chat_template=source,
        keep_whole=keep_whole,
        openings=_shared_openings(texts),
    )
    tokenizer = load_tokenizer(folder)
    model = network.model_config(tokenizer.vocab_size)

    def draw(mesh: Mesh | None) -> Params:
        params = init_params(model, seed)
        return params if mesh is None else place_params(model, params, mesh)

    return Policy(
        model=model,
        dtype="float32",
        tokenizer=tokenizer,
        tokenizer_folder=folder,
        load_params=draw,
    )


def _shared_openings(texts: Collection[str]) -> list[str]:
    """The system blocks, tools included, that at least `_SHARED_FRAC` of the rendered conversations share."""
    head = f"{IM_START}system\n"
    blocks = Counter(text.removeprefix(head).partition(IM_END)[0] for text in texts if text.startswith(head))
    return [block for block, count in blocks.items() if count >= max(2, _SHARED_FRAC * len(texts))]


def check_model_folder(folder: Path) -> None:
    """Raise ConfigError unless `folder` holds what a policy is loaded from; nothing is loaded yet."""
    if any(folder.glob("*.gguf")) and not has_safetensors(folder):
        return
    missing = [name for name in ("config.json", "tokenizer.json") if not (folder / name).is_file()]
    missing += [] if has_safetensors(folder) else ["model.safetensors or its index"]
    if missing:
        inner = folder / "model"
        of_a_run = f"; a run's policy is in --model {quoted(inner)}" if has_safetensors(inner) else ""
        raise ConfigError(
            f"--model {folder}: expected config.json, weights and tokenizer; missing: {', '.join(missing)}{of_a_run}"
        )


def open_policy(folder: Path) -> Policy:
    """Open a policy folder, and check all but the weights' values. Raises ConfigError naming what does not fit."""
    check_model_folder(folder)
    tokenizer = load_tokenizer(folder)
    model, dtype = inspect_pretrained(folder)
    if tokenizer.vocab_size > model.vocab_size:
        raise ConfigError(
            f"--model {folder}: the tokenizer has {tokenizer.vocab_size} ids, but the model only "
            f"{model.vocab_size} embeddings; they do not belong together"
        )
    return Policy(
        model=model,
        dtype=dtype,
        tokenizer=tokenizer,
        tokenizer_folder=folder,
        load_params=lambda mesh: load_pretrained(folder, mesh=mesh)[1],
        rendering=read_rendering(folder),
    )
