"""`launch.evaluate` on what training leaves, and on servers: each way to the same weights gives the same episodes."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from agentrl_jax.runlog import read_records
from launch.evaluate import main
from launch.train import main as train
from tests.launch.tiny_run import tiny

pytestmark = pytest.mark.slow
FLAGS = ("--greedy", "--local.num-slots=8", "--no-agentrl-files")


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("evaluated") / "run"
    flags = ("--save-every=1", "--keep-checkpoints=9", "--seed=3", "--rollout.group-size=4")
    assert train(tiny(folder, *flags, "--warm-up.steps=30")) == 0
    return folder


@contextmanager
def served(model: Path, *flags: str) -> Iterator[str]:
    """The URL of a process that serves `model`. Not run by trio: `main` wants the main thread."""
    command = [sys.executable, "-u", "-m", "launch.engine", "--model", str(model), "--port=0", *flags]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            found = next(filter(None, (re.search(r"serving .* at (http://\S+)", line) for line in process.stdout)))
            yield found[1]
        finally:
            process.terminate()
            process.communicate()


def episodes(out: Path) -> list[tuple[Any, ...]]:
    """Task, end and conversation of each, by policy."""
    found = read_records(out / "episodes.jsonl")
    return sorted((e["mixture"], e["index"], e["seed"], e["end"], json.dumps(e["messages"])) for e in found)


def first_turn(played: list[Any]) -> Any:
    return next(message["content"] for message in json.loads(played[-1]) if message["role"] == "assistant")


def test_a_run_a_model_a_checkpoint_and_servers_play_alike(run_dir: Path, tmp_path: Path) -> None:
    newest = max((run_dir / "checkpoints").iterdir())
    models = [f"--model={run_dir}", f"--model={newest}", f"--model={run_dir / 'model'}"]
    names = ["--name", "run", "checkpoint", "folder", "sglang", "openai"]

    size = f"--max-context-tokens={json.loads((run_dir / 'config.json').read_text())['max_context_tokens']}"
    with served(run_dir / "model", size, "--engine.num-slots=8") as url:
        engines = [f"--engine=sglang:{url}", f"--engine=openai:{url}/v1#m"]
        assert main([*models, *engines, *names, "--num-tasks=4", f"--out={tmp_path / 'out'}", *FLAGS]) == 0
    by_policy: dict[str, list[Any]] = {}
    for mixture, *rest in episodes(tmp_path / "out"):
        by_policy.setdefault(mixture, []).append(rest)
    assert list(by_policy) == ["checkpoint", "folder", "openai", "run", "sglang"]
    for name in ("checkpoint", "folder", "sglang"):
        assert by_policy[name] == by_policy["run"], name
    # An endpoint gives and takes messages, in which the spelling of odd turns is lost: only the first text is the same.
    assert [first_turn(played) for played in by_policy["openai"]] == [first_turn(played) for played in by_policy["run"]]
    # What the run itself found at its end, on the same tasks.
    after = [
        record
        for record in read_records(run_dir / "metrics.jsonl")
        if (record["kind"], record.get("when"), record.get("mode")) == ("evaluation", "after", "greedy")
    ]
    score = next(
        s for s in json.loads((tmp_path / "out" / "results.json").read_text())["scores"] if s["mixture"] == "run"
    )
    assert (score["num_valid"], score["num_successes"]) == (after[-1]["num_valid"], after[-1]["num_successes"])
    assert {f"end_{end}_frac": count / 4 for end, count in score["ends"].items()}.items() <= after[-1].items()


def test_settings_of_the_run_are_the_defaults(run_dir: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert main([f"--model={run_dir}", "--num-tasks=1", f"--out={out}", *FLAGS]) == 0
    settings = json.loads((out / "evaluation.json").read_text())
    run = json.loads((run_dir / "config.json").read_text())
    for name in ("tasks", "seed", "level", "max_context_tokens", "temperature"):
        assert settings[name] == run[name], name
    assert settings["episode"] == run["episode"]
