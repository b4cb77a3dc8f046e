"""Slow environments: latencies that are deterministic, long-tailed and those of the wrapped step, in both forms."""

from collections import defaultdict
from random import Random

import numpy as np
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock

from agentrl_jax.controller.sessions import Session
from agentrl_jax.env import Action, EnvFamily
from agentrl_jax.errors import ConfigError
from agentrl_jax.testing.envs import EnvScript, ScriptedFamily, SessionLog, scripted_sessions
from agentrl_jax.testing.latency import DelayedFamily, StepLatency, delayed_sessions
from agentrl_jax.types import Task

TASK = Task(env="scripted", split="train", index=0, seed=0)
OTHER = Task(env="scripted", split="train", index=1, seed=1)
THREE_TURNS = EnvScript(rewards=(0.0, 0.0, 1.0))


def test_latencies_are_long_tailed() -> None:
    latency = StepLatency()
    drawn = np.array([latency.seconds(TASK, instance, turn) for instance in range(400) for turn in range(5)])
    assert drawn.min() == 0.05
    assert drawn.max() == 0.5
    assert np.median(drawn) == pytest.approx(0.15, rel=0.06)
    assert drawn.mean() == pytest.approx(0.191, rel=0.04)
    assert (drawn > 2 * np.median(drawn)).mean() == pytest.approx(0.193, abs=0.03)  # 1 - Φ(ln 2 / 0.8)
    assert (drawn == 0.5).mean() == pytest.approx(0.066, abs=0.02)  # 1 - Φ(ln(0.5 / 0.15) / 0.8)


@given(
    seed=st.integers(0, 9), task=st.sampled_from([TASK, OTHER]), instance=st.integers(0, 99), turn=st.integers(0, 99)
)
def test_a_latency_is_a_function_of_its_arguments(seed: int, task: Task, instance: int, turn: int) -> None:
    latency = StepLatency(least_s=1e-9, most_s=1e9, seed=seed)  # hardly anything is clipped
    drawn = latency.seconds(task, instance, turn)
    assert drawn == StepLatency(least_s=1e-9, most_s=1e9, seed=seed).seconds(task, instance, turn)
    assert 1e-9 <= drawn <= 1e9
    others = [(task, instance + 1, turn), (task, instance, turn + 1), (OTHER if task == TASK else TASK, instance, turn)]
    assert all(latency.seconds(*other) != drawn for other in others)
    assert StepLatency(least_s=1e-9, most_s=1e9, seed=seed + 1).seconds(task, instance, turn) != drawn


def test_without_a_spread_every_step_takes_the_median() -> None:
    assert {StepLatency(sigma=0.0).seconds(TASK, 0, turn) for turn in range(9)} == {0.15}


@pytest.mark.parametrize(
    "wrong", [{"least_s": 0.0}, {"median_s": 0.6}, {"median_s": 0.04}, {"most_s": float("inf")}, {"sigma": -1.0}]
)
def test_latencies_that_make_no_sense_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError):
        StepLatency(**wrong)


def played(family: DelayedFamily, slept: list[float], order: list[Task]) -> dict[Task, list[tuple[float, ...]]]:
    """What each env of each task waits, the envs stepped by turns."""
    envs = [family.make(task) for task in order]
    waits: dict[int, list[float]] = defaultdict(list)
    for _ in THREE_TURNS.rewards:
        for number, env in enumerate(envs):
            env.step(Action())
            waits[number].append(slept[-1])
    by_task: dict[Task, list[tuple[float, ...]]] = defaultdict(list)
    for number, task in enumerate(order):
        by_task[task].append(tuple(waits[number]))
    return by_task


def test_a_group_takes_the_same_latencies_whatever_runs_beside_it() -> None:
    results = []
    for order in ([TASK, TASK, TASK, OTHER, OTHER], [OTHER, TASK, OTHER, TASK, TASK]):
        slept: list[float] = []
        family = DelayedFamily(family=ScriptedFamily(script=THREE_TURNS), sleep=slept.append)
        results.append(played(family, slept, order))
    assert results[0] == results[1]
    assert len(set(results[0][TASK])) == 3  # but its members differ


def test_a_delayed_family_is_otherwise_the_family() -> None:
    log = SessionLog()
    inner = ScriptedFamily(size=3, script=THREE_TURNS, log=log)
    slept: list[float] = []
    family = DelayedFamily(family=inner, sleep=slept.append)
    assert isinstance(family, EnvFamily)
    for name in ("name", "tools", "max_turns"):
        assert getattr(family, name) == getattr(inner, name)
    assert family.num_tasks("eval") == 3
    assert family.task("train", 1) == inner.task("train", 1)
    assert family.demonstrate(TASK, Random(0), noise=0.5) == inner.demonstrate(TASK, Random(0), noise=0.5)
    assert family.vocabulary() == inner.vocabulary()
    env, plain = family.make(TASK), inner.make(TASK)
    assert env.reset() == plain.reset()
    assert not slept  # neither demonstrations nor resets are slowed down
    for number in range(3):
        assert env.step(Action()) == plain.step(Action())
        assert len(slept) == number + 1
    env.close()
    assert log.num_closed == 1


async def test_sessions_take_the_same_time_on_the_virtual_clock(autojump_clock: MockClock) -> None:
    latency = StepLatency(seed=5)
    sessions = delayed_sessions(scripted_sessions(THREE_TURNS, log := SessionLog()), latency)
    for instance in range(2):
        session: Session = sessions(TASK)
        begun = trio.current_time()
        assert await session.start() == THREE_TURNS.reset(TASK)
        assert trio.current_time() == begun
        for turn in range(3):
            before = trio.current_time()
            result = await session.interact(Action())
            assert trio.current_time() - before == pytest.approx(latency.seconds(TASK, instance, turn))
        assert result.end is not None
        await session.close()
    assert log.num_open == 0
