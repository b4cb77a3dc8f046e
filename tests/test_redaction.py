"""No secret reaches a file of a run directory: whatever names it, tells it, or fails with it."""

from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from agentrl_jax.config import TrainConfig
from agentrl_jax.controller.episode_config import EpisodeConfig
from agentrl_jax.controller.live_session import Ended, LiveSession
from agentrl_jax.controller.remote_config import ListenConfig, RemoteTasks
from agentrl_jax.controller.sessions import Session
from agentrl_jax.env import Message
from agentrl_jax.errors import EngineError, EnvError, EnvTimeout
from agentrl_jax.redaction import redacted, without_passwords, without_secrets
from agentrl_jax.report.write import write_report
from agentrl_jax.runlog import RunLog
from launch import devices
from tests.algo.record_builders import make_trajectory

SECRET = "c0rrect-h0rse"
ADDRESS = f"http://any:{SECRET}@host:5020/api"


def test_no_file_of_a_run_directory_has_a_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = ["train", f"--remote.listen.token={SECRET}", "--controller-token", SECRET, f"--engines=sglang:{ADDRESS}"]
    monkeypatch.setattr(devices.sys, "argv", command)
    config = TrainConfig(
        tasks="remote:db",
        model=Path("model"),
        max_context_tokens=512,
        engines=(f"sglang:{ADDRESS}",),
        lagging_engines=("sglang:http://other:1",),
        remote=RemoteTasks(listen=ListenConfig(token=SECRET)),
    )
    lost = replace(make_trajectory(0.0), error=f"{ADDRESS} went away")
    mesh = devices.make_mesh(devices.MeshShape(data=1, fsdp=1, tensor=1))
    with RunLog(tmp_path / "run") as log:
        log.write_config(config.to_json())
        log.log_metrics("start", {**devices.provenance(mesh), "changes": config.changes_from(TrainConfig())})
        log.log_metrics("warning", {"step": 1, "name": "lost", "env": "", "text": f"lost {ADDRESS}"})
        log.log_episode(1, lost, lambda ids: "")
    write_report(tmp_path / "run")
    files = [path for path in (tmp_path / "run").rglob("*") if path.is_file()]
    assert len(files) == 4
    for path in files:
        text = path.read_text(encoding="utf-8")
        assert SECRET not in text, path
        assert "host:5020" in text, path


@pytest.mark.parametrize("failure", [EnvError, EnvTimeout, EngineError])
async def test_what_is_said_of_an_episode_has_no_secret(failure: type[Exception]) -> None:
    class Lost:
        async def reserve(self) -> None:
            raise failure(f"{ADDRESS} went away")

        close = reserve

    async def take_turns(messages: tuple[Message, ...]) -> Ended:
        raise AssertionError("there is no session")

    config = EpisodeConfig(max_turns=1, max_new_tokens=1, max_context_tokens=9)
    session = LiveSession(cast("Session", Lost()), make_trajectory(0.0).task, config, trio.current_time)
    end, said = await session.play(take_turns)
    assert end.is_infrastructure
    assert said == "http://***@host:5020/api went away"
    assert await session.close([]) == [f"closing: {said}"]


@pytest.mark.parametrize(
    "given_arguments",
    [
        ["--token", "s"],
        ["--token=s"],
        ["--controller-token", "s"],
        ["--controller_token", "s"],
        ["--controller_token=s"],
        ["--remote.listen.token=s"],
        ["--API-KEY", "s"],
        ["--db.password=s"],
    ],
)
def test_values_of_secret_flags_are_hidden(given_arguments: list[str]) -> None:
    assert "".join(without_secrets(given_arguments)).endswith("***")


@pytest.mark.parametrize("argument", ["--token-file=t", "--max-new-tokens=9", "--tasks=kg", "m@x", "http://host/a@b"])
def test_other_arguments_stay_as_they_are(argument: str) -> None:
    assert without_secrets([argument]) == [argument]


@given(st.text("ab:@", min_size=1), st.text("cd/ ", max_size=5))
def test_what_stands_before_an_at_sign_is_gone_and_the_rest_stays(secret: str, rest: str) -> None:
    assert without_passwords(f"x http://{secret}@host{rest}") == f"x http://***@host{rest}"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("docker:ssh://me@box", "docker:ssh://me@box"),
        ("ssh://me:p@box", "ssh://***@box"),
        ("tcp://me@box", "tcp://***@box"),
    ],
)
def test_the_name_alone_that_ssh_asks_for_is_no_secret(text: str, shown: str) -> None:
    assert without_passwords(text) == shown


def test_every_text_of_nested_values_is_looked_at() -> None:
    found = redacted({"a": [("http://u:p@h", 1)], "b": {"c": "http://t@h"}, "d": None})
    assert found == {"a": [["http://***@h", 1]], "b": {"c": "http://***@h"}, "d": None}
