"""What bends a curve is told; whoever stops it, or asks for what cannot be, loses no time."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks import scale
from benchmarks.async_virtual import SET_UP
from benchmarks.figures import Figure, summarise
from benchmarks.service_model import load

MODEL = load()


@pytest.mark.soak
def test_scale_says_what_it_bends_on(capsys: pytest.CaptureFixture[str]) -> None:
    assert scale.main(["--json", "--quick"]) == 0
    figures = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    found = {(line["case"], line["metric"]): line["value"] for line in figures}
    assert found["gpus=64", "tokens_per_s"] > 3 * found["gpus=16", "tokens_per_s"]
    assert found["gpus=128 fixed-batch", "fixed_frac"] > found["gpus=64", "fixed_frac"]
    assert found["gpus=128 fixed-batch", "straggler_wait_frac"] > found["gpus=64", "straggler_wait_frac"]
    places = found["gpus=64", "engine_gpus"] * MODEL.sessions_per_engine * SET_UP.crowding
    assert places - MODEL.batch.group_size < found["gpus=64", "most_episodes"] <= places
    assert all(0 < found[case, "fraction_of_bound"] <= 1 for case, metric in found if metric == "fraction_of_bound")


@pytest.mark.parametrize("plot", ["missing/scale.png", "scale.gif"])
def test_scale_refuses_a_plot_that_it_could_not_draw_before_it_begins(
    plot: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit_:
        scale.main(["--quick", f"--plot={tmp_path / plot}"])
    assert exit_.value.code == 2
    assert f"--plot must be a .png in a folder that exists, got {tmp_path / plot}" in capsys.readouterr().err


def test_scale_shows_what_it_has_when_it_is_stopped(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def parts(*_: object) -> Iterator[list[Figure]]:
        yield [summarise([0.9], benchmark="scale", case="gpus=16", metric="fraction_of_bound", unit="")]
        raise KeyboardInterrupt

    monkeypatch.setattr(scale, "scale_figures", parts)
    assert scale.main(["--quick"]) == 130
    shown = capsys.readouterr()
    assert "gpus=16" in shown.out
    assert "stopped; only what had been measured is shown" in shown.err
