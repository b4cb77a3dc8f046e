"""MEM: what thousands of episodes keep, leave open, or leave behind on disk."""

import os
import threading
from pathlib import Path

import pytest
import trio

from agentrl_jax.controller.episode import EpisodeConfig, EpisodeSetup, run_episode, single_engine
from agentrl_jax.controller.process_sessions import open_process_sessions
from agentrl_jax.controller.sessions import thread_sessions
from agentrl_jax.controller.statistics import SessionCounts
from agentrl_jax.env import Action, FamilyOptions
from agentrl_jax.runlog import RunLog
from agentrl_jax.testing.engine import FakeEngine
from agentrl_jax.testing.envs import EnvScript, ScriptedFamily
from agentrl_jax.testing.renderer import FakeRenderer
from benchmarks.controller_cases import slope
from launch.config import environments


def test_mem_02_resident_memory_does_not_grow_with_episodes() -> None:
    # A loop that kept its groups would grow by 13 MB; the benchmark, with twenty times the episodes, is stricter.
    assert slope(800, 1_200)["rss_mb_per_1000_episodes"] < 2.0


async def play(count: int, log: RunLog | None = None) -> None:
    """Episodes on worker threads, eight at a time."""
    family = ScriptedFamily(script=EnvScript(rewards=(0.0, 1.0)))
    counts = SessionCounts(thread_sessions(family.make, trio.CapacityLimiter(8)))
    setup = EpisodeSetup(
        sessions=counts,
        tools=(),
        renderer=FakeRenderer(),
        choose_engine=single_engine(FakeEngine(script=lambda prompt, sampling: [5])),
        config=EpisodeConfig(max_turns=4, max_new_tokens=8, max_context_tokens=512),
        run_seed=0,
    )

    async def play_some(number: int) -> None:
        for group_id in range(number, count, 8):
            trajectory = await run_episode(family.task("train", group_id % 8), group_id, 0, setup=setup)
            if log is not None:
                log.log_episode(1, trajectory, lambda ids: "")

    async with trio.open_nursery() as nursery:
        for number in range(8):
            nursery.start_soon(play_some, number)
    statistics = counts.statistics()
    assert (statistics.num_made, statistics.num_open, statistics.num_failed) == (count, 0, 0)


def num_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def num_children() -> int:
    children = Path("/proc/self/task").glob("*/children")
    return sum(len(path.read_text().split()) for path in children)


def test_mem_04_a_thousand_episodes_leave_no_descriptor_process_or_thread() -> None:
    trio.run(play, 16)
    before = (num_descriptors(), num_children())
    trio.run(play, 1000)
    assert (num_descriptors(), num_children()) == before
    assert threading.active_count() < 30  # idle workers of the thread pool end by themselves


def test_mem_06_logged_episodes_leave_one_file(tmp_path: Path) -> None:
    with RunLog(tmp_path / "run") as log:
        trio.run(play, 64, log)
    assert {path.name for path in (tmp_path / "run").rglob("*")} == {"batches", "metrics.jsonl", "episodes.jsonl"}


@pytest.mark.parametrize("name", ["kg", "knowledgegraph", "alfworld", "webshop", "dbbench"])
def test_mem_06_sessions_in_processes_leave_no_temporary_file(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither those that were closed, nor those that were killed in the middle."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    registry, options = environments(), FamilyOptions()
    family = registry.make(name, options)

    async def play_in_processes() -> None:
        async with open_process_sessions(registry.source(name, options)) as sessions:
            for index in range(4):
                session = sessions(family.task("train", index))
                await session.start()
                with trio.CancelScope() as scope:
                    if index % 2:
                        scope.cancel()
                    await session.interact(Action(content="Hm."))
                await session.close()

    trio.run(play_in_processes)
    assert list(tmp_path.rglob("*")) == []
