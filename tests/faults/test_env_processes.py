"""ENV: processes, sessions and their state. Rows of the fault list about what runs, leaks, or is shared."""

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from agentrl_jax.controller.episode import EpisodeConfig, EpisodeSetup, run_episode, single_engine
from agentrl_jax.controller.group import AdmittedGroup, run_group
from agentrl_jax.controller.hosted_sessions import HostConfig, open_session_host
from agentrl_jax.controller.process_sessions import open_process_sessions
from agentrl_jax.controller.process_trees import children
from agentrl_jax.controller.sessions import SessionFactory
from agentrl_jax.controller.workers import WorkerRegistry, open_worker_registry
from agentrl_jax.env import Action, EnvSource
from agentrl_jax.testing.engine import FakeEngine, constant_latency
from agentrl_jax.testing.envs import EnvScript, SessionLog, scripted_sessions
from agentrl_jax.testing.renderer import FakeRenderer
from agentrl_jax.types import EpisodeEnd, Group, Task

ROOT = Path(__file__).resolve().parents[2]
ROGUES = "agentrl_jax.testing.rogue_envs:rogue_envs"
TASK = Task(env="a", split="train", index=0, seed=0)


def setup_over(sessions: SessionFactory, *, turn_s: float = 0.0, env_deadline_s: float = 60.0) -> EpisodeSetup:
    engine = FakeEngine(script=lambda prompt, sampling: [], token_latency=constant_latency(turn_s))
    return EpisodeSetup(
        sessions=sessions,
        tools=(),
        renderer=FakeRenderer(),
        choose_engine=single_engine(engine),
        config=EpisodeConfig(
            max_turns=4,
            max_new_tokens=8,
            max_context_tokens=512,
            reset_deadline_s=env_deadline_s,
            env_deadline_s=env_deadline_s,
        ),
        run_seed=0,
    )


def children_of(pid: int) -> str:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text()


@pytest.mark.parametrize("deed", ["exit", "raise", "nothing"])
async def test_env_01_after_a_group_no_process_is_left(deed: str) -> None:
    before = children()
    async with open_process_sessions(EnvSource(target=ROGUES, arguments={"deed": deed, "at": "2"})) as sessions:
        admitted = AdmittedGroup(group_id=0, task=TASK, start_version=0)
        group = await run_group(admitted, group_size=3, setup=setup_over(sessions))
        (template,) = children() - before
        assert children_of(template) == ""
    end = EpisodeEnd.COMPLETED if deed == "nothing" else EpisodeEnd.ENV_ERROR
    assert [trajectory.end for trajectory in group.trajectories] == [end] * 3
    assert children() == before


def end_of_a_controller(how: signal.Signals, tmp_path: Path) -> tuple[int, str]:
    """Its exit code and last words; whoever outlives it fails the test."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    command = [sys.executable, "-m", "tests.faults.victim", str(fifo)]
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) as controller:
        pids = [int(pid) for pid in fifo.read_text().split()]
        ends = [os.pidfd_open(pid) for pid in pids]
        controller.send_signal(how)
        try:
            _, errors = controller.communicate(timeout=120)
        except subprocess.TimeoutExpired as late:
            controller.kill()
            pytest.fail(f"the controller did not end, and said: {late.stderr!r}")
    assert len(pids) == 3
    for end in ends:
        readable, _, _ = select.select([end], [], [], 5.0)
        os.close(end)
        assert readable, "a process outlived its controller by five seconds"
    return controller.returncode, errors


def test_env_03_nothing_outlives_a_controller_that_is_killed(tmp_path: Path) -> None:
    assert end_of_a_controller(signal.SIGKILL, tmp_path)[0] == -signal.SIGKILL


def test_env_05_nothing_outlives_a_controller_that_is_interrupted(tmp_path: Path) -> None:
    code, errors = end_of_a_controller(signal.SIGINT, tmp_path)
    assert code in (-signal.SIGINT, 1, 130)
    assert "KeyboardInterrupt" in errors


async def test_env_01_an_env_process_killed_in_its_step_costs_its_own_episode_only(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    doomed = EnvSource(target=ROGUES, arguments={"deed": "hang", "at": "2", "announce": str(fifo)})
    groups: list[Group] = []

    async def run(setup: EpisodeSetup) -> None:
        admitted = AdmittedGroup(group_id=0, task=TASK, start_version=0)
        groups.append(await run_group(admitted, group_size=4, setup=setup))

    async with open_process_sessions(doomed) as hanging, open_process_sessions(EnvSource(target=ROGUES)) as sessions:
        made = iter([sessions, hanging, sessions, sessions])
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run, setup_over(lambda task: next(made)(task)))
            (pid,) = map(int, (await trio.to_thread.run_sync(fifo.read_text)).split())
            os.kill(pid, signal.SIGKILL)
    ends = sorted((t.end.value, len(t.turns), t.reward) for t in groups[0].trajectories if t.reward is not None)
    assert ends == [("completed", 2, 1.0)] * 3
    (lost,) = (t for t in groups[0].trajectories if t.reward is None)
    assert (lost.end, len(lost.turns)) == (EpisodeEnd.ENV_ERROR, 2)
    assert lost.error == "a/train/0/0: step got no answer: its process was killed by SIGKILL"


@pytest.mark.parametrize("at", ["reset", "1"])
async def test_env_12_a_reset_or_step_that_never_ends_is_an_env_timeout(at: str) -> None:
    async with open_process_sessions(EnvSource(target=ROGUES, arguments={"deed": "spin", "at": at})) as sessions:
        trajectory = await run_episode(TASK, 0, 0, setup=setup_over(sessions, env_deadline_s=1.0))
    assert (trajectory.end, trajectory.reward) == (EpisodeEnd.ENV_TIMEOUT, None)


async def played(registry: WorkerRegistry, turn_s: float) -> tuple[EpisodeEnd, float | None, str]:
    trajectory = await run_episode(TASK, 0, 0, setup=setup_over(registry.session, turn_s=turn_s))
    return trajectory.end, trajectory.reward, trajectory.error


async def test_env_13_a_turn_slower_than_the_expiry_says_so_and_earns_nothing(autojump_clock: MockClock) -> None:
    log = SessionLog()
    make = scripted_sessions(EnvScript(rewards=(0.0, 1.0)), log)
    config = HostConfig(idle_expiry_s=100.0)
    async with open_session_host({"a": make}, config) as host, open_worker_registry() as registry:
        registry.register("w", host, {"a": 1}, beats=False)
        assert await played(registry, turn_s=99.0) == (EpisodeEnd.COMPLETED, 1.0, "")
        end, reward, error = await played(registry, turn_s=101.0)
        assert (end, reward, log.num_open) == (EpisodeEnd.ENV_ERROR, None, 0)
        assert "session_expired: nobody used it for 100.0 s" in error


async def test_env_14_sessions_share_no_state() -> None:
    async with open_process_sessions(EnvSource(target="tests.faults.shared_state:writers")) as sessions:
        for name in ("first", "second"):
            session = sessions(TASK)
            await session.start()
            await session.interact(Action(content=name))
            await session.close()
        alive, third = sessions(TASK), sessions(TASK)
        await alive.start()
        await alive.interact(Action(content="alive"))
        assert (await third.start())[0].content == "0 rows"
        assert (await third.interact(Action(content="third"))).messages[0].content == "third"
        await third.close()
        await alive.close()


async def test_env_18_a_controller_started_again_meets_no_session_of_its_own_past(autojump_clock: MockClock) -> None:
    log = SessionLog()
    script = EnvScript(rewards=(0.0, 1.0), step_s=1.0)
    async with open_session_host({"a": scripted_sessions(script, log)}, HostConfig(idle_expiry_s=700.0)) as host:
        async with open_worker_registry() as killed:  # it never gets to close its session
            killed.register("w", host, {"a": 4})
            session = killed.session(TASK)
            await session.reserve()
            await session.start()
            await session.interact(Action())
        async with open_worker_registry() as registry:
            registry.register("w", host, {"a": 4})
            for _ in range(3):
                assert await played(registry, turn_s=0.0) == (EpisodeEnd.COMPLETED, 1.0, "")
            assert host.statistics().num_live == 1
            await trio.sleep(701.0)
            assert (host.statistics().num_live, host.statistics().num_expired, log.num_open) == (0, 1, 0)
