"""A policy folder that is small enough to serve from a process of its own, and such processes."""

import re
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import trio

from agentrl_jax.models.config import ModelConfig
from agentrl_jax.models.params import init_params
from agentrl_jax.models.save import save_pretrained
from agentrl_jax.testing.tokenizers import toy_tokenizer, write_toy_tokenizer

MODEL = ModelConfig(
    vocab_size=512, width=16, num_layers=1, num_heads=2, num_kv_heads=1, head_dim=8, mlp_width=16, rope_theta=1e4
)
SMALL = ["--max-context-tokens", "64", "--engine.num-slots", "2", "--engine.prefill-shapes", "2", "16"]


def write_policy(path: Path, tokenizer: Path) -> None:
    """Write a policy of MODEL into `path`; `tokenizer` is a folder for what it is made from."""
    write_toy_tokenizer(tokenizer, "qwen2_5")
    assert toy_tokenizer("qwen2_5").vocab_size <= MODEL.vocab_size
    save_pretrained(init_params(MODEL, 0), MODEL, path, dtype="float32", source=tokenizer)


@asynccontextmanager
async def server(folder: Path, port: int, flags: Sequence[str] = SMALL) -> AsyncIterator[tuple[trio.Process, int]]:
    """A process that serves `folder` at a port (0: any), and which port that is."""
    command = [sys.executable, "-m", "launch.engine", "--model", str(folder), "--port", str(port), *flags]
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
