"""How conversations are rendered and read: what a user chooses, and what a policy folder remembers of it.

A policy that was trained on prompts with its earlier thinking in them is another policy on prompts without: whoever
opens its folder learns which of the two it was.
"""

import json
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Literal, get_args

from agentrl_jax.errors import ConfigError

HistoryThinking = Literal["keep", "strip"]
ToolCallFormat = Literal["hermes", "llama3", "glm4"]
ToolCallPolicy = Literal["strict", "lenient"]
TemplateName = Literal["hermes"]

RENDERING_FILE = "rendering.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class RenderingConfig:
    """Between messages and token ids."""

    history_thinking: HistoryThinking | None = None
    """What later prompts hold of earlier turns, for templates that rewrite them: keep (all that was sampled; one
    segment an episode) or strip (what the template leaves; a segment for each rewritten prompt). Default: as the policy
    was trained, and a template that rewrites is refused if that is not known"""
    tool_call_format: ToolCallFormat | None = None
    """How the policy spells tool calls (default: as its chat template writes them)"""
    chat_template: TemplateName | None = None
    """Render by our own template for tool calls, hermes, for a model whose template knows no tools (default: the
    policy's own)"""
    tool_calls: ToolCallPolicy = "lenient"
    """lenient: JSON that names a declared tool is a call too, if it is fenced or all that a turn says; strict: it is
    not"""

    def __post_init__(self) -> None:
        for name, choices in _CHOICES.items():
            value = getattr(self, name)
            if value is not None and value not in choices:
                raise ConfigError(f"{name} must be {' or '.join(map(repr, choices))}, got {value!r}")
        if self.tool_calls is None:
            raise ConfigError("tool_calls must be 'strict' or 'lenient', got None")

    def completed_by(self, recorded: "RenderingConfig") -> "RenderingConfig":
        """This config, with what a policy was trained with where nothing else is asked for."""
        return replace(
            self,
            history_thinking=self.history_thinking or recorded.history_thinking,
            tool_call_format=self.tool_call_format or recorded.tool_call_format,
            chat_template=self.chat_template or recorded.chat_template,
        )

    def changes_from(self, recorded: "RenderingConfig") -> list[str]:
        """What a policy meets now that it was not trained with, a sentence each."""
        return [
            f"the policy was trained with {name} = {was}, and meets {name} = {now} now"
            for name, was, now in (
                (field.name, getattr(recorded, field.name), getattr(self, field.name)) for field in fields(self)
            )
            if was is not None and now is not None and was != now
        ]


_CHOICES: dict[str, tuple[str, ...]] = {
    "history_thinking": get_args(HistoryThinking),
    "tool_call_format": get_args(ToolCallFormat),
    "chat_template": get_args(TemplateName),
    "tool_calls": get_args(ToolCallPolicy),
}


def write_rendering(folder: Path, config: RenderingConfig) -> None:
    """Record in a policy folder how its prompts were rendered."""
    (folder / RENDERING_FILE).write_text(json.dumps(asdict(config), indent=2) + "\n", encoding="utf-8")


def read_rendering(folder: Path) -> RenderingConfig | None:
    """What a policy folder says of its rendering, None if nothing. Raises ConfigError for a damaged file."""
    file = folder / RENDERING_FILE
    if not file.is_file():
        return None
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
        return RenderingConfig(**values)
    except (ValueError, TypeError, ConfigError) as error:
        raise ConfigError(f"{file} does not say how a policy's prompts are rendered: {error}") from error
