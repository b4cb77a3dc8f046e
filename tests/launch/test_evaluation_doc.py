"""docs/evaluation.md: its commands are parsed, and the first one is run; what runs give as defaults."""

import json
import re
import shlex
from pathlib import Path

import pytest

from agentrl_jax.config import TrainConfig
from agentrl_jax.saved_config import config_to_json
from launch.evaluate import PROGRAM, main
from launch.evaluate_config import EvaluateConfig, parse_evaluation

DOC = Path(__file__).resolve().parents[2] / "docs" / "evaluation.md"
COMMANDS = re.findall(r"^```\n(python -m .*)\n```", DOC.read_text(encoding="utf-8"), re.MULTILINE)


def test_the_first_command_runs_as_it_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    words = shlex.split(COMMANDS[0])
    assert words[:3] == ["python", "-m", PROGRAM]
    assert main(words[3:]) == 0
    assert "100.0 %" in capsys.readouterr().out
    assert (tmp_path / "evaluations" / "expert" / "results.json").is_file()


def test_every_command_can_be_parsed() -> None:
    assert len(COMMANDS) == 2
    for command in COMMANDS:
        assert isinstance(parse_evaluation(shlex.split(command)[3:], program=PROGRAM), EvaluateConfig)


def test_every_flag_it_names_exists(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    known = capsys.readouterr().out
    named = set(re.findall(r"--[a-z][a-z.-]+", DOC.read_text(encoding="utf-8")))
    assert {flag for flag in named if not flag.startswith("--pool.") and flag not in known} == set()


def test_of_several_runs_the_longest_context_counts(tmp_path: Path) -> None:
    """Else the first one's would cut the episodes of the others."""
    runs = []
    for name, context in (("short", 160), ("long", 352), ("middle", 200)):
        runs.append(tmp_path / name)
        (runs[-1] / "model").mkdir(parents=True)
        config = TrainConfig(max_context_tokens=context, temperature=context / 200)
        (runs[-1] / "config.json").write_text(json.dumps(config_to_json(config)))
        (runs[-1] / "metrics.jsonl").touch()
    models = [f"--model={run}" for run in runs]
    settings = parse_evaluation([*models, "--out", str(tmp_path / "out")], program=PROGRAM)
    assert (settings.max_context_tokens, settings.temperature) == (352, 0.8)
    assert settings.model == tuple(runs)
    settings = parse_evaluation([*models, "--max-context-tokens=99"], program=PROGRAM)
    assert settings.max_context_tokens == 99
