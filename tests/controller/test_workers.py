"""The registry of env workers in virtual time: who lives, who is drained, what becomes of the sessions of the dead."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from agentrl_jax.controller.episode import EpisodeConfig, EpisodeSetup, run_episode, single_engine
from agentrl_jax.controller.hosted_sessions import SessionHost, open_session_host
from agentrl_jax.controller.sessions import Session
from agentrl_jax.controller.workers import RegistryConfig, WorkerRegistry, WorkerStatus, open_worker_registry
from agentrl_jax.env import Action
from agentrl_jax.errors import ConfigError, EnvError
from agentrl_jax.testing.engine import FakeEngine
from agentrl_jax.testing.envs import EnvScript, SessionLog, scripted_sessions
from agentrl_jax.testing.renderer import FakeRenderer
from agentrl_jax.testing.workers import FlakyWorker
from agentrl_jax.types import EpisodeEnd, Task

TASK = Task(env="a", split="train", index=0, seed=0)
SCRIPT = EnvScript(rewards=(0.0, 0.0, 1.0), step_s=1.0)
CONFIG = RegistryConfig(coma_after_s=11.0, dead_after_s=300.0, max_waiting=8)
A = Action(content="a")


@asynccontextmanager
async def world(script: EnvScript = SCRIPT) -> AsyncIterator[tuple[WorkerRegistry, SessionHost, SessionLog]]:
    """A registry, and a host for envs a and b; afterwards every session is closed and every place given back."""
    log = SessionLog()
    make = scripted_sessions(script, log)
    async with open_session_host({"a": make, "b": make}) as host, open_worker_registry(CONFIG) as registry:
        yield registry, host, log
        statistics = registry.statistics()
        assert all(not any(worker.taken.values()) for worker in statistics.workers.values())
    assert (log.num_open, log.num_closed_again) == (0, 0)


async def opened(registry: WorkerRegistry, task: Task = TASK) -> Session:
    session = registry.session(task)
    await session.reserve()
    await session.start()
    return session


def taken(registry: WorkerRegistry) -> Mapping[str, int]:
    return {name: sum(worker.taken.values()) for name, worker in registry.statistics().workers.items()}


async def test_an_episode_runs_on_a_registered_worker(autojump_clock: MockClock) -> None:
    async with world() as (registry, host, log):
        registry.register("w", host, {"a": 1}, beats=False)
        setup = EpisodeSetup(
            sessions=registry.session,
            tools=(),
            renderer=FakeRenderer(),
            choose_engine=single_engine(FakeEngine(script=lambda prompt, sampling: [])),
            config=EpisodeConfig(max_turns=4, max_new_tokens=8, max_context_tokens=512),
            run_seed=0,
        )
        trajectories = [await run_episode(TASK, 0, member, setup=setup) for member in range(2)]
        assert [(t.end, t.reward) for t in trajectories] == [(EpisodeEnd.COMPLETED, 1.0)] * 2
        assert (log.num_steps, host.statistics().num_live, trio.current_time()) == (6, 0, 6.0)


async def test_an_episode_that_finds_no_place_says_so(autojump_clock: MockClock) -> None:
    async with world() as (registry, host, log):
        registry.register("w", host, {"a": 1}, beats=False)
        setup = EpisodeSetup(
            sessions=registry.session,
            tools=(),
            renderer=FakeRenderer(),
            choose_engine=single_engine(FakeEngine()),
            config=EpisodeConfig(max_turns=4, max_new_tokens=8, max_context_tokens=512, queue_deadline_s=60.0),
            run_seed=0,
        )
        session = await opened(registry)
        trajectory = await run_episode(TASK, 0, 0, setup=setup)
        assert (trajectory.end, trio.current_time()) == (EpisodeEnd.ENV_ERROR, 60.0)
        assert trajectory.error == "a/train/0/0: no env worker had a place for it within 60.0 s"
        assert (log.num_made, trajectory.env_s) == (1, 0.0)
        await session.close()


async def test_waiting_for_a_place_is_no_slow_reset(autojump_clock: MockClock) -> None:
    async with world() as (registry, host, _log), trio.open_nursery() as nursery:
        session = registry.session(TASK)
        nursery.start_soon(session.reserve)  # nobody serves the env yet
        await trio.sleep(50.0)
        registry.register("w", host, {"a": 1}, beats=False)
        await wait_all_tasks_blocked()
        await session.start()
        await session.close()


async def test_missed_heartbeats_stop_new_sessions_and_a_new_one_brings_them_back(autojump_clock: MockClock) -> None:
    async with world() as (registry, host, log), trio.open_nursery() as nursery:
        registry.register("w", host, {"a": 2})
        session = await opened(registry)
        await trio.sleep(11.0)
        assert registry.statistics().workers["w"].status is WorkerStatus.ALIVE
        await trio.sleep(0.5)
        assert registry.statistics().workers["w"].status is WorkerStatus.COMA
        assert registry.statistics().workers["w"].age_s == 11.5
        other = registry.session(TASK)
        nursery.start_soon(other.reserve)
        await trio.sleep(100.0)
        assert registry.statistics().lines["a"].num_waiting == 1
        assert (await session.interact(A)).end is None  # sessions that run go on
        registry.beat("w")
        await wait_all_tasks_blocked()
        assert registry.statistics().workers["w"].status is WorkerStatus.ALIVE
        assert registry.statistics().lines["a"].num_waiting == 0
        assert (await session.interact(A)).end is None
        await session.close()
        await other.close()
        assert log.num_made == 1  # the other one was never started


async def test_a_dead_workers_sessions_end_and_its_places_vanish(autojump_clock: MockClock) -> None:
    slow = replace(SCRIPT, step_s=1000.0)
    async with world(slow) as (registry, host, log):
        registry.register("w", host, {"a": 2})
        working, idle = await opened(registry), await opened(registry)
        with pytest.raises(EnvError, match=r"worker w was lost: it sent no heartbeat for 300.0 s"):
            await working.interact(A)
        assert trio.current_time() == 300.0
        with pytest.raises(EnvError, match="worker w was lost"):
            await idle.interact(A)
        await working.close()
        await idle.close()
        assert (trio.current_time(), registry.statistics().num_lost, taken(registry)) == (300.0, 1, {})
        with pytest.raises(ConfigError, match="no worker 'w' is registered: known ones are none"):
            registry.beat("w")
        registry.register("w", host, {"a": 2})  # started again
        await (await opened(registry)).close()
        assert log.num_open == 2  # the dead one's, which expire by themselves


async def test_heartbeats_put_death_off(autojump_clock: MockClock) -> None:
    async with world() as (registry, host, _log):
        registry.register("w", host, {"a": 1})
        for _ in range(10):
            await trio.sleep(299.0)
            registry.beat("w")
        await trio.sleep(299.0)
        registry.register("w", host, {"a": 3})  # a heartbeat too, with more places
        await trio.sleep(299.0)
        assert registry.statistics().workers["w"].capacity == {"a": 3}
        await trio.sleep(2.0)
        assert registry.statistics().workers == {}


async def test_a_worker_without_heartbeats_never_ages(autojump_clock: MockClock) -> None:
    async with world() as (registry, host, _log):
        registry.register("w", host, {"a": 1}, beats=False)
        registry.beat("w")
        await trio.sleep(80_000.0)
        assert registry.statistics().workers["w"].status is WorkerStatus.ALIVE
        assert registry.statistics().workers["w"].age_s == 0.0
        await (await opened(registry)).close()


async def test_draining_ends_nothing_and_blocks_nobody(autojump_clock: MockClock) -> None:
    async with world() as (registry, host, _log):
        registry.register("old", host, {"a": 2}, beats=False)
        session = await opened(registry)
        registry.drain("old")
        assert registry.statistics().workers["old"].is_draining
        registry.register("new", host, {"a": 2}, beats=False)
        sessions = [await opened(registry) for _ in range(2)]
        assert taken(registry) == {"old": 1, "new": 2}
        async with trio.open_nursery() as nursery:
            nursery.start_soon(registry.wait_idle, "old")
            assert (await session.interact(A)).end is None
            await session.close()
        await registry.wait_idle("old")
        sessions.append(registry.session(TASK))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(sessions[-1].reserve)
            nursery.cancel_scope.deadline = trio.current_time() + 1.0
            await wait_all_tasks_blocked()
            assert taken(registry) == {"old": 0, "new": 2}
            registry.resume("old")  # whoever waits gets its places
        assert taken(registry) == {"old": 1, "new": 2}
        for each in sessions:
            await each.close()


async def test_a_place_that_was_granted_and_given_up_at_once_keeps_no_worker_busy(autojump_clock: MockClock) -> None:
    async def give_up(session: Session) -> None:
        with trio.CancelScope() as scope:
            scope.cancel()
            await session.reserve()

    for _ in range(8):  # trio draws which of the two runs first
        async with world() as (registry, host, _), trio.open_nursery() as nursery:
            registry.register("w", host, {"a": 1}, beats=False)
            nursery.start_soon(give_up, registry.session(TASK))
            with trio.fail_after(1.0):
                await trio.lowlevel.checkpoint()
                await registry.wait_idle("w")


async def test_removing_ends_the_sessions_at_once_and_closes_them(autojump_clock: MockClock) -> None:
    async with world(replace(SCRIPT, step_s=50.0)) as (registry, host, log):
        registry.register("w", host, {"a": 2}, beats=False)
        session = await opened(registry)
        with pytest.RaisesGroup(pytest.RaisesExc(EnvError, match="worker w was lost: it was removed")):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(session.interact, A)
                nursery.start_soon(registry.wait_idle, "w")
                await trio.sleep(1.0)
                registry.remove("w")
        await session.close()
        assert (log.num_open, trio.current_time()) == (0, 1.0)


async def test_calls_without_an_answer_are_repeated_and_have_one_effect(autojump_clock: MockClock) -> None:
    async with world() as (registry, host, log):
        # Of nine calls four get through: the first, then after 2, 1 and 2 losses.
        losses = ["none", "request", "answer", "none", "answer", "none", "request", "request", "none"]
        flaky = FlakyWorker(worker=host, loses=lambda call: losses[call])  # type: ignore[arg-type,return-value]
        registry.register("w", flaky, {"a": 1}, beats=False)
        session = await opened(registry)
        assert [(await session.interact(A)).end for _ in range(2)] == [None, None]
        assert log.num_steps == 2
        await session.close()
        assert (flaky.num_calls, registry.statistics().num_retries, log.num_open) == (9, 5, 0)
        assert trio.current_time() == pytest.approx(2 * 1.0 + (0.1 + 0.2) + 0.1 + (0.1 + 0.2))


async def test_a_silent_worker_is_asked_until_the_deadline(autojump_clock: MockClock) -> None:
    async with world() as (registry, host, _log):
        flaky = FlakyWorker(worker=host, loses=lambda call: "none" if call == 0 else "request")
        registry.register("w", flaky, {"a": 1}, beats=False)
        session = await opened(registry)
        with trio.move_on_after(60.0) as scope:
            await session.interact(A)
        assert scope.cancelled_caught
        assert flaky.num_calls == 1 + 6 + 11  # pauses: 0.1 to 3.2 s, then 5 s each
        flaky.loses = lambda call: "none"
        await session.close()


@pytest.mark.parametrize("capacity", [{}, {"a": 0}, {"a": 1, "b": -1}])
async def test_a_worker_that_serves_nothing_is_refused(capacity: dict[str, int]) -> None:
    async with world() as (registry, host, _log):
        with pytest.raises(ConfigError, match="at least one place for each of its envs"):
            registry.register("w", host, capacity)


async def test_a_worker_may_not_change_its_envs() -> None:
    async with world() as (registry, host, _log):
        registry.register("w", host, {"a": 1})
        with pytest.raises(ConfigError, match="worker w serves a: remove it before it may serve a, b"):
            registry.register("w", host, {"a": 1, "b": 1})


async def test_a_session_needs_a_place() -> None:
    async with world() as (registry, _host, _log):
        session = registry.session(TASK)
        with pytest.raises(EnvError, match="without a place on a worker"):
            await session.start()
        await session.close()


@pytest.mark.parametrize(
    "change",
    [
        {"coma_after_s": 300.0},
        {"coma_after_s": 0.0},
        {"first_retry_s": 6.0},
        {"first_retry_s": 0.0},
        {"max_waiting": 0},
    ],
)
def test_impossible_registry_configs_are_refused(change: dict[str, float]) -> None:
    with pytest.raises(ConfigError):
        replace(CONFIG, **change)  # type: ignore[arg-type]
