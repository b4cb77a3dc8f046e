"""The loss on the command line: its own options, none of another's, and functions of the user's."""

import json
from pathlib import Path

import pytest

from agentrl_jax.algo.loss_config import LossConfig
from agentrl_jax.config import TrainConfig
from launch.config import parse_training
from launch.recipes import RECIPES
from launch.train import main
from tests.launch.tiny_run import tiny

OWN_LOSS = """
from agentrl_jax.algo.aggregate import masked_sum, neutralise
from agentrl_jax.algo.surrogates import clipped_surrogate
from agentrl_jax.batch import LossOutput

def loss(logprobs, batch):
    mask = batch.loss_mask & batch.has_signal
    arrays = (neutralise(x, mask) for x in (logprobs, batch.behavior_logprobs, batch.advantages))
    costs = clipped_surrogate(*arrays, clip_high=0.4)
    return LossOutput(masked_sum(costs, mask), {"my_cost": masked_sum(costs, mask)})
"""


def parsed(*flags: str) -> LossConfig:
    return parse_training(flags, program="launch.train")[0].loss


def test_the_recipe_s_options_stay_with_the_recipe_s_loss() -> None:
    assert parsed() == RECIPES["single-kg"].config.loss != LossConfig()
    own = parsed("--loss.correction=behavior_clip")  # what it is without the flag
    assert own.settings == RECIPES["single-kg"].config.loss.settings
    assert parsed("--loss.clip-low=0.1") == LossConfig(
        clip_low=0.1, clip_high=RECIPES["single-kg"].config.loss.clip_high
    )
    assert parsed("--loss.name=gspo") == LossConfig(name="gspo")
    assert parsed("--loss.name=policy_gradient", "--loss.correction=icepop").settings.correction == "icepop"
    assert parsed("--loss.correction=tis", "--loss.correction-cap=4") == LossConfig(correction="tis", correction_cap=4)
    assert parsed("--loss.name=my_loss:loss") == LossConfig(name="my_loss:loss")


def test_the_dual_clip_can_be_switched_off() -> None:
    assert parsed("--loss.dual-clip=off").settings.dual_clip is None
    assert parsed("--loss.dual-clip=4").settings.dual_clip == 4.0
    assert parsed().settings.dual_clip == 3.0


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--loss.correction=none",), "asynchronous training with no correction"),
        (("--loss.name=sft",), "the warm-up's"),
        (("--loss.name=cispo", "--loss.dual-clip=3"), "loss dual_clip has no effect"),
        (("--loss.name=ppo",), "loss name must be grpo"),
    ],
)
def test_wrong_flags_end_with_a_reason(
    flags: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        parsed(*flags)
    assert stop.value.code == 2
    assert message in capsys.readouterr().err


def test_a_resumed_run_may_take_another_loss(tmp_path: Path) -> None:
    saved = TrainConfig(loss=LossConfig(clip_high=0.28, kl_coefficient=1e-4))
    (tmp_path / "config.json").write_text(json.dumps(saved.to_json()), encoding="utf-8")
    config, changes = parse_training(("--loss.name=gspo", f"--resume={tmp_path}"), program="launch.train")
    assert config.loss == LossConfig(name="gspo", kl_coefficient=1e-4)
    assert changes["loss.name"] == "grpo → gspo"


def test_a_function_that_is_not_there_ends_before_the_run_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit):
        main(tiny(tmp_path / "run", "--loss.name=not_my_loss:loss"))
    assert "there is no module not_my_loss in the current directory" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_a_run_trains_on_a_function_of_the_user_s(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "loss_of_this_run.py").write_text(OWN_LOSS, encoding="utf-8")
    everything_counts = "--advantages.task-normalisation=paper"  # so few episodes rarely tell good from bad
    flags = ("--loss.name=loss_of_this_run:loss", "--loss.kl-coefficient=0.001", everything_counts)
    assert main(tiny(tmp_path / "run", *flags)) == 0
    lines = (tmp_path / "run" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    steps = [record["metrics"] for record in map(json.loads, lines) if record["kind"] == "step"]
    applied = [metrics for metrics in steps if metrics.get("is_applied")]
    assert applied
    assert all({"my_cost", "ratio_p99", "reference_kl"} <= set(metrics) for metrics in applied)
    assert applied[0]["mismatch_kl"] < 1e-9  # every token is of the learner's own version
    assert not any(record["kind"] == "warning" and record["name"] == "mismatch" for record in map(json.loads, lines))
