"""A training run whose learner two processes share, and whose engine is a real SGLang server."""

import json
from pathlib import Path

import pytest

from agentrl_jax.runlog import read_records
from launch.audit import main as audit
from tests.launch.served_run import CONTEXT_TOKENS
from tests.launch.test_two_processes_run import both, ends
from tests.sglang_cpu.servers import SGLangServer

pytestmark = pytest.mark.sglang
FLAGS = (
    "--mesh=2",
    "--rows-per-device=1",
    "--row-buckets=1",
    "--rollout.group-size=4",
    "--rollout.min-groups-per-batch=2",
    "--evaluation.num-tasks=0",
    "--engine.num-slots=8",
    "--episode.max-new-tokens=32",
    f"--max-context-tokens={CONTEXT_TOKENS}",
    "--pool.lagging-prob=0",
    "--publish.verify-every=1",
    "--advantages.task-normalisation=paper",  # a policy that knows nothing has no group with a signal
    "--max-steps=3",
)


def test_two_processes_publish_to_a_server(chat_server: SGLangServer, chat_folder: Path, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    arguments = [f"--model={chat_folder}", f"--run-dir={run_dir}", "--engines", f"sglang:{chat_server.url}", *FLAGS]
    with both(arguments) as processes:
        _, followed = ends(processes)
    assert "followed process 0 for 3 steps" in followed
    assert json.loads((run_dir / "config.json").read_text())["runtime"]["num_processes"] == 2
    steps = [record for record in read_records(run_dir / "metrics.jsonl") if record["kind"] == "step"]
    assert [(step["step"], step["version"], step["is_applied"]) for step in steps] == [
        (1, 0, True),
        (2, 1, True),
        (3, 2, True),
    ]
    (engine,) = steps[-1]["publish"].values()
    assert (engine["version"], engine["num_failures"]) == (3, 0)
    assert engine["last_bytes_verified"] > 0
    # What the server sampled from is what both processes together computed.
    mismatches = [step["metrics"]["mismatch_kl"] for step in steps if "mismatch_kl" in step["metrics"]]
    assert mismatches
    assert all(0 <= mismatch < 1e-3 for mismatch in mismatches)
    assert audit([str(run_dir)]) == 0
