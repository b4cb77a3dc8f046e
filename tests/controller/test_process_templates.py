"""The process that session processes are forked from: when it is slow, and when it dies."""

import os
import signal
import socket
from pathlib import Path

import pytest
import trio
import trio.testing

from agentrl_jax.controller.process_sessions import open_process_sessions
from agentrl_jax.env import Action, EnvSource
from agentrl_jax.errors import EnvError
from tests.controller.rogue_sessions import (
    TASK,
    announced,
    failure_during,
    has_ended,
    is_alive,
    rogues,
    started,
    stopped,
    template_pid,
)


@pytest.fixture
def fifo(tmp_path: Path) -> Path:
    os.mkfifo(tmp_path / "fifo")
    return tmp_path / "fifo"


async def test_a_template_that_dies_takes_its_sessions_along_and_is_started_anew(fifo: Path) -> None:
    async def kill() -> None:
        await announced(fifo)
        os.kill(template_pid(), signal.SIGKILL)

    async with rogues(deed="hang", announce=str(fifo)) as sessions:
        async with started(sessions) as session:
            assert "lost with the template process" in await failure_during(session, kill)
        async with started(sessions):
            pass


async def test_what_sessions_had_started_dies_with_a_killed_template(fifo: Path) -> None:
    pids = []

    async def kill() -> None:
        pids.extend(await announced(fifo))
        os.kill(template_pid(), signal.SIGKILL)

    async with rogues(deed="hang", announce=str(fifo), with_children=True) as sessions, started(sessions) as session:
        assert "lost with the template process" in await failure_during(session, kill)
        assert [has_ended(pid) for pid in pids] == [True] * 3


async def test_a_template_that_dies_while_it_starts_a_session_costs_that_one() -> None:
    async with rogues() as sessions:
        async with trio.open_nursery() as nursery:

            async def play() -> None:
                with pytest.raises(EnvError, match="died while it started a session"):
                    async with started(sessions):
                        pass

            pid = template_pid()
            with stopped(pid):
                nursery.start_soon(play)
                await trio.testing.wait_all_tasks_blocked()
                os.kill(pid, signal.SIGKILL)
        async with started(sessions):
            pass


async def test_who_gives_up_waiting_for_a_new_template_does_not_end_its_start(tmp_path: Path) -> None:
    """Also a family that loads slower than any session waits comes back."""
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    source = EnvSource(target="tests.controller.slow_family:envs", arguments={"gate": str(gate)})

    async def open_gate() -> None:
        await trio.to_thread.run_sync(gate.write_text, "come in")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(open_gate)
        async with open_process_sessions(source) as sessions:
            async with started(sessions) as session:
                first = template_pid()
                os.kill(first, signal.SIGKILL)
                with pytest.raises(EnvError, match="lost with the template process"):
                    await session.interact(Action())
            for _ in range(2):
                session = sessions(TASK)
                with trio.move_on_after(0.05) as patience:
                    await session.start()
                assert patience.cancelled_caught
                await session.close()
            second = template_pid()
            async with trio.open_nursery() as waiting:
                waiting.start_soon(open_gate)
                async with started(sessions):
                    assert template_pid() == second != first


async def test_a_new_template_that_does_not_load_is_an_env_error_and_tried_again(tmp_path: Path) -> None:
    switch = tmp_path / "exists"
    switch.touch()
    source = EnvSource(target="tests.controller.slow_family:envs", arguments={"gate": str(switch)})
    async with open_process_sessions(source) as sessions:
        async with started(sessions) as session:
            switch.unlink()
            os.kill(template_pid(), signal.SIGKILL)
            with pytest.raises(EnvError, match="lost with the template process"):
                await session.interact(Action())
        with pytest.raises(EnvError, match=r"died, and the process for .* could not make its envs: FileNotFoundError"):
            async with started(sessions):
                pass
        switch.touch()
        async with started(sessions):
            pass


async def test_sigterm_of_the_template_ends_all_its_sessions(fifo: Path) -> None:
    pids = []

    async def kill() -> None:
        pids.extend(await announced(fifo))
        os.kill(template_pid(), signal.SIGTERM)

    async with rogues(deed="hang", announce=str(fifo), with_children=True) as sessions:
        session = sessions(TASK)
        await session.start()
        assert "killed by SIGKILL" in await failure_during(session, kill)
        assert [is_alive(pid) for pid in pids] == [False] * 3
        await session.close()


async def test_a_session_cancelled_before_its_process_exists_is_closed_like_any_other() -> None:
    async with rogues() as sessions:
        session = sessions(TASK)
        with stopped(template_pid()), trio.move_on_after(0.2) as patience:
            await session.start()
        assert patience.cancelled_caught
        await session.close()


async def test_sessions_that_start_while_the_template_is_busy_wait_for_each_other() -> None:
    async with rogues() as sessions, trio.open_nursery() as nursery:
        template = sessions(TASK)._template  # type: ignore[attr-defined]
        template._life.control.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)  # it holds a few requests

        async def play() -> None:
            async with started(sessions) as session:
                await session.interact(Action())

        with stopped(template_pid()):
            for _ in range(20):
                nursery.start_soon(play)
            await trio.testing.wait_all_tasks_blocked()
