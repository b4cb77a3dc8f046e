"""`agentrl-eval` as it is, against our controller and a stock worker: its dummy model, and one of our engines."""

import json
import os
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import trio

from agentrl_jax.controller.remote_config import ListenConfig
from agentrl_jax.testing.tokenizers import toy_tokenizer
from tests.agentrl.stock_processes import controller_at, free_port, stock_worker
from tests.controller.remote_world import num_taken
from tests.launch.engine_process import MODEL, server, write_policy

pytestmark = pytest.mark.agentrl


async def evaluate(python: Path, folder: Path, url: str, *flags: str) -> list[dict[str, Any]]:
    """Its results."""
    command = [str(python), "-m", "agentrl.eval", "three", "-c", url, "-o", str(folder), "--no-interactive", *flags]
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("OPENAI", "AGENTRL_"))}
    done = await trio.run_process(
        command, cwd=folder, env=environment, capture_stdout=True, stderr=subprocess.STDOUT, check=False
    )
    assert done.returncode == 0, done.stdout.decode()
    return read_results(folder)


def engine_flags() -> list[str]:
    """Of an engine whose turns have eight ids or so, because it draws from few of them."""
    allowed = {toy_tokenizer("qwen2_5").special_tokens["<|im_end|>"], *range(40, 47)}
    banned = [str(number) for number in range(MODEL.vocab_size) if number not in allowed]
    return ["--max-context-tokens=2048", "--engine.num-slots=4", "--engine.banned-ids", *banned]


def read_results(folder: Path) -> list[dict[str, Any]]:
    (results,) = folder.rglob("results.jsonl")
    return [json.loads(line) for line in results.read_text().splitlines()]


async def test_evaluations_over_our_controller(stock_python: Path, tmp_path: Path) -> None:
    port, token = free_port(), "s3cret"
    listen = ListenConfig(port=port, token=token)
    url = f"http://any:{token}@127.0.0.1:{port}/api"
    write_policy(tmp_path / "policy", tmp_path / "tokenizer")
    for name in ("dummy", "engine"):
        (tmp_path / name).mkdir()
    with stock_worker(stock_python, tmp_path, "three", port, token=token, concurrency=4, indices=10):
        async with controller_at(port, "three", listen=listen) as caller:
            # More at a time than there are places: nothing is refused.
            dummy = ["--client", "dummy", "--dummy-interval", "0", "-j", "20", "-n", "2"]
            results = await evaluate(stock_python, tmp_path / "dummy", url, *dummy)
            assert Counter(result["status"] for result in results) == {"completed": 20}
            assert {json.loads(result["metrics"])["turns"] for result in results} == {3}
            # "Are you done?" has 13 characters: right where the index is odd.
            rewards = {result["index"]["int_value"]: result["metric_reward"] for result in results}
            assert rewards == {index: float(sum(str(index).encode()) % 2) for index in range(10)}
            async with server(tmp_path / "policy", 0, engine_flags()) as (_, engine_port):
                model = [
                    "-u",
                    f"http://127.0.0.1:{engine_port}/v1",
                    "--chat-completions",
                    "--max-output-tokens",
                    "1024",
                ]
                found = await evaluate(stock_python, tmp_path / "engine", url, *model, "--indices-range", "1-2")
            assert [result["status"] for result in found] == ["completed"] * 2, found
            assert caller.controller.book.counts("three").num_turns >= 60
            await caller.wait_idle()
            assert num_taken(caller.controller) == 0
