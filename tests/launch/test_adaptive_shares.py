"""Adaptive shares in a whole run: logged with every step, saved with the checkpoint, gone on with by `--resume`."""

from pathlib import Path

import numpy as np
import pytest

from agentrl_jax.engines.shares import AdaptiveConfig, PolicyShares
from agentrl_jax.runlog import surviving_steps
from agentrl_jax.types import Group
from launch.train import main
from tests.launch.tiny_run import tiny


@pytest.mark.slow
def test_a_resumed_run_goes_on_with_its_shares(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def move(self: PolicyShares, group: Group | None) -> None:
        # What two untrained policies achieve is alike.
        self._preferences = self._preferences + np.array([0.0, 0.1])
        self.num_groups += 1

    monkeypatch.setattr(PolicyShares, "_observe", move)
    run_dir = tmp_path / "run"
    adaptive = ("--pool.adaptive.step=1", "--pool.lagging-prob=0.5", "--evaluation.num-tasks=0")
    assert main(tiny(run_dir, *adaptive, "--max-steps=2", "--warm-up.steps=1")) == 0
    assert main([f"--resume={run_dir}", "--max-steps=3"]) == 0
    steps = surviving_steps(run_dir / "metrics.jsonl")
    groups = [step["num_groups"] for step in steps]
    logged = [step["rollouts"]["pool"]["shares"]["lagging"] for step in steps]
    unbroken = PolicyShares(0.5, AdaptiveConfig(step=1.0))
    expected = []
    for count in groups:
        for _ in range(count):
            move(unbroken, None)
        expected.append(unbroken.lagging)
    assert logged == expected
    assert logged[0] < logged[1] < logged[2]
