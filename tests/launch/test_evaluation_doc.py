"""docs/evaluation.md: its commands are parsed, and the first one is run."""

import re
import shlex
from pathlib import Path

import pytest

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
