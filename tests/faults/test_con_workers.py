"""CON: places on env workers. Rows of the fault list that dispatch decides, in virtual time."""

from collections import Counter
from dataclasses import replace

import pytest
import trio
from trio.testing import MockClock

from agentrl_jax.controller.hosted_sessions import HostConfig, SessionHost, open_session_host
from agentrl_jax.controller.workers import WorkerRegistry, open_worker_registry
from agentrl_jax.env import Action
from agentrl_jax.errors import EnvError
from agentrl_jax.testing.envs import EnvScript, SessionLog, scripted_sessions
from agentrl_jax.types import Task

TASK = Task(env="a", split="train", index=0, seed=0)


async def visit(registry: WorkerRegistry, seconds: float) -> None:
    session = registry.session(TASK)
    try:
        await session.reserve()
        await session.start()
        await trio.sleep(seconds)
    except EnvError:
        pass
    finally:
        await session.close()


async def test_con_04_ten_places_on_three_workers_are_ten(autojump_clock: MockClock) -> None:
    log = SessionLog()
    make = scripted_sessions(EnvScript(), log)
    async with open_session_host({"a": make}) as host, open_worker_registry() as registry:
        for name, places in (("x", 3), ("y", 3), ("z", 4)):
            registry.register(name, host, {"a": places}, beats=False)
        async with trio.open_nursery() as nursery:
            for _ in range(30):
                nursery.start_soon(visit, registry, 1.0)
    assert (log.num_made, log.peak_open, trio.current_time()) == (30, 10, 3.0)


async def test_con_05_a_hundred_sessions_on_four_idle_workers_are_twenty_five_each(autojump_clock: MockClock) -> None:
    logs = {name: SessionLog() for name in "wxyz"}
    async with open_worker_registry() as registry, trio.open_nursery() as nursery:
        hosts = [open_session_host({"a": scripted_sessions(EnvScript(), log)}) for log in logs.values()]
        async with hosts[0] as w, hosts[1] as x, hosts[2] as y, hosts[3] as z:
            for name, host in zip(logs, (w, x, y, z), strict=True):
                registry.register(name, host, {"a": 50}, beats=False)
            for _ in range(40):  # one after the other
                await visit(registry, 1.0)
            async with trio.open_nursery() as together:
                for _ in range(60):
                    together.start_soon(visit, registry, 1.0)
        nursery.cancel_scope.cancel()
    assert Counter({name: log.num_made for name, log in logs.items()}) == dict.fromkeys("wxyz", 25)


async def test_con_06_failures_leak_no_places(autojump_clock: MockClock) -> None:
    log = SessionLog()
    broken = EnvScript(fault="error", reset_s=1.0)
    numbers = iter(range(1000))

    def script(task: Task) -> EnvScript:
        return replace(broken, close_s=1.0) if next(numbers) % 2 else broken

    async with (
        open_session_host({"a": scripted_sessions(script, log)}) as host,
        open_worker_registry() as registry,
        trio.open_nursery() as nursery,
    ):
        registry.register("w", host, {"a": 7}, beats=False)
        for number in range(100):
            nursery.start_soon(visit, registry, float(number % 3))
        await trio.sleep(100.0)
        assert registry.statistics().workers["w"].taken == {"a": 0}
        assert registry.statistics().lines["a"].num_granted == 100
        assert host.statistics().num_live == 0
    assert (log.num_made, log.num_open) == (100, 0)


class Unclosing(SessionHost):
    """A host whose sessions cannot be closed."""

    async def close(self, session_id: str) -> None:
        await super().close(session_id)
        raise EnvError("close failed")


@pytest.mark.parametrize("is_cancelled", [False, True])
async def test_con_06_sessions_that_fail_to_close_or_are_cancelled_leak_no_places(
    is_cancelled: bool, autojump_clock: MockClock
) -> None:
    make = scripted_sessions(EnvScript(step_s=10.0), SessionLog())
    async with trio.open_nursery() as nursery, open_worker_registry() as registry:
        registry.register("w", Unclosing({"a": make}, HostConfig(), nursery), {"a": 3}, beats=False)

        async def use() -> None:
            session = registry.session(TASK)
            try:
                await session.reserve()
                await session.start()
                await session.interact(Action())
            finally:
                with trio.CancelScope(shield=True), pytest.raises(EnvError, match="close failed"):
                    await session.close()

        for _ in range(10):
            with trio.move_on_after(5.0 if is_cancelled else 100.0) as scope:
                async with trio.open_nursery() as users:
                    for _ in range(3):
                        users.start_soon(use)
            assert scope.cancelled_caught == is_cancelled
        assert registry.statistics().workers["w"].taken == {"a": 0}
        nursery.cancel_scope.cancel()


async def test_con_10_an_env_that_hangs_keeps_no_other_from_its_places(autojump_clock: MockClock) -> None:
    log = SessionLog()

    def script(task: Task) -> EnvScript:
        return EnvScript(fault="hang" if task.env == "b" else "none", step_s=1.0)

    make = scripted_sessions(script, log)
    async with (
        open_session_host({"a": make, "b": make}) as host,
        open_worker_registry() as registry,
        trio.open_nursery() as nursery,
    ):
        registry.register("w", host, {"a": 2, "b": 2}, beats=False)

        async def hang() -> None:
            session = registry.session(replace(TASK, env="b"))
            await session.reserve()
            await session.start()

        for _ in range(50):
            nursery.start_soon(hang)
        await trio.sleep(1.0)
        async with trio.open_nursery() as visits:
            for _ in range(10):
                visits.start_soon(visit, registry, 1.0)
        assert trio.current_time() == 6.0  # ten visits in two places
        assert registry.statistics().lines["b"].num_waiting == 48
        nursery.cancel_scope.cancel()
