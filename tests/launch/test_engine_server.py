"""`python -m launch.engine`: what it refuses, and a server process that is used, killed, started again and ended."""

import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import msgspec
import pytest
import trio

from agentrl_jax.engines.http import open_http_client
from agentrl_jax.engines.sglang import open_sglang_engine
from agentrl_jax.engines.weight_folder import tensor_shapes
from agentrl_jax.errors import ConfigError, EngineError
from agentrl_jax.models.config import ModelConfig
from agentrl_jax.models.params import init_params
from agentrl_jax.models.save import save_pretrained
from agentrl_jax.testing.tokenizers import toy_tokenizer, write_toy_tokenizer
from agentrl_jax.types import SamplingParams, as_ids
from launch.engine import main, weights_loader

MODEL = ModelConfig(
    vocab_size=512, width=16, num_layers=1, num_heads=2, num_kv_heads=1, head_dim=8, mlp_width=16, rope_theta=1e4
)
SMALL = ["--max-context-tokens", "64", "--engine.num-slots", "2", "--engine.prefill-shapes", "2", "16"]
PARAMS = SamplingParams(temperature=1.0, max_new_tokens=20, seed=3, stop_ids=(511,))
PROMPT = as_ids([5, 6, 7])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A policy folder."""
    source, path = tmp_path_factory.mktemp("tokenizer"), tmp_path_factory.mktemp("policy")
    write_toy_tokenizer(source, "qwen2_5")
    assert toy_tokenizer("qwen2_5").vocab_size <= MODEL.vocab_size
    save_pretrained(init_params(MODEL, 0), MODEL, path, dtype="float32", source=source)
    return path


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--host", "0.0.0.0"], "--token"),
        (["--host", "0.0.0.0", "--token", ""], "printable ASCII"),
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


def test_weights_of_another_architecture_are_refused(folder: Path) -> None:
    assert weights_loader(MODEL)(folder)
    with pytest.raises(ConfigError, match="expected the architecture that is served"):
        weights_loader(replace(MODEL, rope_theta=5.0))(folder)


@asynccontextmanager
async def server(folder: Path, port: int) -> AsyncIterator[tuple[trio.Process, int]]:
    command = [sys.executable, "-m", "launch.engine", "--model", str(folder), "--port", str(port), *SMALL]
    async with trio.open_nursery() as nursery:
        run = partial(trio.run_process, command, stdout=subprocess.PIPE, check=False)
        process = await nursery.start(run)
        said = b""
        while not (found := re.search(rb"serving .* at http://127\.0\.0\.1:(\d+)\n", said)):
            data = await process.stdout.receive_some()
            assert data, said
            said += data
        yield process, int(found[1])
        process.kill()


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
                assert (await again.stdout.receive_some()) == b"stopped\n"
