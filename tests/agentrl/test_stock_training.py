"""`launch.train` on episodes that stock worker processes serve."""

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from agentrl_jax.testing.tokenizers import toy_tokenizer
from tests.agentrl.stock_processes import free_port, stock_worker
from tests.launch.engine_process import MODEL, write_policy
from tests.launch.tiny_run import tiny_from

pytestmark = pytest.mark.agentrl

TRAIN = [sys.executable, "-m", "launch.train"]


def train(*arguments: str) -> str:
    done = subprocess.run([*TRAIN, *arguments], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_five_steps_on_episodes_of_stock_workers(stock_python: Path, tmp_path: Path) -> None:
    write_policy(tmp_path / "policy", tmp_path / "tokenizer")
    tokenizer = toy_tokenizer("qwen2_5")
    # An untrained policy of a few ids ends one turn in eight tokens or so.
    allowed = {tokenizer.special_tokens["<|im_end|>"], *range(40, 47)}
    banned = [str(number) for number in range(MODEL.vocab_size) if number not in allowed]
    port = free_port()
    with (
        stock_worker(stock_python, tmp_path / "a", "three", port, often=True, concurrency=6, indices=20),
        stock_worker(stock_python, tmp_path / "b", "three", port, concurrency=6, indices=20, grpc=True),
    ):
        output = train(
            *tiny_from(tmp_path / "policy", tmp_path / "run", "--max-steps=5"),
            "--tasks=remote:three",
            f"--remote.listen.port={port}",
            "--max-context-tokens=768",
            "--max-turns=3",
            "--evaluation.num-tasks=2",
            "--episode.max-new-tokens=48",
            "--rollout.group-size=4",
            "--engine.banned-ids",
            *banned,
        )
    assert "remote:three: 16 training tasks, 4 held out" in output
    episodes = [json.loads(line) for line in (tmp_path / "run" / "episodes.jsonl").read_text().splitlines()]
    assert len(episodes) >= 5 * 2 * 4
    assert {episode["env"] for episode in episodes} == {"remote:three"}
    ends = Counter(episode["end"] for episode in episodes)
    assert set(ends) <= {"completed", "max_turns", "turn_truncated"}
    assert ends["completed"] > 20
    assert len({episode["reward"] for episode in episodes}) > 1
    metrics = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert sum(record["kind"] == "step" for record in metrics) == 5
    assert json.loads((tmp_path / "run" / "config.json").read_text())["remote"]["listen"]["token"] is None
