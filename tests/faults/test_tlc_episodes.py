"""TLC rows in whole episodes: what became of bad calls, in training as in evaluation, and who is to blame."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
import trio

from agentrl_jax.algo.metrics import task_metrics
from agentrl_jax.controller.call_budget import NOT_EXECUTED
from agentrl_jax.controller.episode import EpisodeConfig, EpisodeSetup, run_episode, single_engine
from agentrl_jax.controller.sessions import thread_sessions
from agentrl_jax.env import Action, Env, FamilyOptions, Message, StepResult
from agentrl_jax.playing.episode import PlaySetup, play_episode
from agentrl_jax.playing.mixtures import make_mixtures
from agentrl_jax.playing.records import EpisodeRecord
from agentrl_jax.playing.rendered import RenderedPolicy
from agentrl_jax.rendering.call_formats import format_tool_call
from agentrl_jax.rendering.transcript import TemplateRenderer
from agentrl_jax.testing.engine import FakeEngine
from agentrl_jax.types import EpisodeEnd, Group, Ids, SamplingParams, Task, Trajectory
from envs.knowledge_graph import family
from envs.knowledge_graph.calls import answer_call
from tests.rendering.chat import call, small_folder

KG = family(FamilyOptions())
TASK = KG.task("train", 0)
RENDERER = TemplateRenderer(small_folder(), tools=KG.tools)
CONFIG = EpisodeConfig(max_turns=6, max_new_tokens=200, max_context_tokens=8000, temperature=1.0)
MALFORMED = '<tool_call>\n{"a": 1\n</tool_call>'
HALLUCINATED = format_tool_call(call("hallucinated", x=1))


@dataclass
class Scripted:
    """An engine that says one text after the other, and keeps its prompts."""

    texts: tuple[str, ...]
    prompts: list[Ids] = field(default_factory=list)

    def engine(self) -> FakeEngine:
        return FakeEngine(script=self._say)

    def _say(self, prompt: Ids, sampling: SamplingParams) -> list[int]:
        self.prompts.append(prompt)
        return RENDERER.tokenizer.encode(self.texts[len(self.prompts) - 1])


def spoken() -> Scripted:
    """Two turns that are no good, and the right answer."""
    gold = next(iter(KG.problem(TASK).question.answers))
    return Scripted((MALFORMED, HALLUCINATED, format_tool_call(answer_call(gold))))


async def trained(
    policy: Scripted, make: Callable[[Task], Env] = KG.make, config: EpisodeConfig = CONFIG
) -> Trajectory:
    """An episode as in training."""
    setup = EpisodeSetup(
        sessions=thread_sessions(make, trio.CapacityLimiter(1)),
        tools=KG.tools,
        renderer=RENDERER,
        choose_engine=single_engine(policy.engine()),
        config=config,
        run_seed=0,
    )
    return await run_episode(TASK, 0, 0, setup=setup)


async def evaluated(policy: Scripted) -> EpisodeRecord:
    """The same episode as `launch.evaluate` plays it."""
    rendered = RenderedPolicy("p", policy.engine(), {TASK.env: RENDERER}, lambda ids: "")
    setup = PlaySetup(
        sessions=thread_sessions(KG.make, trio.CapacityLimiter(1)),
        tools_of=lambda task: KG.tools,
        policies={"p": rendered},
        config=CONFIG,
        seed=0,
    )
    (mixture,) = make_mixtures(["p"], ["single"])
    return await play_episode(mixture, TASK, 0, setup)


async def test_tlc_03_a_malformed_call_is_answered_and_counted_and_its_episode_goes_on() -> None:
    policy = spoken()
    trajectory = await trained(policy)
    assert (trajectory.end, trajectory.reward) == (EpisodeEnd.COMPLETED, 1.0)
    error = "tool call 1: invalid JSON: Expecting ',' delimiter (at character 9)"
    assert [turn.call_errors for turn in trajectory.turns] == [(error,), (), ()]
    assert [turn.num_calls for turn in trajectory.turns] == [0, 1, 1]
    answered = RENDERER.tokenizer.decode(trajectory.turns[1].context_ids.tolist())
    assert f"<tool_response>\n{error}\n</tool_response>" in answered
    group = Group(group_id=0, task=TASK, start_version=0, trajectories=(trajectory,))
    assert task_metrics([group])[TASK.env].as_floats()["call_error_frac"] == 1 / 3


async def test_tlc_04_training_and_evaluation_give_bad_calls_one_verdict() -> None:
    in_training, in_evaluation = spoken(), spoken()
    trajectory, record = await trained(in_training), await evaluated(in_evaluation)
    for first, second in zip(in_training.prompts, in_evaluation.prompts, strict=True):
        np.testing.assert_array_equal(first, second)
    assert (record.end, record.reward) == (trajectory.end, trajectory.reward) == (EpisodeEnd.COMPLETED, 1.0)
    counted = [(turn.num_calls, turn.num_call_errors) for turn in record.turns]
    assert counted == [(turn.num_calls, len(turn.call_errors)) for turn in trajectory.turns]
    answers = [message.content for message in record.messages if message.role == "tool"]
    assert answers[1] == "error: unknown tool, use query or answer"


@pytest.mark.parametrize(("limits", "executed"), [({}, 3), ({"max_calls_per_turn": 1}, 1), ({"max_calls": 2}, 2)])
async def test_tlc_11_no_limit_of_calls_is_none_and_a_limit_is_kept(limits: dict[str, int], executed: int) -> None:
    """A limit of 0 is refused (test_tlc_budget.py): it would be a task without tools."""
    queries = "\n".join(format_tool_call(call("query", entity="Nobody", relation="boss")) for _ in range(3))
    policy = Scripted((queries, "Hm.", "Hm.", "Hm.", "Hm.", "Hm."))
    trajectory = await trained(policy, config=replace(CONFIG, **limits))  # type: ignore[arg-type]
    assert trajectory.turns[0].num_calls == 3
    if executed == limits.get("max_calls"):
        assert (trajectory.end, len(trajectory.turns)) == (EpisodeEnd.MAX_TURNS, 1)
        return
    answered = RENDERER.tokenizer.decode(trajectory.turns[1].context_ids.tolist())
    assert answered.count("<tool_response>") == 3
    assert answered.count(NOT_EXECUTED) == 3 - executed


class Dividing:
    """A tool of the environment's own that fails."""

    def reset(self) -> tuple[Message, ...]:
        return (Message(role="user", content="Divide."),)

    def step(self, action: Action) -> StepResult:
        return StepResult(messages=(Message(role="tool", content=str(1 / 0)),), reward=1.0)

    def close(self) -> None:
        pass


async def test_tlc_12_a_tool_that_raises_is_the_environments_error_and_no_answer() -> None:
    trajectory = await trained(spoken(), lambda task: Dividing())
    assert (trajectory.end, trajectory.reward, trajectory.is_valid) == (EpisodeEnd.ENV_ERROR, None, False)
    assert trajectory.error == f"{TASK.key}: step raised ZeroDivisionError: division by zero"
    assert len(trajectory.turns) == 1
