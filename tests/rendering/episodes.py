"""Episodes with a toy renderer: an env and an engine that follow a script, and the setup around them."""

from dataclasses import dataclass, field

import trio

from agentrl_jax.controller.episode import EpisodeConfig, EpisodeSetup, single_engine
from agentrl_jax.controller.sessions import WithoutQueue
from agentrl_jax.env import Action, Message, StepResult, Tool
from agentrl_jax.rendering.transcript import TemplateRenderer
from agentrl_jax.testing.engine import FakeEngine
from agentrl_jax.types import EpisodeEnd, Ids, SamplingParams, Task
from tests.rendering.chat import TOOLS, assistant, call, tool, user
from tests.rendering.families import THOUGHT

TASK = Task(env="scripted", split="train", index=0, seed=0)
CONFIG = EpisodeConfig(max_turns=3, max_new_tokens=400, max_context_tokens=4096)
SAID = (
    assistant(f"{THOUGHT}Looking.", call("look", room="hall")),
    assistant(f"{THOUGHT}Again.", call("look", room="kitchen")),
    assistant(f"{THOUGHT}There."),
)


@dataclass
class Script(WithoutQueue):
    """Answers a tool message, then one and a user's, then the end."""

    opening: str = "Where?"
    answers: list[tuple[Message, ...]] = field(default_factory=lambda: [(tool("empty"),), (tool("Bob"), user("And?"))])

    async def start(self) -> tuple[Message, ...]:
        await trio.lowlevel.checkpoint()
        return (user(self.opening),)

    async def interact(self, action: Action) -> StepResult:
        await trio.lowlevel.checkpoint()
        return self.answer()

    def answer(self) -> StepResult:
        """What comes next."""
        if not self.answers:
            return StepResult(messages=(), reward=1.0, end=EpisodeEnd.COMPLETED)
        return StepResult(messages=self.answers.pop(0))

    async def close(self) -> None:
        await trio.lowlevel.checkpoint()


class RecordingEngine(FakeEngine):
    """Says `said`, turn by turn and then over again, and keeps its prompts."""

    def __init__(self, renderer: TemplateRenderer, said: tuple[Message, ...] = SAID) -> None:
        self.prompts: list[Ids] = []
        self._renderer, self._said = renderer, said
        super().__init__(script=self._say)

    def _say(self, prompt: Ids, sampling: SamplingParams) -> list[int]:
        self.prompts.append(prompt)
        turn = self._said[(len(self.prompts) - 1) % len(self._said)]
        return self._renderer.encode_turn(turn)[:-1].tolist()


def setup_for(renderer: TemplateRenderer, session: Script, tools: tuple[Tool, ...] = TOOLS) -> EpisodeSetup:
    return EpisodeSetup(
        sessions=lambda task: session,
        tools=tools,
        renderer=renderer,
        choose_engine=single_engine(RecordingEngine(renderer)),
        config=CONFIG,
        run_seed=1,
    )
