"""The bounds of an episode, and what breaking them costs."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from agentrl_jax.cli import Derived
from agentrl_jax.errors import ConfigError
from agentrl_jax.types import EpisodeEnd

_COUNTS = (
    "max_turns",
    "max_new_tokens",
    "max_context_tokens",
    "max_sampled_tokens",
    "max_calls_per_turn",
    "max_calls",
)
_TIMES = (
    "wall_budget_s",
    "queue_deadline_s",
    "reset_deadline_s",
    "env_deadline_s",
    "engine_deadline_s",
    "close_deadline_s",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeConfig:
    """The bounds of an episode, and what breaking them costs."""

    max_turns: Derived[int]
    """Turns of an episode at the most"""
    max_new_tokens: int
    """Longest turn, clipped to what max_context_tokens and max_sampled_tokens leave. A turn that is cut short ends the
    episode: as turn_truncated, or as context_limit if it had been clipped"""
    max_context_tokens: Derived[int]
    """Longest episode: prompt, replies and samples"""
    max_sampled_tokens: int | None = None
    """Samples alone, over all turns of an episode (default: as many as fit its context)"""
    max_calls_per_turn: int | None = None
    """Tool calls of a turn that are carried out; others are answered by a notice (default: all)"""
    max_calls: int | None = None
    """The same for an episode; one that has used them up and goes on all the same ends as max_turns (default: all)"""
    temperature: Derived[float] = 0.8
    """Sampling temperature"""
    penalty: float = -0.2
    """Reward of every end that the policy caused, but `completed`"""
    penalties: Mapping[EpisodeEnd, float] = field(default_factory=dict)
    """The same for single reasons: REASON VALUE ..."""
    penalises_infrastructure: Derived[bool] = False
    """Whether ends that the policy did not cause cost the penalty too, and teach, as published"""
    wall_budget_s: float = 1800.0
    """The policy's time, seconds from the first prompt on; a slow reset is not its fault"""
    queue_deadline_s: Derived[float] = 600.0
    """How long an episode waits for a place on an env worker before its start"""
    reset_deadline_s: float = 120.0
    """How long a reset may take before it is the environment's fault"""
    env_deadline_s: float = 120.0
    """How long one step may take before it is the environment's fault"""
    engine_deadline_s: float = 600.0
    """How long one turn may take before it is the engine's fault"""
    close_deadline_s: float = 10.0
    """Bounds each release of a session, and so every shutdown"""

    def __post_init__(self) -> None:
        for name in _COUNTS:
            bound = getattr(self, name)
            if bound is not None and bound < 1:
                raise ConfigError(f"{name} must be at least 1, got {bound}")
        for name in _TIMES:
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name} must be positive, got {getattr(self, name)}")
        if not 0 <= self.temperature < float("inf"):
            raise ConfigError(f"temperature must be finite and >= 0, got {self.temperature}")
        for end in self.penalties:
            if end.is_infrastructure or end is EpisodeEnd.COMPLETED:
                raise ConfigError(f"{end.value} cannot have a penalty: the policy did not do anything wrong")
        for penalty in (self.penalty, *self.penalties.values()):
            if not (math.isfinite(penalty) and penalty <= 0.0):
                raise ConfigError(f"a penalty must be finite and <= 0, got {penalty}")

    def reward(self, end: EpisodeEnd, env_reward: float | None) -> float | None:
        """The reward of an episode that ended so: the env's, the reason's penalty, or none."""
        if end is EpisodeEnd.COMPLETED:
            return env_reward
        if end.is_infrastructure:
            return self.penalty if self.penalises_infrastructure else None
        return self.penalties.get(end, self.penalty)
