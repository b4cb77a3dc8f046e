"""Which tools an episode is rendered with."""

from dataclasses import dataclass, field

import trio

from agentrl_jax.controller.episode import EpisodeConfig, EpisodeSetup, run_episode, single_engine
from agentrl_jax.env import FamilyOptions, Tool, tools_for
from agentrl_jax.testing.engine import FakeEngine
from agentrl_jax.testing.envs import EnvScript, SessionLog, scripted_sessions
from agentrl_jax.testing.renderer import FakeRenderer
from agentrl_jax.types import Task
from envs.knowledge_graph import family

TASKS = [Task(env="scripted", split="train", index=index, seed=0) for index in (0, 1)]
A, B = (Tool(name=name, description="", parameters={"type": "object", "properties": {}}) for name in "ab")


@dataclass(frozen=True)
class Recorder(FakeRenderer):
    seen: list = field(default_factory=list)

    def stream(self, tools):
        self.seen.append(tools)
        return super().stream(tools)


async def tools_seen(tools_of):
    renderer = Recorder()
    for task in TASKS:
        setup = EpisodeSetup(
            sessions=scripted_sessions(EnvScript(rewards=(1.0,)), SessionLog()),
            tools=(A, B),
            tools_of=tools_of,
            renderer=renderer,
            choose_engine=single_engine(FakeEngine()),
            config=EpisodeConfig(max_turns=1, max_new_tokens=8, max_context_tokens=4096),
            run_seed=1,
        )
        await run_episode(task, 0, 0, setup=setup)
    return renderer.seen


async def test_all_tasks_have_the_tools_of_their_family(autojump_clock: trio.testing.MockClock) -> None:
    assert await tools_seen(None) == [(A, B), (A, B)]


async def test_a_task_may_have_tools_of_its_own(autojump_clock: trio.testing.MockClock) -> None:
    assert await tools_seen(lambda task: (A,) if task.index else (B,)) == [(B,), (A,)]


def test_a_family_that_says_nothing_has_one_set_of_tools():
    kg = family(FamilyOptions())
    assert tools_for(kg, kg.task("train", 0)) is kg.tools
