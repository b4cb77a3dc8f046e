"""Published faults of resuming: what a user says when a run goes on."""

from pathlib import Path

from agentrl_jax.config import TrainConfig
from agentrl_jax.runlog import RunLog
from launch.config import parse_training


def test_res_08_an_explicit_flag_wins_over_what_the_run_had_saved(tmp_path: Path) -> None:
    saved = TrainConfig(run_dir=tmp_path / "run", max_steps=5, max_context_tokens=64, save_every=3)
    with RunLog(tmp_path / "run") as run:
        run.write_config(saved.to_json())
    given = [f"--resume={tmp_path / 'run'}", "--max-steps=77", "--learner.learning-rate=0.00001"]
    config, changes = parse_training(given, program="launch.train")
    assert (config.max_steps, config.learner.learning_rate) == (77, 1e-5)
    assert config.save_every == 3  # and what nobody names stays as it was, not as the recipe has it
    assert changes["max_steps"] == "5 → 77"
    assert set(changes) == {"max_steps", "learner.learning_rate"}
