"""`python -m launch.engine`: what it refuses, and a server process that is used, killed, started again and ended."""

import signal
import socket
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from agentrl_jax.engines.http import open_http_client
from agentrl_jax.engines.sglang import open_sglang_engine
from agentrl_jax.engines.weight_folder import tensor_shapes
from agentrl_jax.errors import ConfigError, EngineError
from agentrl_jax.models.params import init_params
from agentrl_jax.models.save import save_pretrained
from agentrl_jax.types import SamplingParams, as_ids
from launch.engine import main, weights_loader
from tests.launch.engine_process import MODEL, server, write_policy

PARAMS = SamplingParams(temperature=1.0, max_new_tokens=20, seed=3, stop_ids=(511,))
PROMPT = as_ids([5, 6, 7])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A policy folder."""
    path = tmp_path_factory.mktemp("policy")
    write_policy(path, tmp_path_factory.mktemp("tokenizer"))
    return path


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--host", "0.0.0.0"], "--token"),
        (["--host", "0.0.0.0", "--token", ""], "printable ASCII"),
        (["--token", "x", "--token-file", "/nowhere"], "leave one of them out"),
        (["--port", "70000"], "--port must be in"),
        (["--version", "-1"], "--version must be >= 0"),
        (["--max-context-tokens", "1"], "cache_tokens must be >= 2"),
        (["--model", "/nowhere"], "missing: config.json"),
    ],
)
def test_sec_03_and_other_settings_are_refused(
    folder: Path, flags: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit_:
        main([*([] if "--model" in flags else ["--model", str(folder)]), *flags])
    assert exit_.value.code == 2
    assert said in capsys.readouterr().err


def test_a_port_that_is_taken_is_refused_before_anything_is_loaded(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as taken, pytest.raises(SystemExit) as exit_:
        main(["--model", str(folder), "--port", str(taken.getsockname()[1])])
    assert exit_.value.code == 2
    printed = capsys.readouterr()
    assert "cannot listen on 127.0.0.1:" in printed.err
    assert "loading" not in printed.out


def test_weights_of_another_architecture_are_refused(folder: Path) -> None:
    assert weights_loader(MODEL)(folder)
    with pytest.raises(ConfigError, match="expected the architecture that is served"):
        weights_loader(replace(MODEL, rope_theta=5.0))(folder)


@pytest.mark.slow
async def test_a_server_process_from_start_to_end(folder: Path, tmp_path: Path) -> None:
    later = tmp_path / "later"
    save_pretrained(init_params(MODEL, 1), MODEL, later, dtype="float32")
    async with server(folder, 0) as (process, port):
        url = f"http://127.0.0.1:{port}"
        async with open_sglang_engine(url, tensors=tensor_shapes(folder), name="e") as engine:
            first = await engine.generate(PROMPT, PARAMS, session="s")
            await engine.publish(later, 3)
            second = await engine.generate(PROMPT, PARAMS, session="s")
            assert (set(first.versions), set(second.versions)) == ({0}, {3})
            assert first.ids.tolist() != second.ids.tolist()
            async with open_http_client(url) as client:
                body = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 4, "seed": 1}
                answer = await client.post("/v1/chat/completions", body, is_idempotent=True)
                assert len(msgspec.json.decode(answer.body)["choices"]) == 1
            process.kill()
            await process.wait()
            with pytest.raises(EngineError, match=f"{url}|cannot reach"):
                await engine.generate(PROMPT, PARAMS, session="s")
            async with server(folder, port) as (again, _):
                with pytest.raises(EngineError, match="it has been restarted"):
                    await engine.generate(PROMPT, PARAMS, session="s")
                assert (await engine.generate(PROMPT, PARAMS, session="s")).ids.tolist() == first.ids.tolist()
                again.send_signal(signal.SIGINT)
                assert await again.wait() == 0
                assert again.stdout is not None
                assert (await again.stdout.receive_some()) == b"stopped\n"
