"""Tokens in files: who may read them, and what uses them."""

from pathlib import Path

import pytest

from agentrl_jax.controller.remote_config import ListenConfig
from agentrl_jax.controller.wire_access import Access
from agentrl_jax.engines.token_files import chosen_token
from agentrl_jax.errors import ConfigError
from launch.engine import EngineServerConfig
from launch.worker import WorkerConfig


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text("s3cret\n")
    path.chmod(0o600)
    return path


def test_a_token_stands_in_one_place(file: Path) -> None:
    assert chosen_token(None, None) is None
    assert chosen_token("a", None) == "a"
    assert chosen_token(None, file) == "s3cret"
    with pytest.raises(ConfigError, match="--key and --key-file say the same: leave one of them out"):
        chosen_token("a", file, flag="--key")


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o777])
def test_a_file_that_others_may_use_is_no_secret(file: Path, mode: int) -> None:
    file.chmod(mode)
    with pytest.raises(ConfigError, match=f"mode {mode:o}.; chmod 600"):
        chosen_token(None, file)


def test_a_file_without_a_token_is_refused(file: Path) -> None:
    file.write_text(" \n")
    with pytest.raises(ConfigError, match="is empty"):
        chosen_token(None, file)
    file.write_bytes(b"\xff")
    for path in (file, file.parent, file.with_name("none")):
        with pytest.raises(ConfigError, match="expected a file with a token, in ASCII"):
            chosen_token(None, path)


def test_every_program_takes_its_token_from_a_file(file: Path) -> None:
    access = Access(ListenConfig(host="0.0.0.0", token_file=file))
    assert access.admits({"authorization": "Bearer s3cret"}, "1.2.3.4")
    assert not access.admits({}, "1.2.3.4")
    assert EngineServerConfig(model=Path("m"), host="0.0.0.0", token_file=file).secret == "s3cret"
    worker = WorkerConfig(task="kg", host="0.0.0.0", token_file=file, controller_token_file=file)
    assert (worker.place.token, worker.place.controller_token) == ("s3cret", "s3cret")
