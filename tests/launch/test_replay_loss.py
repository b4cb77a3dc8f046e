"""`python -m launch.replay`: recorded losses come back, others are computed at the run's own params."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agentrl_jax.algo.losses import LossConfig
from agentrl_jax.batch_files import load_batch, load_scores, save_batch
from agentrl_jax.errors import ConfigError
from agentrl_jax.recovery import RecordedStep
from launch.replay import main, parse_steps
from tests.recorded_run import NUM_STEPS, SILENT, record_run

LOSS = LossConfig(clip_high=0.28, kl_coefficient=0.1)
LOUD = [step for step in range(1, NUM_STEPS + 1) if step != SILENT]


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("replay") / "run"
    record_run(folder, LOSS, checkpoints=(0, 2, NUM_STEPS))
    return folder


def replayed(run_dir: Path, *flags: str, capsys: pytest.CaptureFixture[str], code: int = 0) -> dict[int, Any]:
    assert main([str(run_dir), "--json", *flags]) == code
    lines = capsys.readouterr().out.splitlines()
    return {record["step"]: record for record in map(json.loads, lines)}


def test_every_recorded_figure_comes_back(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    steps = replayed(run_dir, capsys=capsys)
    assert list(steps) == list(range(1, NUM_STEPS + 1))
    assert steps[SILENT]["note"] == "no group had a signal"
    assert steps[SILENT]["replayed"] == {}
    for step in LOUD:
        recorded, now = steps[step]["recorded"], steps[step]["replayed"]
        assert {"loss", "grad_norm", "clip_low_frac", "behavior_kl", "reference_kl", "ratio_p99"} <= set(recorded)
        assert now["loss"] == pytest.approx(recorded["loss"], abs=1e-6, rel=0)
        assert now["grad_norm"] == pytest.approx(recorded["grad_norm"], rel=1e-5)
        for name in set(recorded) & set(now):
            assert now[name] == pytest.approx(recorded[name], rel=1e-5, abs=1e-6), name


def test_another_loss_is_computed_at_the_params_that_the_run_had(
    run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # A run with that loss has the same params at its first step, and only there.
    other = LossConfig(name="policy_gradient", correction="icepop", kl_coefficient=0.1)
    record_run(tmp_path / "other", other)
    theirs = replayed(tmp_path / "other", "--steps=1", "--no-gradients", capsys=capsys)[1]["recorded"]
    flags = ("--loss.name=policy_gradient", "--loss.correction", "icepop")
    ours = replayed(run_dir, *flags, capsys=capsys)
    for name in ("loss", "grad_norm", "correction_masked_frac"):
        assert ours[1]["replayed"][name] == pytest.approx(theirs[name], rel=1e-5), name
    assert all("grad_norm" in ours[step]["replayed"] and not ours[step]["note"] for step in LOUD)
    assert ours[2]["replayed"]["loss"] != pytest.approx(ours[2]["recorded"]["loss"], rel=1e-3)


OWN = """
from agentrl_jax.algo.aggregate import masked_sum, neutralise
from agentrl_jax.batch import LossOutput

def loss(logprobs, batch):
    mask = batch.loss_mask & batch.has_signal
    costs = -FACTOR * neutralise(logprobs, mask) * neutralise(batch.advantages, mask)
    return LossOutput(masked_sum(costs, mask), {})
"""


def test_an_edited_function_is_taken_as_it_is_now(
    run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    losses = {}
    for number, factor in enumerate(("1.0", "3.0")):  # two names: a module is imported once a process
        Path(f"own_loss_{number}.py").write_text(OWN.replace("FACTOR", factor), encoding="utf-8")
        flags = (f"--loss.name=own_loss_{number}:loss", "--loss.kl-coefficient=0", "--no-gradients", "--steps=1-2")
        losses[factor] = {s: r["replayed"] for s, r in replayed(run_dir, *flags, capsys=capsys).items()}
    for step in (1, 2):
        for name in ("loss", "logprob_grad_norm"):
            assert losses["3.0"][step][name] == pytest.approx(3 * losses["1.0"][step][name], rel=1e-5)
        batch = load_batch(run_dir / "batches" / f"step-{step:06d}.npz")
        scores = load_scores(run_dir / "batches" / f"step-{step:06d}.npz")
        expected = -sum(
            (score.logprobs * micro.advantages)[micro.has_signal].sum()
            for score, micro in zip(scores, batch.micro_batches, strict=True)
        )
        assert losses["1.0"][step]["loss"] == pytest.approx(expected / batch.loss_weight, rel=1e-5)


def test_a_gradient_that_is_not_finite_is_found_where_the_loss_is_finite(
    run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    # Off the mask the log-probability is 0, where the root has no finite slope.
    text = OWN.replace("-FACTOR * neutralise(logprobs, mask)", "abs(logprobs) ** 0.5")
    Path("rooted_loss.py").write_text(text, encoding="utf-8")
    flags = ("--loss.name=rooted_loss:loss", "--loss.kl-coefficient=0", "--no-gradients", "--steps=1")
    step = replayed(run_dir, *flags, capsys=capsys, code=1)[1]
    assert abs(step["replayed"]["loss"]) < 10
    assert step["note"].startswith("gradient not finite at ")


def test_the_table_shows_both_figures_and_what_is_missing(
    run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(run_dir, tmp_path / "late")
    shutil.rmtree(tmp_path / "late" / "checkpoints" / "step-00000000")
    assert main([str(tmp_path / "late")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "gradient norm" in lines[0]
    rows = {int(line.split()[0]): line.split() for line in lines[2 : 2 + NUM_STEPS]}
    assert {step: row[-1] for step, row in rows.items() if step in (1, 2)} == {1: "-", 2: "-"}
    assert rows[NUM_STEPS][-1] == rows[NUM_STEPS][-3] != "-"
    assert "3 losses, which differ by " in lines[-2]
    assert "no gradient norm for 2 steps: no checkpoint before them is left" in lines[-1]


def test_params_of_other_settings_are_not_taken_for_the_run_s(
    run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(run_dir, tmp_path / "run")
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    config["learner"]["learning_rate"] = 0.5
    (tmp_path / "run" / "config.json").write_text(json.dumps(config))
    steps = replayed(tmp_path / "run", capsys=capsys)
    assert "grad_norm" in steps[1]["replayed"]  # a checkpoint's own params
    assert "grad_norm" not in steps[2]["replayed"]
    assert "params are not recovered" in steps[2]["note"]
    assert steps[NUM_STEPS]["replayed"]["grad_norm"]  # step 3 changed nothing, so these are a checkpoint's too


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--steps=9",), "the run has recorded steps 1 to 4"),
        (("--steps=a",), "--steps must be all, or numbers and ranges"),
        (("--loss.clip-low=2",), "clip_low must be in"),
        (("--loss.name=nothing_like_it:loss",), "there is no module nothing_like_it"),
        (("--mesh=2", "--no-gradients"), "--mesh has no effect"),
    ],
)
def test_wrong_flags_end_with_a_reason(
    flags: tuple[str, ...], message: str, run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        main([str(run_dir), *flags])
    assert stop.value.code == 2
    assert message in capsys.readouterr().err


def test_what_cannot_be_replayed_is_refused(run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def refused(folder: Path, *flags: str) -> str:
        with pytest.raises(SystemExit):
            main([str(folder), "--no-gradients", *flags])
        return capsys.readouterr().err

    assert "has no config.json" in refused(tmp_path)
    plain = tmp_path / "plain"
    record_run(plain, LossConfig(), checkpoints=())
    assert "no reference_logprobs, which --loss.kl-coefficient 0.1 needs" in refused(plain, "--loss.kl-coefficient=0.1")
    first = plain / "batches" / "step-000001.npz"
    save_batch(first, load_batch(first))
    assert "recorded by an earlier version" in refused(plain)
    np.savez(first, format=99)
    assert "step-000001.npz has format 99" in refused(plain)
    (plain / "metrics.jsonl").write_text("")
    assert "has not taken a step yet" in refused(plain)


def test_steps_are_numbers_and_ranges() -> None:
    recorded = {step: RecordedStep(step=step, metrics={}, batch_path=None) for step in (1, 2, 5, 6, 7)}
    assert parse_steps("all", recorded) == (1, 2, 5, 6, 7)
    assert parse_steps("6, 1-5", recorded) == (1, 2, 5, 6)
    for wrong in ("", "-3", "1-", "2-x", "1 2"):
        with pytest.raises(ConfigError):
            parse_steps(wrong, recorded)
