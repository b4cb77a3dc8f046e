"""What an evaluated episode leaves behind: an immutable value, and one line of JSON. No jax, no trio."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agentrl_jax.algo.metrics import SUCCESS_REWARD
from agentrl_jax.env import Message, ToolCall
from agentrl_jax.types import REWARD_DECIMALS, EpisodeEnd, Task

EpisodeKey = tuple[str, str, int, int, int]
"""Mixture, env, index and seed of the task, sample."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnRecord:
    """One turn: which policy played it and what it came to. seconds: of the policy alone.

    num_prompt_tokens, num_sampled_tokens: in that policy's own tokens; 0 where nobody counts.
    """

    policy: str
    num_calls: int
    num_call_errors: int
    num_prompt_tokens: int
    num_sampled_tokens: int
    versions: tuple[int, int]
    reward: float
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeRecord:
    """One episode of an evaluation. end, reward, env_reward, error: see `types.Trajectory`.

    metrics: what the env reported, the last value of each. messages: the conversation. begun: Unix time, seconds.
    """

    mixture: str
    task: Task
    sample: int
    end: EpisodeEnd
    reward: float | None
    env_reward: float | None
    turns: tuple[TurnRecord, ...]
    messages: tuple[Message, ...]
    metrics: Mapping[str, float] = field(default_factory=dict)
    begun: float = 0.0
    wall_s: float = 0.0
    env_s: float = 0.0
    error: str = ""

    @property
    def key(self) -> EpisodeKey:
        """What tells it from every other episode of an evaluation."""
        return self.mixture, self.task.env, self.task.index, self.task.seed, self.sample

    @property
    def is_success(self) -> bool:
        """As `algo.metrics.is_success` judges a trajectory."""
        given = self.env_reward
        return self.end.is_valid and given is not None and round(given, REWARD_DECIMALS) >= SUCCESS_REWARD

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "mixture": self.mixture,
            "env": self.task.env,
            "split": self.task.split,
            "index": self.task.index,
            "seed": self.task.seed,
            "sample": self.sample,
            "end": self.end.value,
            "is_success": self.is_success,
            "reward": self.reward,
            "env_reward": self.env_reward,
            "metrics": dict(self.metrics),
            "begun": round(self.begun, 3),
            "wall_s": round(self.wall_s, 4),
            "env_s": round(self.env_s, 4),
            "error": self.error,
            "turns": [
                {
                    "policy": turn.policy,
                    "calls": turn.num_calls,
                    "call_errors": turn.num_call_errors,
                    "prompt_tokens": turn.num_prompt_tokens,
                    "sampled_tokens": turn.num_sampled_tokens,
                    "versions": list(turn.versions),
                    "reward": turn.reward,
                    "seconds": round(turn.seconds, 4),
                }
                for turn in self.turns
            ],
            "messages": [message_to_json(message) for message in self.messages],
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "EpisodeRecord":
        """The inverse of `to_json`. Raises KeyError, TypeError or ValueError for anything else."""
        return cls(
            mixture=values["mixture"],
            task=Task(env=values["env"], split=values["split"], index=values["index"], seed=values["seed"]),
            sample=values["sample"],
            end=EpisodeEnd(values["end"]),
            reward=values["reward"],
            env_reward=values["env_reward"],
            metrics=values["metrics"],
            begun=values["begun"],
            wall_s=values["wall_s"],
            env_s=values["env_s"],
            error=values["error"],
            turns=tuple(_turn(turn) for turn in values["turns"]),
            messages=tuple(_message(message) for message in values["messages"]),
        )


def message_to_json(message: Message) -> dict[str, Any]:
    """A message as OpenAI's chat interface writes it, without ids: calls and their answers stand in one order."""
    calls = [{"name": call.name, "arguments": dict(call.arguments)} for call in message.tool_calls]
    return {"role": message.role, "content": message.content, **({"tool_calls": calls} if calls else {})}


def _message(values: Mapping[str, Any]) -> Message:
    calls: Sequence[Mapping[str, Any]] = values.get("tool_calls", ())
    return Message(
        role=values["role"],
        content=values["content"],
        tool_calls=tuple(ToolCall(name=call["name"], arguments=call["arguments"]) for call in calls),
    )


def _turn(values: Mapping[str, Any]) -> TurnRecord:
    low, high = values["versions"]
    return TurnRecord(
        policy=values["policy"],
        num_calls=values["calls"],
        num_call_errors=values["call_errors"],
        num_prompt_tokens=values["prompt_tokens"],
        num_sampled_tokens=values["sampled_tokens"],
        versions=(low, high),
        reward=values["reward"],
        seconds=values["seconds"],
    )
