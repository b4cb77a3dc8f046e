"""Sessions of rogue envs in processes, and what happens to their processes."""

import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import trio
import trio.testing

from agentrl_jax.controller.process_sessions import open_process_sessions
from agentrl_jax.controller.process_trees import children
from agentrl_jax.controller.sessions import Session, SessionFactory
from agentrl_jax.env import Action, EnvSource
from agentrl_jax.errors import EnvError
from agentrl_jax.types import Task

TASK = Task(env="rogue", split="train", index=0, seed=0)


@asynccontextmanager
async def rogues(**settings: object) -> AsyncIterator[SessionFactory]:
    """Sessions of rogue envs; afterwards no process and no descriptor may be left."""
    descriptors, processes = set(os.listdir("/proc/self/fd")), children()
    source = EnvSource(target="agentrl_jax.testing.rogue_envs:rogue_envs", arguments=settings)
    async with open_process_sessions(source) as sessions:
        yield sessions
    assert children() == processes
    assert set(os.listdir("/proc/self/fd")) == descriptors


@asynccontextmanager
async def started(sessions: SessionFactory) -> AsyncIterator[Session]:
    session = sessions(TASK)
    try:
        await session.reserve()
        await session.start()
        yield session
    finally:
        await session.close()


async def failure_during(session: Session, kill: Callable[[], Awaitable[None]]) -> str:
    """What a step fails with while `kill` happens."""
    failures = []

    async def step() -> None:
        try:
            await session.interact(Action())
        except EnvError as error:
            failures.append(str(error))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(step)
        await kill()
    return failures[0]


async def announced(fifo: Path) -> list[int]:
    return [int(pid) for pid in (await trio.to_thread.run_sync(fifo.read_text)).split()]


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def has_ended(pid: int) -> bool:
    """Also if nobody has reaped it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def template_pid() -> int:
    (pid,) = (p for p in children() if b"process_template" in Path(f"/proc/{p}/cmdline").read_bytes())
    return pid


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)
