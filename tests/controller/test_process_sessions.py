"""Envs in processes of their own, on the real clock: whatever one does, only its episode ends, and nothing is left."""

import itertools
import math
import os
import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trio
import trio.testing

from agentrl_jax.controller.process_sessions import open_process_sessions
from agentrl_jax.controller.process_trees import children
from agentrl_jax.env import Action, EnvRegistry, EnvSource, FamilyOptions, Message, ToolCall
from agentrl_jax.errors import ConfigError, EnvError, EnvTimeout
from agentrl_jax.types import EpisodeEnd
from envs import register_all
from tests.controller.rogue_sessions import (
    TASK,
    announced,
    failure_during,
    is_alive,
    rogues,
    started,
    template_pid,
)


@pytest.fixture
def fifo(tmp_path: Path) -> Path:
    os.mkfifo(tmp_path / "fifo")
    return tmp_path / "fifo"


async def test_an_episode_of_a_real_family_is_the_same_as_in_this_process() -> None:
    registry = EnvRegistry()
    register_all(registry)
    options = FamilyOptions(seed=3)
    kg = registry.make("kg", options)
    task = kg.task("eval", 5)
    action = Action(calls=(ToolCall(name="query", arguments={"entity": "Bob", "relation": "rival"}),))
    env = kg.make(task)
    async with open_process_sessions(registry.source("kg", options)) as sessions:
        session = sessions(task)
        assert await session.start() == env.reset()
        for _ in range(3):
            assert await session.interact(action) == env.step(action)
        await session.close()


async def test_what_a_policy_may_write_arrives_unchanged() -> None:
    arguments = {"text": "\ud800 \x00 \u2028 ü", "number": 10**30, "nan": math.nan, "nested": [{"a": None}, True, -0.5]}
    async with rogues() as sessions, started(sessions) as session:
        result = await session.interact(Action(calls=(ToolCall(name="f\ud800", arguments=arguments),)))
        assert result.messages == (Message(role="tool", content=f"1: f\ud800 {arguments!r}"),)
        result = await session.interact(Action(content="x" * 3_000_000))
        assert (result.reward, result.end) == (1.0, EpisodeEnd.COMPLETED)


async def test_sessions_share_what_the_family_loaded_and_nothing_else() -> None:
    async with rogues(num_steps=9) as sessions, started(sessions) as first, started(sessions) as second:
        for number in (1, 2, 3):
            assert (await first.interact(Action())).messages[0].content == f"{number}: "
        assert (await second.interact(Action())).messages[0].content == "1: "


DEATHS = {
    "exit": "its process exited with code 3, after printing:\ngoing down",
    "segfault": "its process was killed by SIGSEGV, after printing:\nFatal Python error: Segmentation fault",
    "close_descriptors": "its process was killed by SIGKILL",
}


@pytest.mark.parametrize(("deed", "text"), DEATHS.items())
async def test_a_process_that_dies_is_an_env_error_that_says_how(deed: str, text: str) -> None:
    async with rogues(deed=deed, at="2") as sessions, started(sessions) as other:
        async with started(sessions) as session:
            await session.interact(Action())
            with pytest.raises(EnvError, match="rogue/train/0/0: step got no answer") as caught:
                await session.interact(Action())
            assert text in str(caught.value)
            with pytest.raises(EnvError, match="got no answer"):
                await session.interact(Action())
        assert (await other.interact(Action())).end is None


@pytest.mark.parametrize("where", ["reset", "1", "close"])
async def test_what_an_env_raises_is_its_error_and_no_death(where: str) -> None:
    async with rogues(deed="raise", at=where) as sessions:
        session = sessions(TASK)
        failures = []
        for call in (session.start, lambda: session.interact(Action()), session.close):
            try:
                await call()
            except EnvError as error:
                failures.append(str(error))
        what = {"1": "step"}.get(where, where)
        assert failures == [f"rogue/train/0/0: {what} raised ValueError: out of order"]


async def test_sys_exit_is_the_envs_error_too() -> None:
    async with rogues(deed="sys_exit") as sessions, started(sessions) as session:
        with pytest.raises(EnvError, match="step raised SystemExit: 4"):
            await session.interact(Action())
        assert (await session.interact(Action())).end is EpisodeEnd.COMPLETED


async def test_what_an_env_prints_disturbs_nothing_and_never_blocks_it(capfd: pytest.CaptureFixture[str]) -> None:
    async with rogues(deed="scribble") as sessions, started(sessions) as session:
        for _ in range(2):
            await session.interact(Action())
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("answer", [b"bytes", 5, ["a"]])
async def test_an_answer_that_is_no_message_is_the_envs_error(answer: object) -> None:
    async with rogues(answer="text") as sessions, started(sessions) as session:
        assert (await session.interact(Action())).messages[0].content == "text"
    if not isinstance(answer, bytes):  # the source's arguments are JSON
        async with rogues(answer=answer) as sessions, started(sessions) as session:
            with pytest.raises(EnvError, match="expected a Reply"):
                await session.interact(Action())


@pytest.mark.parametrize("deed", ["hang", "ignore_sigterm", "spin"])
@pytest.mark.parametrize("where", ["reset", "1"])
async def test_a_deadline_kills_the_process_and_all_that_it_started(deed: str, where: str, fifo: Path) -> None:
    async with rogues(deed=deed, at=where, announce=str(fifo), with_children=True) as sessions:
        session = sessions(TASK)

        async def play() -> None:
            await session.start()
            await session.interact(Action())

        async with trio.open_nursery() as nursery:
            nursery.start_soon(play)
            pids = await announced(fifo)
            assert [is_alive(pid) for pid in pids] == [True] * 3
            nursery.cancel_scope.cancel()
        await session.close()
        assert [is_alive(pid) for pid in pids] == [False] * 3


async def test_a_close_that_hangs_is_killed_by_its_deadline(fifo: Path) -> None:
    async with rogues(deed="hang", at="close", announce=str(fifo)) as sessions:
        session = sessions(TASK)
        await session.start()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(session.close)
            (pid,) = await announced(fifo)
            nursery.cancel_scope.cancel()
        assert not is_alive(pid)


async def test_processes_left_behind_by_a_good_episode_are_ended_with_it(fifo: Path) -> None:
    async with rogues(announce=str(fifo), with_children=True) as sessions:
        async with started(sessions) as session, trio.open_nursery() as nursery:
            nursery.start_soon(session.interact, Action())
            pids = await announced(fifo)
        assert [is_alive(pid) for pid in pids] == [False] * 3


async def test_killing_one_process_ends_one_episode(fifo: Path) -> None:
    async def kill() -> None:
        (pid,) = await announced(fifo)
        os.kill(pid, signal.SIGKILL)

    rogue = rogues(deed="hang", at="2", announce=str(fifo))
    async with rogue as sessions, started(sessions) as other, started(sessions) as session:
        await session.interact(Action())
        assert await failure_during(session, kill) == (
            "rogue/train/0/0: step got no answer: its process was killed by SIGKILL"
        )
        assert (await other.interact(Action())).end is None


async def test_a_session_that_nobody_closed_ends_with_the_block(fifo: Path) -> None:
    async with rogues(deed="hang", announce=str(fifo), with_children=True) as sessions:
        session = sessions(TASK)
        await session.start()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(session.interact, Action())
            pids = await announced(fifo)
            nursery.cancel_scope.cancel()
        session._child.release()  # type: ignore[attr-defined]
    assert [is_alive(pid) for pid in pids] == [False] * 3


@contextmanager
def few_descriptors(pid: int, spare: int) -> Iterator[None]:
    """Let the process `pid` open only `spare` descriptors more."""
    limits = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    used = set(map(int, os.listdir(f"/proc/{pid}/fd")))
    bound = next(n for n in itertools.count() if n - len(used & set(range(n))) == spare and n not in used)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (bound, limits[1]))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, limits)


@pytest.mark.parametrize("spare", [0, 1, 2])
async def test_too_many_open_files_cost_one_session_and_no_other(spare: int) -> None:
    async with rogues() as sessions, started(sessions) as other:
        with few_descriptors(template_pid(), spare), pytest.raises(EnvError, match=r"too many open files|cannot fork"):
            async with started(sessions):
                pass
        with few_descriptors(os.getpid(), spare), pytest.raises(EnvError, match="ulimit -n"):
            async with started(sessions):
                pass
        async with started(sessions):
            assert (await other.interact(Action())).end is None


async def test_what_an_env_starts_inherits_no_descriptor_of_ours(tmp_path: Path) -> None:
    listing = tmp_path / "descriptors"
    settings = {"deed": "list_descriptors", "announce": str(listing)}
    async with rogues(**settings) as sessions, started(sessions) as session:
        await session.interact(Action())
    null, *outputs = listing.read_text().split()
    assert null == "/dev/null"
    assert len(outputs) == 2
    assert outputs[0] == outputs[1]


async def test_closing_needs_no_start_and_interact_does() -> None:
    async with rogues() as sessions:
        session = sessions(TASK)
        with pytest.raises(EnvError, match="before start"):
            await session.interact(Action())
        await session.close()
        with trio.CancelScope() as scope:
            scope.cancel()
            await session.start()
        with trio.fail_after(4.0):  # below the patience for a process that does not die: there is none
            await session.close()


async def test_an_env_may_declare_its_own_timeout() -> None:
    source = EnvSource(target="tests.controller.timed_out:envs")
    async with open_process_sessions(source) as sessions:
        session = sessions(TASK)
        with pytest.raises(EnvTimeout, match="the sandbox did not start in time"):
            await session.start()
        await session.close()


@pytest.mark.parametrize(
    ("target", "text"),
    [
        ("no.such.module:envs", "ModuleNotFoundError: No module named 'no'"),
        ("agentrl_jax.env:nothing", "ConfigError: agentrl_jax.env has no function 'nothing'"),
        ("agentrl_jax.env", "ConfigError: expected module:function, got 'agentrl_jax.env'"),
        ("os:_exit", "ended with code 7"),
    ],
)
async def test_a_source_that_does_not_load_is_refused_at_the_start(
    target: str, text: str, capfd: pytest.CaptureFixture[str]
) -> None:
    arguments = {"status": 7} if target.startswith("os") else {}
    processes = children()
    with pytest.raises(ConfigError) as caught:
        async with open_process_sessions(EnvSource(target=target, arguments=arguments)):
            raise AssertionError("must not start")
    assert text in str(caught.value)
    assert children() == processes
