"""What an episode may use up: tokens, tool calls, turns, time; and what becomes of its rewards."""

import math
from dataclasses import dataclass, replace

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock

from agentrl_jax.controller.call_budget import NOT_EXECUTED, answering_all, within_budget
from agentrl_jax.controller.episode import EpisodeConfig, EpisodeSetup, run_episode, single_engine
from agentrl_jax.controller.sessions import WithoutQueue
from agentrl_jax.env import Action, Message, StepResult, ToolCall
from agentrl_jax.errors import ConfigError, RecordError
from agentrl_jax.testing.engine import FakeEngine
from agentrl_jax.testing.renderer import FakeRenderer
from agentrl_jax.testing.virtual import run_virtual
from agentrl_jax.types import EpisodeEnd, Task, Trajectory

TASK = Task(env="scripted", split="train", index=3, seed=5)
CONFIG = EpisodeConfig(max_turns=4, max_new_tokens=64, max_context_tokens=4096)
RENDERER = FakeRenderer()


@dataclass
class Recorder(WithoutQueue):
    """A session that keeps what it was asked: one tool message per call and per error, then a user message."""

    rewards: tuple[float, ...] = (0.0,) * 9
    end: EpisodeEnd | None = None

    def __post_init__(self) -> None:
        self.actions: list[Action] = []

    async def start(self) -> tuple[Message, ...]:
        await trio.lowlevel.checkpoint()
        return (Message(role="user", content="go"),)

    async def interact(self, action: Action) -> StepResult:
        await trio.lowlevel.checkpoint()
        self.actions.append(action)
        texts = [*(call.name for call in action.calls), *action.errors]
        is_last = len(self.actions) == len(self.rewards)
        return StepResult(
            messages=(*(Message(role="tool", content=text) for text in texts), Message(role="user", content="next")),
            reward=self.rewards[len(self.actions) - 1],
            end=self.end if is_last else None,
        )

    async def close(self) -> None:
        await trio.lowlevel.checkpoint()


def saying(*names: str, broken: bool = False) -> Message:
    """An assistant turn that calls `names`."""
    return Message(
        role="assistant",
        content='!broken {"' if broken else "",
        tool_calls=tuple(ToolCall(name=name, arguments={}) for name in names),
    )


async def play(session: Recorder, says: Message, config: EpisodeConfig = CONFIG) -> Trajectory:
    setup = EpisodeSetup(
        sessions=lambda task: session,
        tools=(),
        renderer=RENDERER,
        choose_engine=single_engine(FakeEngine(script=lambda prompt, sampling: RENDERER.spell(says).tolist())),
        config=config,
        run_seed=1,
    )
    return await run_episode(TASK, 0, 0, setup=setup)


async def test_calls_beyond_the_turns_budget_get_a_notice_in_call_order(autojump_clock: MockClock) -> None:
    session = Recorder()
    says = saying("a", "b", "c", broken=True)
    trajectory = await play(session, says, replace(CONFIG, max_calls_per_turn=1, max_turns=2))
    assert [[call.name for call in action.calls] for action in session.actions] == [["a"], ["a"]]
    assert all(len(action.errors) == 1 for action in session.actions)
    error = session.actions[0].errors[0]
    answers = [Message(role="tool", content=text) for text in ("a", NOT_EXECUTED, NOT_EXECUTED, error)]
    shown = RENDERER.reply([*answers, Message(role="user", content="next")])
    assert trajectory.turns[1].context_ids.tolist() == shown.tolist()
    assert [(turn.num_calls, len(turn.call_errors)) for turn in trajectory.turns] == [(3, 1)] * 2
    assert (trajectory.end, trajectory.error) == (EpisodeEnd.MAX_TURNS, "")


async def test_an_episode_that_used_up_its_calls_ends_unless_the_env_ended_it(autojump_clock: MockClock) -> None:
    session = Recorder()
    trajectory = await play(session, saying("a", "b"), replace(CONFIG, max_calls=3))
    assert [[call.name for call in action.calls] for action in session.actions] == [["a", "b"], ["a"]]
    assert (trajectory.end, trajectory.reward) == (EpisodeEnd.MAX_TURNS, -0.2)
    assert trajectory.error == "used up its 3 tool calls"
    done = Recorder(rewards=(0.0, 1.0), end=EpisodeEnd.COMPLETED)
    trajectory = await play(done, saying("a", "b"), replace(CONFIG, max_calls=3))
    assert (trajectory.end, trajectory.reward, trajectory.error) == (EpisodeEnd.COMPLETED, 1.0, "")


async def test_turns_without_calls_use_up_none(autojump_clock: MockClock) -> None:
    trajectory = await play(Recorder(), saying(), replace(CONFIG, max_calls=1))
    assert (trajectory.end, len(trajectory.turns), trajectory.error) == (EpisodeEnd.MAX_TURNS, 4, "")


async def test_bare_calls_are_counted_apart(autojump_clock: MockClock) -> None:
    class Lenient(FakeRenderer):
        def parse(self, ids: object) -> Action:
            return Action(calls=(ToolCall(name="a", arguments={}),) * 2, num_bare_calls=2)

    session = Recorder()
    setup = EpisodeSetup(
        sessions=lambda task: session,
        tools=(),
        renderer=Lenient(),
        choose_engine=single_engine(FakeEngine(script=lambda prompt, sampling: [])),
        config=replace(CONFIG, max_calls_per_turn=1, max_turns=1),
        run_seed=1,
    )
    (turn,) = (await run_episode(TASK, 0, 0, setup=setup)).turns
    assert (turn.num_calls, turn.num_bare_calls) == (2, 2)
    assert (len(session.actions[0].calls), session.actions[0].num_bare_calls) == (1, 1)
    with pytest.raises(RecordError, match=r"num_bare_calls must be in \[0, 2\], got 3"):
        replace(turn, num_bare_calls=3)


@pytest.mark.parametrize(
    ("bound", "end", "turns", "error"),
    [
        (11, EpisodeEnd.CONTEXT_LIMIT, 2, ""),  # the second turn was clipped to five ids
        (12, EpisodeEnd.CONTEXT_LIMIT, 2, "sampled all its 12 tokens"),
        (24, EpisodeEnd.MAX_TURNS, 4, ""),
    ],
)
async def test_the_samples_of_an_episode_are_bounded(
    bound: int, end: EpisodeEnd, turns: int, error: str, autojump_clock: MockClock
) -> None:
    says = Message(role="assistant", content="hello")  # six ids
    trajectory = await play(Recorder(), says, replace(CONFIG, max_sampled_tokens=bound))
    assert (trajectory.end, len(trajectory.turns), trajectory.error) == (end, turns, error)
    assert sum(len(turn.completion.ids) for turn in trajectory.turns) == min(bound, 24)
    assert trajectory.reward == -0.2


async def test_a_turn_that_fills_its_own_budget_is_truncated_whatever_else_is_left(autojump_clock: MockClock) -> None:
    says = Message(role="assistant", content="hello")
    config = replace(CONFIG, max_new_tokens=5, max_sampled_tokens=5)
    assert (await play(Recorder(), says, config)).end is EpisodeEnd.TURN_TRUNCATED


@pytest.mark.parametrize("rewards", [(0.5, -0.25, 1.0), (0.0, 0.0), (1.0,)])
async def test_env_reward_is_the_sum_of_the_turns(rewards: tuple[float, ...], autojump_clock: MockClock) -> None:
    trajectory = await play(Recorder(rewards=rewards, end=EpisodeEnd.COMPLETED), saying("a"))
    assert [turn.reward for turn in trajectory.turns] == list(rewards)
    assert trajectory.reward == trajectory.env_reward == sum(rewards)


async def test_rewards_whose_sum_is_not_finite_are_an_env_error(autojump_clock: MockClock) -> None:
    trajectory = await play(Recorder(rewards=(1e308, 1e308)), saying("a"))
    assert (trajectory.end, trajectory.env_reward) == (EpisodeEnd.ENV_ERROR, 1e308)
    assert "rewards and their sum must be finite, got 1e+308 and inf" in trajectory.error


def test_a_budget_that_suffices_changes_nothing() -> None:
    action = Action(content="x", calls=(ToolCall(name="a", arguments={}),) * 3, errors=("e",), num_bare_calls=2)
    result = StepResult(messages=(Message(role="user"),), end=EpisodeEnd.COMPLETED)
    for bound in (3, 4, math.inf):
        assert within_budget(action, bound) == action
    assert answering_all(result, num_executed=3, num_calls=3) is result
    assert within_budget(action, 0) == replace(action, calls=(), num_bare_calls=0)


@given(
    calls=st.integers(0, 4),
    per_turn=st.none() | st.integers(1, 3),
    per_episode=st.none() | st.integers(1, 6),
    sampled=st.none() | st.integers(1, 120),
    max_turns=st.integers(1, 5),
    is_broken=st.booleans(),
)
def test_no_budget_is_ever_exceeded_and_every_call_is_answered(
    calls: int, per_turn: int | None, per_episode: int | None, sampled: int | None, max_turns: int, is_broken: bool
) -> None:
    session, says = Recorder(), saying(*"abcd"[:calls], broken=is_broken)
    config = replace(
        CONFIG, max_turns=max_turns, max_calls_per_turn=per_turn, max_calls=per_episode, max_sampled_tokens=sampled
    )

    async def main() -> Trajectory:
        return await play(session, says, config)

    trajectory = run_virtual(main)
    executed = [len(action.calls) for action in session.actions]
    assert max(executed, default=0) <= (per_turn or math.inf)
    assert sum(executed) <= (per_episode or math.inf)
    assert sum(len(turn.completion.ids) for turn in trajectory.turns) <= (sampled or math.inf)
    assert len(trajectory.turns) <= max_turns
    num_answers = calls + is_broken
    for turn in trajectory.turns[1:]:
        assert turn.context_ids.tolist().count(RENDERER.reply([Message(role="tool")])[1]) == num_answers
    if trajectory.end is EpisodeEnd.MAX_TURNS and len(trajectory.turns) < max_turns:
        assert sum(executed) == per_episode


@pytest.mark.parametrize("name", ["max_sampled_tokens", "max_calls_per_turn", "max_calls"])
def test_impossible_budgets_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} must be at least 1, got 0"):
        replace(CONFIG, **{name: 0})
