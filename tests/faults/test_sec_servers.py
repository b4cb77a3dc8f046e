"""SEC-03: no command serves others without a token."""

from collections.abc import Callable, Sequence

import pytest

from agentrl_jax.engines.http_server import is_loopback
from launch.controller import ControllerConfig
from launch.controller import main as controller
from launch.engine import EngineServerConfig
from launch.engine import main as engine
from launch.worker import WorkerConfig
from launch.worker import main as worker

COMMANDS: dict[str, tuple[Callable[[Sequence[str]], int], list[str]]] = {
    "controller": (controller, []),
    "engine": (engine, ["--model=no-folder"]),
    "worker": (worker, ["no-environment"]),
}


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.0.1"])
@pytest.mark.parametrize("command", COMMANDS)
def test_sec_03_a_server_that_others_can_reach_needs_a_token(
    command: str, host: str, capsys: pytest.CaptureFixture[str]
) -> None:
    main, flags = COMMANDS[command]
    for token in ([], ["--token="]):
        with pytest.raises(SystemExit) as caught:
            main([*flags, f"--host={host}", *token])
        assert caught.value.code == 2
        assert "token" in capsys.readouterr().err


def test_sec_03_what_is_not_asked_for_stays_on_this_machine() -> None:
    hosts = ControllerConfig().listen.host, EngineServerConfig(model="m").host, WorkerConfig(task="kg").host
    assert all(map(is_loopback, hosts))
