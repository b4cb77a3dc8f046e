"""Why an episode ended, and what follows from it. Import it from `agentrl_jax.types`, with the records."""

import enum


class EpisodeEnd(enum.Enum):
    """Why an episode ended. The cause decides reward, vote in the baseline and trainability (docs/design.md)."""

    COMPLETED = "completed"
    MAX_TURNS = "max_turns"
    CONTEXT_LIMIT = "context_limit"
    TURN_TRUNCATED = "turn_truncated"
    INVALID_ACTION = "invalid_action"
    VALIDATION_FAILED = "validation_failed"
    WALL_TIMEOUT = "wall_timeout"
    ENV_TIMEOUT = "env_timeout"
    ENV_ERROR = "env_error"
    ENGINE_ERROR = "engine_error"
    CANCELLED = "cancelled"

    @property
    def is_infrastructure(self) -> bool:
        """True if the policy did not cause the end; such an episode has no reward and teaches nothing."""
        return self in _INFRASTRUCTURE_ENDS

    @property
    def is_valid(self) -> bool:
        """True if the episode votes in its group's baseline, and its sampled tokens take part in the loss."""
        return not self.is_infrastructure

    @property
    def agentrl_status(self) -> str:
        """The status word of AgentRL's protocol."""
        return _AGENTRL_STATUS[self]


_INFRASTRUCTURE_ENDS = frozenset(
    {EpisodeEnd.ENV_TIMEOUT, EpisodeEnd.ENV_ERROR, EpisodeEnd.ENGINE_ERROR, EpisodeEnd.CANCELLED}
)
_AGENTRL_STATUS = {
    EpisodeEnd.COMPLETED: "completed",
    EpisodeEnd.MAX_TURNS: "task limit reached",
    EpisodeEnd.CONTEXT_LIMIT: "agent context limit",
    EpisodeEnd.TURN_TRUNCATED: "agent context limit",
    EpisodeEnd.INVALID_ACTION: "agent invalid action",
    EpisodeEnd.VALIDATION_FAILED: "agent validation failed",
    EpisodeEnd.WALL_TIMEOUT: "task limit reached",
    EpisodeEnd.ENV_TIMEOUT: "task error",
    EpisodeEnd.ENV_ERROR: "task error",
    EpisodeEnd.ENGINE_ERROR: "cancelled",
    EpisodeEnd.CANCELLED: "cancelled",
}
