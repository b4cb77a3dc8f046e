"""A run says what it has to say on stdout: nothing that it uses warns."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from agentrl_jax.runlog import read_records
from tests.launch.tiny_run import tiny


def run_quietly(arguments: list[str]) -> None:
    command = [sys.executable, "-W", "always", "-m", "launch.train", *arguments]
    done = subprocess.run(
        command, env={**os.environ, "JAX_PLATFORMS": "cpu"}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""


@pytest.mark.slow
def test_ten_steps_with_adapters_and_a_reference_warn_of_nothing_and_compile_nothing_late(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    flags = ("--max-steps=10", "--lora.rank=2", "--loss.kl-coefficient=0.01", "--row-buckets=2")
    run_quietly(tiny(run_dir, *flags))
    kept = (run_dir / "reference" / "model.safetensors").read_bytes()
    run_quietly([f"--resume={run_dir}", "--max-steps=12"])
    assert (run_dir / "reference" / "model.safetensors").read_bytes() == kept
    steps = [record for record in read_records(run_dir / "metrics.jsonl") if record["kind"] == "step"]
    assert [step["metrics"]["num_late_compiles"] for step in steps] == [0.0] * 12
