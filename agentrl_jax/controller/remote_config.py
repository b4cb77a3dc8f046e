"""How long the controller of remote workers waits for whom. The defaults are the original's where it has one."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Literal, TypeVar

from agentrl_jax.controller.workers import RegistryConfig
from agentrl_jax.engines.token_files import chosen_token
from agentrl_jax.errors import ConfigError

T = TypeVar("T")

REMOTE_PREFIX = "remote:"
"""Of the names of families that remote workers serve."""

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
    token_file: Path | None = None
    """The same, from a file that only its owner may read"""
    trusted: tuple[str, ...] = ()
    """Networks (10.0.0.0/8) whose machines need no token: stock workers cannot send one over gRPC"""

    def with_token(self) -> "ListenConfig":
        """The same, with the token that stands in `token_file`. Raises ConfigError if that cannot be used."""
        return replace(self, token=chosen_token(self.token, self.token_file), token_file=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteTasks:
    """Tasks of remote workers that a run trains on (--tasks remote:NAME): it is their controller."""

    listen: ListenConfig = field(default_factory=ListenConfig)
    wait_s: float = 120.0
    """How long a run waits at its start for a worker of each task"""
    max_turns: int = 20
    """Turns of an episode at the most, where --max-turns says nothing"""
    train: str | None = None
    """Which of a task's indices are trained on: positions in its list, FIRST:END (default: all but the last fifth)"""
    eval: str | None = None
    """Which are held out (default: the last fifth)"""

    def __post_init__(self) -> None:
        if not 0 < self.wait_s < math.inf or self.max_turns < 1:
            raise ConfigError(f"wait_s and max_turns must be positive, got {self.wait_s} and {self.max_turns}")
        ranges = [_positions(text) for text in (self.train, self.eval) if text is not None]
        if len(ranges) == 1:
            raise ConfigError("--remote.train and --remote.eval go together: give both or none")
        if len(ranges) == 2 and set(ranges[0]) & set(ranges[1]):
            raise ConfigError(f"training and held-out indices overlap: {self.train} and {self.eval}")

    def split(self, task: str, indices: Sequence[T]) -> tuple[Sequence[T], Sequence[T]]:
        """The indices of a task to train on, and those to hold out. Raises ConfigError if it has not enough."""
        if self.train is None or self.eval is None:
            num_held_out = max(1, len(indices) // 5)
            parts = indices[:-num_held_out], indices[-num_held_out:]
        else:
            wanted = [_positions(self.train), _positions(self.eval)]
            last = max(positions[-1] for positions in wanted)
            if last >= len(indices):
                raise ConfigError(f"{task} has {len(indices)} indices: there is no position {last} in it")
            train, held_out = ([indices[position] for position in positions] for positions in wanted)
            parts = train, held_out
        if not all(parts):
            raise ConfigError(f"{task} has {len(indices)} indices: too few to train on some and hold others out")
        return parts


def _positions(text: str) -> range:
    first, _, end = text.partition(":")
    if not (first.isdigit() and end.isdigit() and int(first) < int(end)):
        raise ConfigError(f"expected positions such as 0:80, got {text!r}")
    return range(int(first), int(end))
