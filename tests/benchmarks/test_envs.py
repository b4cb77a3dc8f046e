"""The environments' benchmark: its bars, by half, and what it refuses."""

import json

import pytest

from benchmarks.env_cases import find_cases
from benchmarks.envs import main


def figures(capsys, *arguments):
    assert main(["--json", "--quick", *arguments]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    return {(row["case"], row["metric"]): row["value"] for row in rows}


@pytest.mark.data
def test_alfworld_keeps_half_its_bars(capsys, data_folder):
    values = figures(capsys, "--cases", "alfworld", "--data", str(data_folder))
    assert values["alfworld", "steps_per_cpu_s"] >= 2500 / 2
    assert values["alfworld", "kb_per_live_game"] <= 2 * 160


def test_alfworld_is_measured_without_data(capsys):
    values = figures(capsys, "--cases", "alfworld", "--data", "None")
    assert values["alfworld", "steps_per_cpu_s"] >= 2500 / 2


def test_every_case_has_units_and_an_unknown_one_is_refused(capsys):
    assert all(case.units for case in find_cases().values())
    with pytest.raises(SystemExit) as stopped:
        main(["--cases", "moon"])
    assert stopped.value.code == 2
    assert "no case moon; there are alfworld" in capsys.readouterr().err
