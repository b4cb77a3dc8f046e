"""What an episode sends to engines and what it records of them."""

from dataclasses import replace

import numpy as np
import trio

from agentrl_jax.controller.episode import EpisodeConfig, EpisodeSetup, run_episode, single_engine
from agentrl_jax.env import Message, Tool, ToolCall
from agentrl_jax.seeding import derive_seed
from agentrl_jax.testing.engine import FakeEngine, constant_latency
from agentrl_jax.testing.envs import EnvScript, SessionLog, scripted_sessions
from agentrl_jax.testing.renderer import FakeRenderer
from agentrl_jax.types import Completion, Ids, SamplingParams, Task

TASK = Task(env="scripted", split="train", index=0, seed=0)
CONFIG = EpisodeConfig(max_turns=4, max_new_tokens=64, max_context_tokens=4096, temperature=0.7)
TOOLS = (Tool(name="look", description="Looks.", parameters={"type": "object"}),)


class RecordingEngine(FakeEngine):
    """Keeps every request."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.requests: list[tuple[Ids, SamplingParams, str]] = []

    async def generate(self, prompt_ids: Ids, sampling: SamplingParams, *, session: str) -> Completion:
        self.requests.append((prompt_ids, sampling, session))
        return await super().generate(prompt_ids, sampling, session=session)


def setup_for(engine: FakeEngine, rewards: tuple[float, ...]) -> EpisodeSetup:
    return EpisodeSetup(
        sessions=scripted_sessions(EnvScript(rewards=rewards), SessionLog()),
        tools=TOOLS,
        renderer=FakeRenderer(),
        choose_engine=single_engine(engine),
        config=CONFIG,
        run_seed=42,
    )


async def test_the_ids_are_those_of_the_whole_conversation(autojump_clock: trio.testing.MockClock) -> None:
    renderer = FakeRenderer()
    says = Message(role="assistant", content="hm", tool_calls=(ToolCall(name="look", arguments={"at": 1}),))
    engine = RecordingEngine(script=lambda prompt, sampling: renderer.spell(says).tolist())
    trajectory = await run_episode(TASK, 3, 1, setup=setup_for(engine, (0.0, 0.0, 1.0)))

    answer = Message(role="tool", content="look done")
    start = Message(role="user", content=f"Do {TASK.key}.")
    rendered = renderer.prompt([start, says, answer, says, answer], TOOLS)
    assert [np.concatenate([r[0], renderer.spell(says)]).tolist() for r in engine.requests][-1] == (
        trajectory.segments[0].ids.tolist()
    )
    assert engine.requests[2][0].tolist() == rendered.tolist()
    # Every prompt begins with all earlier prompts and samples.
    for (earlier, *_), (later, *_) in zip(engine.requests, engine.requests[1:], strict=False):
        assert later[: len(earlier) + len(renderer.spell(says))].tolist() == [*earlier, *renderer.spell(says)]
    assert [(turn.num_calls, turn.call_errors) for turn in trajectory.turns] == [(1, ())] * 3
    assert trajectory.num_loss_tokens == 3 * len(renderer.spell(says))


async def test_seeds_sessions_and_sampling_are_those_of_the_turn(autojump_clock: trio.testing.MockClock) -> None:
    engine = RecordingEngine(script=lambda prompt, sampling: [])
    await run_episode(TASK, 3, 1, setup=setup_for(engine, (0.0, 1.0)))
    assert [sampling for _, sampling, _ in engine.requests] == [
        SamplingParams(temperature=0.7, max_new_tokens=64, seed=derive_seed(42, "turn", 3, 1, turn), stop_ids=(0,))
        for turn in (0, 1)
    ]
    assert {session for *_, session in engine.requests} == {"g3-m1"}


async def test_malformed_calls_are_counted_and_reach_the_record(autojump_clock: trio.testing.MockClock) -> None:
    bad = FakeRenderer().spell(Message(role="assistant", content='!look {"at": '))
    engine = FakeEngine(script=lambda prompt, sampling: bad.tolist())
    (turn,) = (await run_episode(TASK, 0, 0, setup=setup_for(engine, (1.0,)))).turns
    assert turn.num_calls == 0
    assert len(turn.call_errors) == 1


async def test_each_turn_records_the_engine_that_sampled_it(autojump_clock: trio.testing.MockClock) -> None:
    current = FakeEngine(name="now", version=5, script=lambda prompt, sampling: [4])
    lagging = FakeEngine(name="then", pool="lagging", version=3, script=lambda prompt, sampling: [4])
    setup = replace(
        setup_for(current, (0.0, 0.0, 1.0)),
        choose_engine=lambda group_id, member, turn: lagging if turn == 1 else current,
    )
    trajectory = await run_episode(TASK, 0, 0, setup=setup)
    assert [(t.completion.pool, t.completion.engine, t.completion.versions[0]) for t in trajectory.turns] == [
        ("current", "now", 5),
        ("lagging", "then", 3),
        ("current", "now", 5),
    ]
    assert current.sessions == lagging.sessions == frozenset()


async def test_a_publish_during_a_turn_leaves_two_version_spans(autojump_clock: trio.testing.MockClock) -> None:
    engine = FakeEngine(script=lambda prompt, sampling: [4, 5, 6], token_latency=constant_latency(1.0))

    async def publish() -> None:
        await trio.sleep(2.5)
        await engine.publish(None, 1)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(publish)
        trajectory = await run_episode(TASK, 0, 0, setup=setup_for(engine, (1.0,)))
    assert trajectory.turns[0].completion.versions.tolist() == [0, 0, 1, 1]
    assert trajectory.engine_s == trajectory.wall_s == 4.0
    assert trajectory.env_s == 0.0
