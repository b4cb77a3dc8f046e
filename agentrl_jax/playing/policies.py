"""What plays turns at message level: any model behind any tokenizer or interface, or a script. No jax.

A conversation is messages. Each policy sees it as its own template or interface shows it, whoever spoke before.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from agentrl_jax.env import Action, Message, Tool
from agentrl_jax.types import EpisodeEnd, Task


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnSettings:
    """How one turn is sampled. temperature: 0 is greedy. max_new_tokens, max_context_tokens: see `EpisodeConfig`; in
    the policy's own tokens. seed: fixes the draw, where the policy can be told one."""

    temperature: float
    max_new_tokens: int
    max_context_tokens: int
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayedTurn:
    """What a policy says.

    action: as the env sees it. message: as later prompts show it to every policy.
    end: why the episode ends with it instead of going on to the env: it was cut short, or there was no room for it.
    num_prompt_tokens, num_sampled_tokens: in the policy's own tokens; 0 where nobody counts.
    versions: the lowest and highest policy version that sampled it; (-1, -1) where there are none.
    """

    action: Action
    message: Message
    end: EpisodeEnd | None = None
    num_prompt_tokens: int = 0
    num_sampled_tokens: int = 0
    versions: tuple[int, int] = (-1, -1)


class Seat(Protocol):
    """A policy at one episode. One caller at a time."""

    async def play(self, messages: Sequence[Message], settings: TurnSettings) -> PlayedTurn:
        """The next turn of the conversation `messages`, which begins with the env's and ends with an answer of it.

        It may hold turns of others. Raises EngineError if the policy could not be asked, or did not answer;
        ConfigError if it never will.
        """
        ...

    async def leave(self) -> None:
        """Forget the episode. Raises EngineError."""
        ...


class PlayingPolicy(Protocol):
    """Something that can be evaluated."""

    @property
    def name(self) -> str: ...

    def join(self, task: Task, tools: Sequence[Tool], episode: str) -> Seat:
        """Take part in the episode of this id, which is unique among all that are being played. Does no I/O."""
        ...
