"""RES, CFG, MET and TOK rows that a whole run decides, by what it leaves behind."""

import json
from pathlib import Path
from typing import Any

import pytest

from agentrl_jax.checkpoint_reading import CheckpointReader
from agentrl_jax.runlog import read_records
from launch.train import main
from tests.launch.tiny_run import tiny

NUM_STEPS = 3


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A run that saves more seldom than it has steps, and evaluates after each; its folder, and what it said."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    said: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("builtins.print", lambda *parts, **_: said.append(" ".join(map(str, parts))))
        flags = ("--limit=3", "--save-every=1000", "--eval-every=1", "--engine-devices=1", f"--max-steps={NUM_STEPS}")
        assert main(tiny(folder, *flags)) == 0
    return folder, "\n".join(said)


@pytest.mark.slow
def test_res_16_a_run_that_ends_before_its_first_save_says_so_and_saves(run: tuple[Path, str]) -> None:
    folder, said = run
    assert "note: --save-every 1000 is above --max-steps: checkpoints only at start and end" in said
    reader = CheckpointReader(folder / "checkpoints")
    assert max(reader.steps()) == NUM_STEPS
    last = steps_of(folder)[-1]
    assert reader.loop_state(NUM_STEPS)["version"] == last["version"] + last["is_applied"]


@pytest.mark.slow
def test_cfg_06_a_run_trains_on_no_more_tasks_than_it_is_limited_to(run: tuple[Path, str]) -> None:
    folder, _ = run
    played = [record["index"] for record in read_records(folder / "episodes.jsonl")]
    assert len(played) > 3 * 2
    assert set(played) <= {0, 1, 2}


@pytest.mark.slow
def test_met_11_evaluations_are_logged_at_the_step_whose_policy_they_are_of(run: tuple[Path, str]) -> None:
    folder, _ = run
    served = {0: 0} | {step["step"]: step["version"] + step["is_applied"] for step in steps_of(folder)}
    found = evaluations_of(folder)
    steps = {when: {record["step"] for record in found if record["when"] == when} for when in ("before", "after")}
    assert steps == {"before": {0}, "after": {NUM_STEPS}}
    during = {record["step"] for record in found if record["when"] == "during"}
    assert 1 in during  # the next one is left out if this one still runs
    assert during < {1, 2, NUM_STEPS}
    for record in found:
        assert record["versions"] == [served[record["step"]]] * 2


@pytest.mark.slow
def test_tok_06_each_evaluation_says_what_its_prompts_held_of_earlier_thinking(run: tuple[Path, str]) -> None:
    folder, _ = run
    trained_with = json.loads((folder / "model" / "rendering.json").read_text())["history_thinking"]
    assert {record["history_thinking"] for record in evaluations_of(folder)} == {trained_with}
    assert trained_with in ("keep", "strip")


def steps_of(folder: Path) -> list[dict[str, Any]]:
    return [record for record in read_records(folder / "metrics.jsonl") if record["kind"] == "step"]


def evaluations_of(folder: Path) -> list[dict[str, Any]]:
    return [record for record in read_records(folder / "metrics.jsonl") if record["kind"] == "evaluation"]
