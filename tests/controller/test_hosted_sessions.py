"""Sessions on the worker's side, in virtual time: one effect per request, expiry, and no session without an owner."""

import math
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock

from agentrl_jax.controller.hosted_sessions import HostConfig, SessionHost, Worker, open_session_host
from agentrl_jax.env import Action, ToolCall
from agentrl_jax.errors import (
    ConfigError,
    EnvError,
    EnvTimeout,
    RequestOrderError,
    SessionExpired,
    UnknownSession,
)
from agentrl_jax.testing.envs import EnvScript, SessionLog, scripted_sessions
from agentrl_jax.testing.virtual import run_virtual
from agentrl_jax.types import EpisodeEnd, Task

TASK = Task(env="a", split="train", index=0, seed=0)
SCRIPT = EnvScript(rewards=(0.25, 0.5, 1.0), reset_s=1.0, step_s=1.0, close_s=1.0)
CONFIG = HostConfig(call_deadline_s=50.0, idle_expiry_s=100.0, close_deadline_s=10.0)
A = Action(content="a")


async def hosting(
    use: Callable[[SessionHost, SessionLog], Awaitable[object]],
    script: EnvScript = SCRIPT,
    config: HostConfig = CONFIG,
) -> None:
    log = SessionLog()
    async with open_session_host({"a": scripted_sessions(script, log)}, config) as host:
        await use(host, log)
    assert (log.num_open, log.num_closed_again, host.statistics().num_live) == (0, 0, 0)


async def failure(host: SessionHost) -> EnvError:
    """What the start, or else the first request, of a session fails with."""
    try:
        await host.start("s", TASK)
        await host.interact("s", 1, A)
    except EnvError as error:
        return error
    raise AssertionError("nothing failed")


async def test_an_episode(autojump_clock: MockClock) -> None:
    async def use(host: Worker, log: SessionLog) -> None:
        assert (await host.start("s", TASK))[0].role == "user"
        assert [(await host.interact("s", n, A)).reward for n in (1, 2, 3)] == [0.25, 0.5, 1.0]
        await host.close("s")
        assert (log.num_open, trio.current_time()) == (0, 5.0)
        await host.close("s")
        with pytest.raises(UnknownSession, match="a/train/0/0: session s: it is closed"):
            await host.interact("s", 4, A)
        with pytest.raises(UnknownSession):
            await host.start("s", TASK)
        with pytest.raises(UnknownSession, match="no session t"):
            await host.interact("t", 1, A)

    await hosting(use)


async def test_a_start_that_its_close_overtook_starts_nothing(autojump_clock: MockClock) -> None:
    async def use(host: SessionHost, log: SessionLog) -> None:
        for _ in range(2):
            await host.close("s")
        with pytest.raises(UnknownSession, match="session s was closed before its start came"):
            await host.start("s", TASK)
        with pytest.raises(UnknownSession):
            await host.interact("s", 1, A)
        assert (log.num_started, host.statistics().num_live, host.statistics().num_started) == (0, 0, 0)
        await host.start("t", TASK)  # no other is meant
        await host.close("t")

    await hosting(use)


async def test_of_closed_sessions_the_last_ten_thousand_are_known(autojump_clock: MockClock) -> None:
    async def use(host: SessionHost, log: SessionLog) -> None:
        for number in range(10_001):
            await host.close(f"s{number}")
        with pytest.raises(UnknownSession):
            await host.start("s1", TASK)
        await host.start("s0", TASK)

    await hosting(use)


async def test_a_repeated_request_has_one_effect_and_one_answer(autojump_clock: MockClock) -> None:
    async def use(host: SessionHost, log: SessionLog) -> None:
        assert await host.start("s", TASK) is await host.start("s", TASK)
        first = await host.interact("s", 1, A)
        assert await host.interact("s", 1, A) is first
        answers = []

        async def ask() -> None:
            answers.append(await host.interact("s", 2, A))

        async with trio.open_nursery() as nursery:  # together, and one of them gives up
            for _ in range(3):
                nursery.start_soon(ask)
            with trio.move_on_after(0.5):
                await ask()
        assert len(answers) == 3
        assert all(answer is answers[0] for answer in answers)
        assert (log.num_started, log.num_steps, host.statistics().num_repeated) == (1, 2, 5)
        # The last request may be repeated after the end of the episode, too.
        last = await host.interact("s", 3, A)
        assert last.end is EpisodeEnd.COMPLETED
        assert await host.interact("s", 3, A) is last

    await hosting(use)


async def test_who_gives_up_waiting_undoes_nothing(autojump_clock: MockClock) -> None:
    async def use(host: SessionHost, log: SessionLog) -> None:
        with trio.move_on_after(0.5):
            await host.start("s", TASK)
        await host.start("s", TASK)
        with trio.move_on_after(0.5):
            await host.interact("s", 1, A)
        assert (await host.interact("s", 1, A)).reward == 0.25
        assert (log.num_started, log.num_steps, trio.current_time()) == (1, 1, 2.0)

    await hosting(use)


async def test_requests_out_of_order_are_refused_and_change_nothing(autojump_clock: MockClock) -> None:
    async def use(host: SessionHost, log: SessionLog) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(host.start, "s", TASK)
            await trio.testing.wait_all_tasks_blocked()
            with pytest.raises(RequestOrderError, match="request 1 came before the last one was answered"):
                await host.interact("s", 1, A)
        for number in (0, 2, -1):
            with pytest.raises(RequestOrderError, match=f"expected request 1, got {number}"):
                await host.interact("s", number, A)
        await host.interact("s", 1, A)
        with pytest.raises(RequestOrderError, match="request 1 came again with another action"):
            await host.interact("s", 1, replace(A, content="b"))
        with pytest.raises(RequestOrderError, match="is one of a/train/0/0, not of a/train/1/0"):
            await host.start("s", replace(TASK, index=1))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(host.interact, "s", 2, A)
            await trio.testing.wait_all_tasks_blocked()
            with pytest.raises(RequestOrderError, match="request 3 came before"):
                await host.interact("s", 3, A)
        await host.interact("s", 3, A)
        with pytest.raises(RequestOrderError, match="request 4 came after the end of the episode"):
            await host.interact("s", 4, A)
        assert log.num_steps == 3

    await hosting(use)


async def test_a_repeated_action_with_a_nan_is_the_same_action(autojump_clock: MockClock) -> None:
    def action() -> Action:
        return Action(calls=(ToolCall(name="f", arguments={"x": float("nan")}),))

    async def use(host: SessionHost, log: SessionLog) -> None:
        await host.start("s", TASK)
        assert await host.interact("s", 1, action()) is await host.interact("s", 1, action())

    await hosting(use)


@pytest.mark.parametrize("at", [0, 1])
async def test_an_env_error_is_the_recorded_answer(at: int, autojump_clock: MockClock) -> None:
    async def use(host: SessionHost, log: SessionLog) -> None:
        for _ in range(2):
            assert "failed on purpose" in str(await failure(host))
        assert log.num_started == 1
        assert log.num_steps == at

    await hosting(use, replace(SCRIPT, fault="error", fault_at=at))


async def test_a_session_that_nobody_uses_expires(autojump_clock: MockClock) -> None:
    async def use(host: SessionHost, log: SessionLog) -> None:
        await host.start("s", TASK)
        await trio.sleep(99.0)
        first = await host.interact("s", 1, A)
        await trio.sleep(99.0)
        assert await host.interact("s", 1, A) is first  # a repeated request is a use
        await trio.sleep(99.0)
        assert log.num_open == 1
        await trio.sleep(3.0)
        assert log.num_open == 0
        for call in (lambda: host.interact("s", 2, A), lambda: host.interact("s", 1, A), lambda: host.start("s", TASK)):
            with pytest.raises(SessionExpired, match=r"nobody used it for 100.0 s"):
                await call()
        await host.close("s")
        assert (host.statistics().num_expired, host.statistics().num_live) == (1, 0)

    await hosting(use)


async def test_a_session_does_not_expire_while_it_works(autojump_clock: MockClock) -> None:
    async def use(host: SessionHost, log: SessionLog) -> None:
        await host.start("s", TASK)
        assert (await host.interact("s", 1, A)).reward == 0.25
        assert trio.current_time() == 300.0

    slow = replace(SCRIPT, reset_s=150.0, step_s=150.0)
    await hosting(use, slow, replace(CONFIG, call_deadline_s=200.0))


async def test_a_request_in_the_moment_of_expiry_is_answered_one_way_or_the_other(autojump_clock: MockClock) -> None:
    async def use(host: SessionHost, log: SessionLog) -> None:
        for n in range(20):
            await host.start(f"s{n}", TASK)
            await trio.sleep(CONFIG.idle_expiry_s)
            with trio.fail_after(30.0):
                try:
                    await host.interact(f"s{n}", 1, A)
                except SessionExpired:
                    continue
            await host.close(f"s{n}")

    await hosting(use)


@pytest.mark.parametrize("at", [0, 1])
async def test_a_call_that_takes_too_long_is_cancelled(at: int, autojump_clock: MockClock) -> None:
    async def use(host: SessionHost, log: SessionLog) -> None:
        error = await failure(host)
        assert isinstance(error, EnvTimeout)
        assert "took longer than 50.0 s" in str(error)
        assert trio.current_time() == 50.0 + at
        await host.close("s")
        assert log.num_open == 0

    await hosting(use, replace(SCRIPT, fault="hang", fault_at=at))


async def test_closing_cancels_what_runs_and_answers_who_waits(autojump_clock: MockClock) -> None:
    async def use(host: SessionHost, log: SessionLog) -> None:
        await host.start("s", TASK)
        with pytest.RaisesGroup(pytest.RaisesExc(EnvError, match="closed before it answered")):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(host.interact, "s", 1, A)
                await trio.sleep(1.0)
                await host.close("s")
                assert trio.current_time() == 3.0
        assert log.num_open == 0

    await hosting(use, replace(SCRIPT, fault="hang", fault_at=1))


async def test_a_close_that_hangs_is_bounded(autojump_clock: MockClock) -> None:
    async def use(host: SessionHost, log: SessionLog) -> None:
        await host.start("s", TASK)
        with pytest.raises(EnvError):
            await host.close("s")
        assert trio.current_time() == 11.0

    await hosting(use, replace(SCRIPT, close_s=math.inf))


async def test_an_env_that_is_not_served_is_refused(autojump_clock: MockClock) -> None:
    async def use(host: SessionHost, log: SessionLog) -> None:
        with pytest.raises(EnvError, match="this worker serves a"):
            await host.start("s", replace(TASK, env="b"))

    await hosting(use)


async def test_a_bug_below_ends_the_host_with_its_own_exception(autojump_clock: MockClock) -> None:
    def make(task: Task) -> SessionHost:
        class Buggy:
            async def reserve(self) -> None:
                raise ZeroDivisionError("bug")

            async def close(self) -> None:
                pass

        return Buggy()  # type: ignore[return-value]

    async def run() -> None:
        async with open_session_host({"a": make}, CONFIG) as host:  # type: ignore[dict-item]
            await host.start("s", TASK)

    with pytest.raises(ZeroDivisionError, match="bug"):
        await run()


@pytest.mark.parametrize("name", ["call_deadline_s", "idle_expiry_s", "close_deadline_s"])
def test_impossible_bounds_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=name):
        replace(CONFIG, **{name: 0.0})


@given(
    delays=st.lists(st.sampled_from([0.0, 0.3, 0.9, 1.0, 1.1, 40.0, 99.9, 100.0, 101.0]), min_size=1, max_size=8),
    patience=st.lists(st.sampled_from([0.1, 1.0, 5.0]), min_size=3, max_size=3),
    random_module=st.random_module(),
)
def test_however_often_it_is_asked_each_request_has_one_effect(
    delays: list[float], patience: list[float], random_module: object
) -> None:
    """Three callers of one session ask again and again; every answer is that of its number, and nobody hangs."""

    async def main() -> None:
        async def use(host: SessionHost, log: SessionLog) -> None:
            answers: dict[int, set[float]] = {}

            async def caller(seconds: float) -> None:
                for number, delay in enumerate(delays):
                    await trio.sleep(delay)
                    with trio.move_on_after(seconds):
                        try:
                            await host.start("s", TASK)
                            result = await host.interact("s", 1 + number % 3, A)
                        except (RequestOrderError, SessionExpired):
                            continue
                        answers.setdefault(1 + number % 3, set()).add(result.reward)

            async with trio.open_nursery() as nursery:
                for seconds in patience:
                    nursery.start_soon(caller, seconds)
            assert all(answers[n] == {SCRIPT.rewards[n - 1]} for n in answers)
            assert log.num_started == 1
            assert log.num_steps <= 3

        await hosting(use)

    run_virtual(main)
