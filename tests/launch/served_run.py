"""A short run of `launch.train` on two servers, and what must be true of its record."""

import json
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CONTEXT_TOKENS = 1024
FLAGS = (
    "--rollout.group-size=4",
    "--rollout.min-groups-per-batch=3",
    "--evaluation.num-tasks=0",
    "--engine.num-slots=16",
    "--episode.max-new-tokens=128",
    # An untrained policy fails at everything: how it fails must make a difference for it to learn anything.
    *("--episode.penalties", "TURN_TRUNCATED", "-0.8", "CONTEXT_LIMIT", "-0.5"),
    "--pool.lagging-period=2",
    f"--max-context-tokens={CONTEXT_TOKENS}",
    "--max-steps=5",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedRun:
    """steps: the record of each. turns: of every episode that was consumed."""

    steps: list[dict[str, Any]]
    turns: list[dict[str, Any]]


def train(model: Path, run_dir: Path, current: str, lagging: str, *flags: str) -> ServedRun:
    """Five steps with cross-policy sampling, from the policy in `model`, which both servers were started with."""
    servers = ["--engines", f"sglang:{current}", "--lagging-engines", f"sglang:{lagging}"]
    command = [sys.executable, "-m", "launch.train", f"--model={model}", f"--run-dir={run_dir}"]
    done = subprocess.run([*command, *servers, *FLAGS, *flags], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    steps = [record for record in _lines(run_dir / "metrics.jsonl") if record["kind"] == "step"]
    turns = [turn for record in _lines(run_dir / "episodes.jsonl") for turn in record.get("turns", [])]
    return ServedRun(steps=steps, turns=turns)


def check(run: ServedRun) -> None:
    """Both policies sampled, every token has the version of its engine, and the learner agrees with all of them."""
    assert [step["step"] for step in run.steps] == [1, 2, 3, 4, 5]
    published = run.steps[-1]["version"] + run.steps[-1]["is_applied"]
    assert published >= 3
    pools = Counter((turn["pool"], turn["engine"]) for turn in run.turns)
    assert pools.keys() == {("current", "current-0"), ("lagging", "lagging-0")}
    versions = {pool: {v for t in run.turns if t["pool"] == pool for v, _, _ in t["versions"]} for pool, _ in pools}
    assert versions["lagging"] <= set(range(0, published + 1, 2))
    assert len(versions["current"]) >= 3
    # Of tokens of the learner's own version, where a step has any.
    mismatches = [step["metrics"]["mismatch_kl"] for step in run.steps if "mismatch_kl" in step["metrics"]]
    assert mismatches
    assert all(0 <= mismatch < 1e-3 for mismatch in mismatches)
    current, lagging = (run.steps[-1]["publish"][name] for name in ("current-0", "lagging-0"))
    assert (current["version"], lagging["version"]) == (published, published - published % 2)
    assert (current["num_publishes"], lagging["num_publishes"]) == (1 + published, 1 + published // 2)
    assert current["num_failures"] == lagging["num_failures"] == 0


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]
