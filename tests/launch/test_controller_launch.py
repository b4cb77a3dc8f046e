"""`python -m launch.controller`: what it says, what it refuses, how it ends."""

import json
import re
import signal
import subprocess
import sys
from functools import partial

import pytest
import trio

from agentrl_jax.controller.remote_config import RemoteConfig
from agentrl_jax.engines.http import open_http_client
from agentrl_jax.errors import ConfigError
from launch.controller import ControllerConfig, main


async def test_it_serves_until_it_is_told_to_end() -> None:
    command = [sys.executable, "-m", "launch.controller", "--port", "0"]
    async with trio.open_nursery() as nursery:
        run = partial(trio.run_process, command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False)
        process = await nursery.start(run)
        said = b""
        with trio.fail_after(60):
            while not (found := re.search(rb"controller at http://127\.0\.0\.1:(\d+)/api and grpc://", said)):
                data = await process.stdout.receive_some()
                assert data, said
                said += data
            async with open_http_client(f"http://127.0.0.1:{int(found[1])}") as client:
                assert json.loads((await client.get("/api/version")).body) == {"variant": "nova", "version": 1}
                assert (await client.get("/")).status == 200
            process.send_signal(signal.SIGTERM)
            assert await process.wait() == 0
            assert (await process.stdout.receive_some()).endswith(b"stopped\n")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--host", "0.0.0.0"], "can be reached from other machines"),
        (["--port", "99999"], "--port must be in"),
        (["--trusted", "10.0.0.0/8"], "trusted networks have no effect without a token"),
        (["--long-timeout", "--interact-s", "5"], "--long-timeout sets interact_s"),
        (["--expire-s", "0"], "expire_s must be positive"),
        (["--coma-after-s", "500"], "coma_after_s < dead_after_s"),
        (["--host", "203.0.113.1", "--token", "x"], "cannot listen on 203.0.113.1:5020"),
        (["--host", "203.0.113.1", "--token-file", "/nowhere"], "--token-file /nowhere: expected a file with a token"),
    ],
)
def test_wrong_settings_are_one_paragraph(flags: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(flags)
    assert caught.value.code == 2
    assert message in capsys.readouterr().err


def test_long_timeouts_are_the_originals() -> None:
    timers = ControllerConfig(long_timeout=True).timers
    assert (timers.interact_s, timers.expire_s, timers.remember_s) == (600.0, 660.0, 1200.0)
    assert ControllerConfig().timers == RemoteConfig()
    with pytest.raises(ConfigError, match="must be positive"):
        RemoteConfig(interact_s=-1.0)
