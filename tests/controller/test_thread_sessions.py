"""Synchronous envs on threads, on the real clock: errors become EnvError, and an env is closed exactly once."""

import asyncio
import re
import threading
from collections.abc import Callable
from typing import Any

import pytest
import trio

from agentrl_jax.controller.sessions import Session, ThreadSession, thread_sessions
from agentrl_jax.env import Action, Env, Message, StepResult
from agentrl_jax.errors import EnvError
from agentrl_jax.testing.envs import EnvScript, ScriptedEnv, ScriptedFamily
from agentrl_jax.types import EpisodeEnd, Task

TASK = Task(env="scripted", split="train", index=0, seed=0)


def thread_session(env: Env, limiter: trio.CapacityLimiter | None = None) -> ThreadSession:
    return ThreadSession(lambda task: env, TASK, limiter or trio.CapacityLimiter(2))


class Broken(ScriptedEnv):
    """Raises `error` in every call that `where` names."""

    def __init__(self, error: BaseException, where: str) -> None:
        super().__init__(task=TASK, script=EnvScript(rewards=(0.0, 1.0)))
        self.error, self.where = error, where

    def reset(self) -> tuple[Message, ...]:
        self._raise("reset")
        return super().reset()

    def step(self, action: Action) -> Any:
        self._raise("step")
        return super().step(action)

    def close(self) -> None:
        super().close()
        self._raise("close")

    def _raise(self, where: str) -> None:
        if where == self.where:
            raise self.error


async def test_an_episode_of_a_synchronous_env() -> None:
    family = ScriptedFamily(script=EnvScript(rewards=(0.0, 1.0)))
    session: Session = thread_sessions(family.make, trio.CapacityLimiter(1))(TASK)
    assert (await session.start())[0].role == "user"
    assert (await session.interact(Action(content="a"))).end is None
    result = await session.interact(Action(content="b"))
    assert (result.reward, result.end) == (1.0, EpisodeEnd.COMPLETED)
    await session.close()
    assert (family.log.num_made, family.log.num_closed, family.log.num_closed_again) == (1, 1, 0)


@pytest.mark.parametrize("where", ["reset", "step", "close"])
@pytest.mark.parametrize(
    "error", [ValueError("bad"), SystemExit(3), asyncio.CancelledError("leaked"), EnvError("its own")]
)
async def test_whatever_an_env_raises_is_an_env_error(error: BaseException, where: str) -> None:
    env = Broken(error, where)
    session = thread_session(env)
    calls: list[Callable[[], Any]] = [session.start, lambda: session.interact(Action()), session.close]
    failures = []
    for call in calls:
        try:
            await call()
        except EnvError as caught:
            failures.append(caught)
    assert len(failures) == 1
    assert failures[0] is error or failures[0].__cause__ is error
    assert env.is_closed


async def test_answers_of_the_wrong_type_are_env_errors() -> None:
    class Wrong(ScriptedEnv):
        def reset(self) -> tuple[Message, ...]:
            return ()

        def step(self, action: Action) -> Any:
            return {"reward": 1}

    session = thread_session(Wrong(task=TASK))
    with pytest.raises(EnvError, match="at least one message"):
        await session.start()
    with pytest.raises(EnvError, match="StepResult"):
        await session.interact(Action())
    await session.close()


def answers_late() -> Any:
    raise ValueError("too late")
    yield Message(role="user")


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (lambda: None, "TypeError: 'NoneType' object is not iterable"),
        (lambda: "hello", "must answer with Messages, got 'h'"),
        (lambda: [{"role": "user", "content": "a"}], "must answer with Messages, got {'role': 'user'"),
        (answers_late, "ValueError: too late"),
    ],
)
async def test_an_answer_without_messages_is_the_envs_failure(answer: Callable[[], Any], error: str) -> None:
    class Wrong(ScriptedEnv):
        def reset(self) -> tuple[Message, ...]:
            return answer()  # type: ignore[no-any-return]

        def step(self, action: Action) -> Any:
            return StepResult(messages=answer())

    session = thread_session(Wrong(task=TASK))
    with pytest.raises(EnvError, match=re.escape(error)):
        await session.start()
    with pytest.raises(EnvError, match=re.escape(error)):
        await session.interact(Action())
    await session.close()


async def test_making_may_fail_and_closing_needs_no_start() -> None:
    def make(task: Task) -> Env:
        raise OSError("no such image")

    session = ThreadSession(make, TASK, trio.CapacityLimiter(1))
    with pytest.raises(EnvError, match="OSError: no such image"):
        await session.start()
    await session.close()
    await ThreadSession(make, TASK, trio.CapacityLimiter(1)).close()


class Slow(ScriptedEnv):
    """Tells when a step has begun and when the env was closed, and by which thread."""

    def __init__(self) -> None:
        super().__init__(task=TASK, script=EnvScript(rewards=(0.0, 1.0), fault="hang", fault_at=1))
        self.begun, self.closed = threading.Event(), threading.Event()
        self.was_stepping_at_close = False
        self.is_stepping = False

    def step(self, action: Action) -> Any:
        self.is_stepping = True
        self.begun.set()
        try:
            return super().step(action)
        finally:
            self.is_stepping = False

    def close(self) -> None:
        self.was_stepping_at_close = self.is_stepping
        super().close()
        self.closed.set()


async def test_an_abandoned_call_closes_the_env_when_it_is_over() -> None:
    env, limiter = Slow(), trio.CapacityLimiter(1)
    session = thread_session(env, limiter)
    await session.start()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(session.interact, Action())
        await trio.to_thread.run_sync(env.begun.wait)
        nursery.cancel_scope.cancel()
    await session.close()  # returns although the step hangs
    assert not env.is_closed
    assert limiter.borrowed_tokens == 1  # the thread counts as long as it lives
    env.hang_until.set()
    await trio.to_thread.run_sync(env.closed.wait)
    assert not env.was_stepping_at_close
    assert (env.log.num_closed, env.log.num_closed_again) == (1, 0)


async def test_a_full_limiter_does_not_keep_sessions_from_closing() -> None:
    limiter = trio.CapacityLimiter(1)
    hanging, other = Slow(), ScriptedEnv(task=TASK)
    first, second = thread_session(hanging, limiter), thread_session(other, limiter)
    await first.start()
    await second.start()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(first.interact, Action())
        await trio.to_thread.run_sync(hanging.begun.wait)
        await second.close()
        assert other.is_closed
        hanging.hang_until.set()
    await first.close()
    assert hanging.is_closed


async def test_a_call_cancelled_while_it_waits_for_a_thread_never_runs() -> None:
    limiter = trio.CapacityLimiter(1)
    env = ScriptedEnv(task=TASK)
    session = thread_session(env, limiter)
    async with limiter:
        with trio.CancelScope() as scope:
            scope.cancel()
            await session.start()
    await session.close()
    assert env.log.num_started == 0
