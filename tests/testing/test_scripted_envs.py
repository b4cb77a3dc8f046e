"""The scripted environments do what their script says, in both forms."""

from random import Random

import pytest
import trio
from trio.testing import MockClock

from agentrl_jax.controller.ports import LearnerPort
from agentrl_jax.controller.sessions import Session
from agentrl_jax.env import Action, Env, EnvFamily, ToolCall
from agentrl_jax.errors import EnvError
from agentrl_jax.testing.envs import EnvScript, ScriptedEnv, ScriptedFamily, ScriptedSession, SessionLog
from agentrl_jax.testing.learner import FakeLearner
from agentrl_jax.types import EpisodeEnd, Task

TASK = Task(env="scripted", split="train", index=0, seed=0)
ACTION = Action(calls=(ToolCall(name="act", arguments={}),))


async def test_both_forms_tell_the_same_story(autojump_clock: MockClock) -> None:
    script = EnvScript(rewards=(0.0, 1.0), end=EpisodeEnd.COMPLETED, reset_s=1.0, step_s=2.0, close_s=3.0)
    log = SessionLog()
    session: Session = ScriptedSession(TASK, script, log)
    env: Env = ScriptedEnv(task=TASK, script=script, log=log)
    assert await session.start() == env.reset()
    for end in (None, EpisodeEnd.COMPLETED):
        result = await session.interact(ACTION)
        assert result == env.step(ACTION)
        assert result.end is end
        assert [message.content for message in result.messages] == ["act done"]
    assert (log.num_open, log.peak_open) == (2, 2)
    await session.close()
    env.close()
    assert trio.current_time() == 1.0 + 2 * 2.0 + 3.0
    assert (log.num_open, log.num_closed_again) == (0, 0)
    env.close()
    await session.close()
    assert (log.num_closed, log.num_closed_again) == (2, 2)


@pytest.mark.parametrize("at", [0, 1, 2])
async def test_faults_come_where_they_are_due(at: int, autojump_clock: MockClock) -> None:
    for fault in ("error", "hang"):
        script = EnvScript(rewards=(0.0, 1.0), fault=fault, fault_at=at)
        session = ScriptedSession(TASK, script, SessionLog())
        reached = 0
        try:
            with trio.move_on_after(9.0) as scope:
                await session.start()
                for _ in range(2):
                    reached += 1
                    await session.interact(ACTION)
        except EnvError:
            assert fault == "error"
        assert reached == at
        assert scope.cancelled_caught == (fault == "hang")


def test_a_family_is_a_family() -> None:
    family: EnvFamily = ScriptedFamily(size=3, script=EnvScript(rewards=(0.0, 1.0)))
    assert isinstance(family, EnvFamily)
    tasks = {family.task(split, index) for split in ("train", "eval") for index in range(family.num_tasks(split))}
    assert len({task.seed for task in tasks}) == 6
    demonstration = family.demonstrate(TASK, Random(0), noise=0.0)
    assert [message.role for message in demonstration] == ["user", "assistant", "user", "assistant", "user"]
    assert family.vocabulary() == ()


async def test_a_learner_takes_its_time_and_says_what_it_is_told(autojump_clock: MockClock) -> None:
    fake = FakeLearner(latency_s=lambda step: 2.0 + step, non_finite={1}, error=ZeroDivisionError(), error_at=2)
    learner: LearnerPort = fake
    assert [(await learner.step((), version)).is_finite for version in (4, 5)] == [True, False]
    with pytest.raises(ZeroDivisionError):
        await learner.step((), 6)
    assert [(call.version, call.begun_s, call.ended_s) for call in fake.calls] == [
        (4, 0.0, 2.0),
        (5, 2.0, 5.0),
        (6, 5.0, 9.0),
    ]
