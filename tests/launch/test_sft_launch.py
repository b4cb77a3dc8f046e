"""`python -m launch.sft`: its flags, its data, its signals, and what launch.train makes of its result."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from agentrl_jax.runlog import read_records
from launch.sft import PRETRAINED_RATE, _parse, main
from launch.train import main as train
from tests.launch.tiny_run import tiny_from

TINY = (
    "--network.width=32",
    "--network.num-layers=1",
    "--network.num-heads=2",
    "--network.num-kv-heads=1",
    "--network.mlp-width=64",
    "--batch-size=8",
)
LINE = '{"messages": [{"role": "user", "content": "1 + 2?"}, {"role": "assistant", "content": "3"}]}\n'


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "data.jsonl"
    path.write_text(LINE * 40, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ((), "--data FILE.jsonl or from --from-experts"),
        (("--data=x", "--from-experts=kg"), "--data FILE.jsonl or from --from-experts"),
        (("--data=none.jsonl",), "none.jsonl cannot be read"),
        (("--data=x", "--batch-size=0"), "--batch-size must be >= 1, got 0"),
        (("--data=x", "--valid-frac=1"), "--valid-frac must be in [0, 1), got 1.0"),
        (("--data=x", "--expert.level=2"), "--expert.* has no effect with --data"),
        (("--data=x", "--valid=y", "--valid-frac=0.5"), "--valid-frac has no effect with --valid"),
        (("--data=x", "--max-steps=5", "--epochs=2"), "--epochs has no effect with --max-steps"),
        (("--data=x", "--model=.", "--network.width=32"), "--network.* has no effect with --model"),
        (("--data=x", "--model=."), "missing: config.json"),
        (("--data=x", "--lora.rank=4"), "--lora.rank needs --model"),
        (("--data=x", "--mesh=0"), "mesh must be a number of devices"),
        (("--resume=nowhere",), "expected the directory of a run"),
    ],
)
def test_wrong_flags_end_with_a_reason(
    flags: tuple[str, ...],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stop:
        main(flags)
    assert stop.value.code == 2
    assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_wrong_lines_end_a_run_before_it_begins(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "data.jsonl"
    path.write_text(LINE + '{"messages": []}\n', encoding="utf-8")
    with pytest.raises(SystemExit):
        main([f"--data={path}", f"--run-dir={tmp_path / 'run'}"])
    assert "has wrong lines: line 2: expected a list of messages" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_the_learning_rate_depends_on_where_a_run_starts(tmp_path: Path, data: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    for name in ("config.json", "tokenizer.json", "model.safetensors"):
        (model / name).write_text("{}")
    assert _parse([f"--data={data}"])[0].learner.learning_rate == 3e-3
    assert _parse([f"--data={data}", f"--model={model}"])[0].learner.learning_rate == PRETRAINED_RATE
    named = _parse([f"--data={data}", f"--model={model}", "--learner.learning-rate=2e-4"])[0]
    assert named.learner.learning_rate == 2e-4


@pytest.mark.slow
def test_expert_conversations_are_learnt_and_reinforcement_learning_goes_on_from_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_dir = tmp_path / "sft"
    flags = ("--from-experts=kg", "--expert.conversations=400", "--epochs=2", f"--run-dir={run_dir}")
    assert main([*TINY, *flags]) == 0
    first, *_, last = [r for r in read_records(run_dir / "metrics.jsonl") if r["kind"] == "validation"]
    assert last["mean_loss"] < 0.5 * first["mean_loss"]
    assert last["accuracy"] > 0.5 > first["accuracy"]
    assert len((run_dir / "conversations.jsonl").read_text(encoding="utf-8").splitlines()) == 400
    assert json.loads((run_dir / "config.json").read_text())["from_experts"] == "kg"
    capsys.readouterr()
    assert train(tiny_from(run_dir / "model", tmp_path / "rl", "--max-steps=1")) == 0
    assert "step 1/1" in capsys.readouterr().out


@pytest.mark.slow
def test_a_signal_saves_and_resume_goes_on_with_other_settings(tmp_path: Path, data: Path) -> None:
    run_dir = tmp_path / "run"
    command = [sys.executable, "-u", "-m", "launch.sft", *TINY, f"--data={data}", f"--run-dir={run_dir}"]
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    endless = [*command, "--max-steps=1000000", "--constant-rate", "--save-every=1000000"]
    with subprocess.Popen(endless, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        printed = []
        for line in process.stdout:
            printed.append(line)
            if line.startswith("step 20"):
                process.send_signal(signal.SIGINT)
                break
        printed += process.stdout.readlines()
    assert process.returncode == 0, printed
    assert any(f"go on with --resume {run_dir}" in line for line in printed)
    steps = [r["step"] for r in read_records(run_dir / "metrics.jsonl") if r["kind"] == "step"]
    assert sorted(path.name for path in (run_dir / "checkpoints").iterdir())[-1] == f"step-{steps[-1]:08d}"
    assert main([f"--resume={run_dir}", f"--max-steps={steps[-1] + 3}"]) == 0
    records = read_records(run_dir / "metrics.jsonl")
    assert [r["step"] for r in records if r["kind"] == "step"] == list(range(1, steps[-1] + 4))
    changes = [r["changes"] for r in records if r["kind"] == "start"][-1]
    assert changes == {"max_steps": f"1000000 → {steps[-1] + 3}"}
    assert json.loads((run_dir / "config.json").read_text())["max_steps"] == steps[-1] + 3
