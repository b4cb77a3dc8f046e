"""`--tasks remote:NAME` in a run of several processes."""

import sys
from pathlib import Path

import pytest

from agentrl_jax.config import TrainConfig
from agentrl_jax.controller.remote_config import ListenConfig, RemoteTasks
from agentrl_jax.errors import ConfigError
from launch.config import make_families
from launch.train import main


def settings(tasks: str, wait_s: float) -> TrainConfig:
    remote = RemoteTasks(listen=ListenConfig(port=0), wait_s=wait_s)
    return TrainConfig(tasks=tasks, remote=remote, model=Path("nowhere"), with_warm_up=False)


def test_only_the_first_process_is_the_workers_controller(capsys: pytest.CaptureFixture[str]) -> None:
    families = make_families(settings("remote:three,alfworld", 600.0), leads=False)
    assert [family.name for family in families] == ["alfworld"]
    assert capsys.readouterr().out == ""  # it listens nowhere
    with pytest.raises(ConfigError, match="no worker for remote:three"):
        make_families(settings("remote:three,alfworld", 0.1), leads=True)
    assert "env workers may register" in capsys.readouterr().out


def test_a_process_that_follows_asks_for_no_workers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seen: list[bool] = []

    def make(config: TrainConfig, *, leads: bool) -> tuple[object, ...]:
        seen.append(leads)
        raise ConfigError("enough")

    monkeypatch.setattr(sys.modules[main.__module__], "make_families", make)
    group = ["--coordinator-address=localhost:1", "--num-processes=2"]
    for number in range(2):
        with pytest.raises(SystemExit):
            main([*group, f"--process-id={number}", f"--run-dir={tmp_path}/{number}"])
    assert seen == [True, False]
