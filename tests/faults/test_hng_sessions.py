"""HNG: hangs of sessions and workers. In virtual time, and with real processes where killing is the point."""

import time
from collections.abc import Callable
from random import Random

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from agentrl_jax.controller.episode import EpisodeConfig, EpisodeSetup, single_engine
from agentrl_jax.controller.group import AdmittedGroup, run_group
from agentrl_jax.controller.hosted_sessions import open_session_host
from agentrl_jax.controller.process_sessions import open_process_sessions
from agentrl_jax.controller.process_trees import children
from agentrl_jax.controller.sessions import Session, SessionFactory
from agentrl_jax.controller.workers import RegistryConfig, open_worker_registry
from agentrl_jax.env import Action, EnvSource
from agentrl_jax.errors import EnvError
from agentrl_jax.testing.engine import FakeEngine
from agentrl_jax.testing.envs import EnvScript, SessionLog, scripted_sessions
from agentrl_jax.testing.renderer import FakeRenderer
from agentrl_jax.types import EpisodeEnd, Task

TASK = Task(env="a", split="train", index=0, seed=0)
HANGING = EnvSource(target="agentrl_jax.testing.rogue_envs:rogue_envs", arguments={"deed": "hang"})


async def test_hng_02_no_answer_is_lost_to_whoever_loses_patience(autojump_clock: MockClock) -> None:
    """Two thousand requests, each awaited with random patience until it is answered."""
    rng, log = Random(0), SessionLog()
    num_requests = 2_000
    script = EnvScript(rewards=tuple(float(n) for n in range(1, num_requests + 1)), step_s=1.0)
    impatient = 0
    async with open_session_host({"a": scripted_sessions(script, log)}) as host:
        await host.start("s", TASK)
        for number in range(1, num_requests + 1):
            reward = None
            while reward is None:
                with trio.move_on_after(rng.choice([0.2, 0.4, 1.0, 5.0])) as waiting:
                    reward = (await host.interact("s", number, Action())).reward
                impatient += waiting.cancelled_caught
            assert reward == number
    assert log.num_steps == num_requests
    assert impatient > num_requests / 2


@pytest.mark.parametrize("error", [RuntimeError("bug"), KeyError("bug")])
async def test_hng_04_a_bug_in_one_session_ends_all_of_them_and_the_run(
    error: Exception, autojump_clock: MockClock
) -> None:
    log = SessionLog()
    make = scripted_sessions(EnvScript(step_s=1.0), log)

    def buggy(task: Task) -> Session:
        session = make(task)
        if task.index == 3:

            async def interact(action: Action) -> object:
                raise error

            session.interact = interact  # type: ignore[method-assign,assignment]
        return session

    async def play(host: object, index: int) -> None:
        task = Task(env="a", split="train", index=index, seed=0)
        await host.start(f"s{index}", task)  # type: ignore[attr-defined]
        await host.interact(f"s{index}", 1, Action())  # type: ignore[attr-defined]

    async def run() -> None:
        async with open_session_host({"a": buggy}) as host, trio.open_nursery() as nursery:
            for index in range(6):
                nursery.start_soon(play, host, index)
            await trio.sleep_forever()

    with pytest.raises(type(error)) as caught:
        await run()
    assert caught.value is error
    assert log.num_open == 0


async def test_hng_05_two_producers_and_one_place_make_progress(autojump_clock: MockClock) -> None:
    log, served = SessionLog(), []
    async with (
        open_session_host({"a": scripted_sessions(EnvScript(step_s=1.0), log)}) as host,
        open_worker_registry() as registry,
        trio.open_nursery() as nursery,
    ):
        registry.register("w", host, {"a": 1}, beats=False)

        async def produce(name: str) -> None:
            for _ in range(20):
                session = registry.session(TASK)
                await session.reserve()
                await session.start()
                await session.interact(Action())
                await session.close()
                served.append(name)

        nursery.start_soon(produce, "x")
        nursery.start_soon(produce, "y")
    assert len(served) == 40
    assert trio.current_time() == 40.0
    assert max(served[:20].count("x"), served[:20].count("y")) <= 11


async def test_hng_06_draining_a_worker_does_not_hold_up_the_others(autojump_clock: MockClock) -> None:
    log = SessionLog()
    script: Callable[[Task], EnvScript] = lambda task: EnvScript(step_s=500.0 if task.index else 1.0)  # noqa: E731
    async with (
        open_session_host({"a": scripted_sessions(script, log)}) as host,
        open_worker_registry() as registry,
        trio.open_nursery() as nursery,
    ):
        registry.register("old", host, {"a": 1}, beats=False)
        long = registry.session(Task(env="a", split="train", index=1, seed=0))
        await long.reserve()
        await long.start()
        nursery.start_soon(long.interact, Action())
        registry.drain("old")
        nursery.start_soon(registry.wait_idle, "old")
        registry.register("new", host, {"a": 1}, beats=False)
        await wait_all_tasks_blocked()
        for _ in range(5):
            session = registry.session(TASK)
            await session.reserve()
            await session.start()
            await session.interact(Action())
            await session.close()
        assert trio.current_time() == 5.0
        await trio.sleep(500.0)
        await long.close()


async def test_hng_17_a_slow_worker_is_no_end_and_a_dead_one_is_named(autojump_clock: MockClock) -> None:
    config = RegistryConfig(coma_after_s=10.0, dead_after_s=100.0)
    script = EnvScript(rewards=(0.0, 0.0, 1.0), step_s=30.0)
    async with (
        open_session_host({"a": scripted_sessions(script, SessionLog())}) as host,
        open_worker_registry(config) as registry,
    ):
        registry.register("lazarus", host, {"a": 1})
        session = registry.session(TASK)
        await session.reserve()
        await session.start()
        for _ in range(2):
            assert (await session.interact(Action())).end is None  # three times the pause after which it is in coma
        await trio.sleep(50.0)
        with pytest.raises(EnvError, match="worker lazarus was lost: it sent no heartbeat for 100"):
            await session.interact(Action())
        assert trio.current_time() <= 110.0
        await session.close()


async def test_hng_14_a_block_full_of_hanging_envs_is_left_at_once() -> None:
    before, begun = children(), time.monotonic()
    async with open_process_sessions(HANGING) as sessions, trio.open_nursery() as nursery:

        async def hang(session: Session, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
            await session.start()
            task_status.started()
            try:
                await session.interact(Action())
            finally:
                await session.close()

        for _ in range(8):
            await nursery.start(hang, sessions(TASK))
        begun = time.monotonic()
        nursery.cancel_scope.cancel()
    assert time.monotonic() - begun < 5.0
    assert children() == before


async def test_hng_23_a_step_that_never_ends_costs_one_member_of_its_group() -> None:
    async with open_process_sessions(HANGING) as hanging:
        fine = open_process_sessions(EnvSource(target=HANGING.target, arguments={}))
        async with fine as sessions:
            made = iter([sessions, hanging, sessions, sessions])
            factory: SessionFactory = lambda task: next(made)(task)  # noqa: E731
            setup = EpisodeSetup(
                sessions=factory,
                tools=(),
                renderer=FakeRenderer(),
                choose_engine=single_engine(FakeEngine(script=lambda prompt, sampling: [])),
                config=EpisodeConfig(max_turns=4, max_new_tokens=8, max_context_tokens=512, env_deadline_s=2.0),
                run_seed=0,
            )
            group = await run_group(AdmittedGroup(group_id=0, task=TASK, start_version=0), group_size=4, setup=setup)
    ends = sorted(trajectory.end.value for trajectory in group.trajectories)
    assert ends == ["completed", "completed", "completed", "env_timeout"]
    assert [t.reward for t in group.trajectories if t.end is EpisodeEnd.COMPLETED] == [1.0] * 3
