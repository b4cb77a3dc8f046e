"""Training runs whose envs run in processes of their own."""

import json
import os
from pathlib import Path

import pytest
import trio

from agentrl_jax.controller.process_trees import children
from agentrl_jax.controller.session_kinds import open_sessions
from agentrl_jax.controller.sessions import ThreadSession
from agentrl_jax.env import EnvSource
from agentrl_jax.errors import ConfigError
from agentrl_jax.testing.envs import ScriptedFamily
from agentrl_jax.types import Task
from launch.train import main
from tests.launch.tiny_run import tiny

ENDS_OF_A_POLICY = {"completed", "max_turns", "context_limit", "turn_truncated", "invalid_action"}


@pytest.mark.slow
def test_a_run_over_session_processes_trains_and_leaves_none(tmp_path: Path) -> None:
    processes = children()
    trained = ("--warm-up.copy-steps=80", "--warm-up.steps=80", "--episode.max-new-tokens=32", "--max-steps=1")
    kinds = ("--tasks=kg,alfworld", "--session-kind=process", "--task-session-kind", "alfworld", "thread")
    assert main(tiny(tmp_path / "run", *trained, *kinds)) == 0
    assert children() == processes
    lines = (tmp_path / "run" / "episodes.jsonl").read_text(encoding="ascii").splitlines()
    episodes = [json.loads(line) for line in lines]
    assert {episode["end"] for episode in episodes} <= ENDS_OF_A_POLICY
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert (config["session_kind"], config["task_session_kind"]) == ("process", {"alfworld": "thread"})


async def test_each_family_has_its_own_kind_and_its_own_threads() -> None:
    families = [ScriptedFamily(name=name) for name in ("a", "b", "c")]
    source = EnvSource(target="agentrl_jax.testing.rogue_envs:rogue_envs")
    kinds = {"a": "thread", "b": "process", "c": "thread"}
    async with open_sessions(families, kinds, {"b": source}, max_threads=3) as sessions:  # type: ignore[arg-type]
        made = {name: make(Task(env=name, split="train", index=0, seed=0)) for name, make in sessions.items()}
        assert [type(session).__name__ for session in made.values()] == [
            "ThreadSession",
            "ProcessSession",
            "ThreadSession",
        ]
        assert await made["b"].start()
        await made["b"].close()
    first, last = made["a"], made["c"]
    assert isinstance(first, ThreadSession)
    assert isinstance(last, ThreadSession)
    assert first._limiter is not last._limiter
    assert first._limiter.total_tokens == 3


async def test_a_family_without_a_source_cannot_run_in_processes() -> None:
    with pytest.raises(ConfigError, match="scripted has no source"):
        async with open_sessions([ScriptedFamily()], {"scripted": "process"}, {}, max_threads=1):
            await trio.lowlevel.checkpoint()


async def test_a_system_without_waitid_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "waitid")
    with pytest.raises(ConfigError, match="use --session-kind=thread"):
        async with open_sessions(
            [ScriptedFamily()], {"scripted": "process"}, {"scripted": EnvSource(target="a:b")}, max_threads=1
        ):
            await trio.lowlevel.checkpoint()
