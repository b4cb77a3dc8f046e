"""What the tests of evaluations share: policies that say what a function says, a small setup, records."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import trio

from agentrl_jax.controller.episode import EpisodeConfig
from agentrl_jax.engines.protocol import Engine
from agentrl_jax.env import Action, Message, Tool, ToolCall
from agentrl_jax.errors import EngineError
from agentrl_jax.playing.episode import PlaySetup
from agentrl_jax.playing.mixtures import Mixture
from agentrl_jax.playing.policies import PlayedTurn, TurnSettings
from agentrl_jax.playing.records import EpisodeRecord
from agentrl_jax.playing.rendered import RenderedPolicy
from agentrl_jax.rendering.transcript import TemplateRenderer
from agentrl_jax.testing.engine import FakeEngine
from agentrl_jax.testing.envs import EnvScript, ScriptFor, SessionLog, scripted_sessions
from agentrl_jax.testing.tokenizers import TemplateKind, toy_tokenizer
from agentrl_jax.types import EpisodeEnd, Ids, SamplingParams, Task

ACT = Tool(name="act", description="Does it.", parameters={"type": "object"})
TASK = Task(env="a", split="eval", index=3, seed=9)
CONFIG = EpisodeConfig(max_turns=4, max_new_tokens=256, max_context_tokens=4096)
Say = Callable[[Sequence[Message]], str | Message]


@dataclass
class SayingPolicy:
    """Says what `say` says, after `seconds`; an EngineError where that is ""."""

    name: str
    say: Say
    seconds: float = 0.0
    seen: list[tuple[tuple[Message, ...], TurnSettings]] = field(default_factory=list)
    num_left: int = 0

    def join(self, task: Task, tools: Sequence[Tool], episode: str) -> "SayingPolicy":
        return self

    async def play(self, messages: Sequence[Message], settings: TurnSettings) -> PlayedTurn:
        self.seen.append((tuple(messages), settings))
        await trio.sleep(self.seconds)
        said = self.say(messages)
        if said == "":
            raise EngineError(f"{self.name} is out")
        message = Message(role="assistant", content=said) if isinstance(said, str) else said
        return PlayedTurn(
            action=Action(content=message.content, calls=message.tool_calls), message=message, num_sampled_tokens=3
        )

    async def leave(self) -> None:
        self.num_left += 1
        await trio.lowlevel.checkpoint()


def alone(name: str) -> Mixture:
    return Mixture(name=name, granularity="single", policies=(name,), shares=(1.0,))


def setup_of(
    policies: Sequence[Any],
    script: EnvScript | ScriptFor,
    config: EpisodeConfig = CONFIG,
    log: SessionLog | None = None,
) -> PlaySetup:
    return PlaySetup(
        sessions=scripted_sessions(script, log or SessionLog()),
        tools_of=lambda task: (ACT,),
        policies={policy.name: policy for policy in policies},
        config=config,
        seed=5,
    )


@dataclass
class ToyModel:
    """A fake engine behind a toy tokenizer; says what `say` says of the prompt's text. prompts: what it was given."""

    kind: TemplateKind
    say: Callable[[str], str]
    prompts: list[Ids] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.tokenizer = toy_tokenizer(self.kind)
        self.renderer = TemplateRenderer(self.tokenizer, tools=[ACT])
        self.engine: Engine = FakeEngine(name=self.kind, script=self._script)
        decode = lambda ids: self.tokenizer.decode(ids.tolist())  # noqa: E731
        self.policy = RenderedPolicy(self.kind, self.engine, {"a": self.renderer}, decode)

    @property
    def texts(self) -> list[str]:
        return [self.tokenizer.decode(ids.tolist()) for ids in self.prompts]

    def _script(self, prompt: Ids, sampling: SamplingParams) -> list[int]:
        self.prompts.append(prompt)
        return self.tokenizer.encode(self.say(self.tokenizer.decode(prompt.tolist())))


def record(
    solved: bool | None,
    *,
    mixture: str = "m",
    index: int = 0,
    sample: int = 0,
    env: str = "a",
    metrics: Mapping[str, float] | None = None,
) -> EpisodeRecord:
    """An episode without turns; None: an engine_error."""
    reward = None if solved is None else float(solved)
    return EpisodeRecord(
        mixture=mixture,
        task=Task(env=env, split="eval", index=index, seed=index),
        sample=sample,
        end=EpisodeEnd.ENGINE_ERROR if solved is None else EpisodeEnd.COMPLETED,
        reward=reward,
        env_reward=reward,
        turns=(),
        messages=(),
        metrics=metrics or {},
    )


def act(**arguments: Any) -> Message:
    return Message(role="assistant", tool_calls=(ToolCall(name="act", arguments=arguments),))


def hermes(name: str, **arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"
