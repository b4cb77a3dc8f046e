"""docs/changing-the-loss.md: its example computes what it says, and every command in it runs."""

import json
import math
import os
import re
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agentrl_jax.algo.external_loss import check_output, probe_batch

ROOT = Path(__file__).resolve().parents[2]
BLOCKS = re.findall(
    r"^```(\w*)\n(.*?)^```",
    (ROOT / "docs" / "changing-the-loss.md").read_text(encoding="utf-8"),
    re.MULTILINE | re.DOTALL,
)
EXAMPLE = next(text for kind, text in BLOCKS if kind == "python")
COMMANDS = [text.replace("\\\n", " ").split() for kind, text in BLOCKS if not kind]


@pytest.fixture(scope="module")
def loss(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Any]:
    path = tmp_path_factory.mktemp("doc") / "my_loss.py"
    path.write_text(EXAMPLE, encoding="utf-8")
    function: Callable[..., Any] = runpy.run_path(str(path))["loss"]
    return function


def test_the_example_is_what_its_formula_says(loss: Callable[..., Any]) -> None:
    batch = probe_batch(has_reference=False)
    check_output(loss, "my_loss:loss", has_reference=False, taken=frozenset())
    mask = batch.loss_mask & batch.has_signal
    logprobs = jnp.where(mask, -1.0 + 0.2, jnp.nan)  # log ρ = 0.2 = WIDTH, A = 0.5 at six tokens
    output = loss(logprobs, batch)
    token = -0.5 * math.exp(0.2) * math.exp(-1)
    np.testing.assert_allclose(output.loss.total, 6 * token, rtol=1e-5)
    assert output.loss.weight == 6
    np.testing.assert_allclose(output.metrics["fade_mean"].total, 6 * math.exp(-1), rtol=1e-5)
    gradient = jax.grad(lambda values: loss(values, batch).loss.total)(logprobs)
    np.testing.assert_allclose(gradient, np.where(mask, token, 0), rtol=1e-5)


def run(command: list[str], folder: Path) -> str:
    assert command[0] == "python"
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, *command[1:]], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a reader who has come to the end of the first section, and has the file of the third."""
    folder = tmp_path_factory.mktemp("reader")
    run(COMMANDS[0], folder)
    (folder / "my_loss.py").write_text(EXAMPLE, encoding="utf-8")
    return folder


@pytest.mark.slow
def test_the_replays_of_the_doc_run_and_an_edit_is_picked_up(recorded: Path) -> None:
    own, edited_flags, mine, as_json = COMMANDS[1:5]
    lines = run(own, recorded).splitlines()
    assert [line.split()[0] for line in lines[2:6]] == ["1", "2", "3", "4"]
    largest = re.fullmatch(r"(\d) losses, which differ by (\S+) at most", lines[-1])
    assert largest is not None
    assert int(largest[1]) >= 2
    assert float(largest[2]) <= 1e-6
    assert "step" in run(edited_flags, recorded)
    assert "fade_mean" not in run(mine, recorded)
    before = [json.loads(line)["replayed"] for line in run(as_json, recorded).splitlines()]
    (recorded / "my_loss.py").write_text(EXAMPLE.replace("WIDTH = 0.2", "WIDTH = 0.5"), encoding="utf-8")
    after = [json.loads(line)["replayed"] for line in run(as_json, recorded).splitlines()]
    means = [(old["fade_mean"], new["fade_mean"]) for old, new in zip(before, after, strict=True) if old]
    assert all(old <= new for old, new in means)
    assert any(old < new for old, new in means)


@pytest.mark.slow
def test_the_doc_s_last_command_trains_with_the_loss(recorded: Path) -> None:
    run(COMMANDS[5], recorded)
    records = map(json.loads, (recorded / "runs" / "mine" / "metrics.jsonl").read_text(encoding="ascii").splitlines())
    assert any("fade_mean" in record["metrics"] for record in records if record["kind"] == "step")
    assert len(COMMANDS) == 6
