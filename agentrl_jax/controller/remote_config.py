"""How long the controller of remote workers waits for whom. The defaults are the original's where it has one."""

import math
from dataclasses import dataclass, fields, replace
from typing import Literal

from agentrl_jax.controller.workers import RegistryConfig
from agentrl_jax.errors import ConfigError

Full = Literal["wait", "refuse"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteConfig:
    """Timers of remote sessions, in seconds, and what becomes of starts for which no worker has a place."""

    full: Full = "wait"
    """A start for which no worker has a place waits for one, first come, first served; or is refused at once, as the
    original does"""
    queue_s: float = 540.0
    """Longest wait for a place. Stock trainers give a start up after 600 s"""
    interact_s: float = 240.0
    """Longest call of a worker: a start or a turn"""
    expire_s: float = 300.0
    """A session that nobody uses for so long is cancelled. Must exceed the longest turn of a model"""
    remember_s: float = 600.0
    """How long it is known why a session ended"""
    sync_every_s: float = 60.0
    """Time between two comparisons of each worker's sessions with ours"""
    control_s: float = 5.0
    """Longest call of a worker that it answers at once: cancelling with notice, listing its sessions"""
    retry_s: float = 11.0
    """How long a turn is offered to a worker that cannot be reached; it is never sent twice"""
    resume_s: float = 12.0
    """After a start of the controller: how long a turn of an unknown session waits for the worker that has it. Workers
    report every 8 s"""
    resume_sessions: bool = True
    """Whether sessions that workers have from before this controller's start go on; else they are cancelled"""
    coma_after_s: float = 11.0
    """A worker without heartbeat for so long gets no new sessions"""
    dead_after_s: float = 300.0
    """A worker without heartbeat for so long is forgotten, and its sessions end"""
    max_waiting: int = 4096
    """Starts of one task that may wait for a place"""

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            may_be_zero = item.name in ("retry_s", "resume_s")
            if item.name.endswith("_s") and not (0 <= value < math.inf and (value > 0 or may_be_zero)):
                raise ConfigError(f"{item.name} must be positive and finite, got {value}")
        _ = self.registry

    @property
    def registry(self) -> RegistryConfig:
        return RegistryConfig(
            coma_after_s=self.coma_after_s, dead_after_s=self.dead_after_s, max_waiting=self.max_waiting
        )

    def with_long_timeouts(self) -> "RemoteConfig":
        """The original's `--long-timeout`: for turns of up to ten minutes."""
        return replace(self, interact_s=600.0, expire_s=660.0, remember_s=1200.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenConfig:
    """Where the controller listens, and for whom."""

    host: str = "127.0.0.1"
    """Address to listen on. One that other machines can reach needs a token"""
    port: int = 5020
    """TCP port of HTTP and gRPC; 0: the system's choice, which is printed"""
    token: str | None = None
    """What clients and workers must send: `Authorization: Bearer TOKEN`, or as the password in the URL that they are
    given (http://any:TOKEN@host:port/api), which the stock packages understand"""
    trusted: tuple[str, ...] = ()
    """Networks (10.0.0.0/8) whose machines need no token: stock workers cannot send one over gRPC"""
