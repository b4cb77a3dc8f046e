"""Every step of a real run says where its episodes were, and how late the loop was."""

from pathlib import Path

import pytest

from agentrl_jax.runlog import read_records
from launch.train import main
from tests.launch.tiny_run import tiny


@pytest.mark.slow
def test_steps_carry_the_statistics_of_every_component(tmp_path: Path) -> None:
    assert main(tiny(tmp_path / "run", "--evaluation.num-tasks=0", "--warm-up.steps=1", "--warm-up.copy-steps=1")) == 0
    steps = [r for r in read_records(tmp_path / "run" / "metrics.jsonl") if r["kind"] == "step"]
    assert len(steps) == 2
    for step in steps:
        ledger, admission, rollouts, loop = (step[name] for name in ("ledger", "admission", "rollouts", "loop"))
        ended = ledger["num_consumed"] + ledger["num_dropped"] + ledger["num_cancelled"]
        assert ledger["num_admitted"] == ended + ledger["num_live"] + ledger["num_complete"]
        assert admission["num_held"] == ledger["num_live"] + ledger["num_complete"]
        assert set(rollouts["pool"]["engines"]) == {"current-0", "lagging-0"}
        assert rollouts["sessions"]["kg"]["num_made"] >= rollouts["sessions"]["kg"]["num_open"] >= 0
        assert rollouts["telemetry"] is None
        assert 0 <= loop["lag_p50_s"] <= loop["lag_p99_s"] <= loop["lag_max_s"]
    assert not (tmp_path / "run" / "spans.jsonl").exists()
