"""The HTTP client's cost, with room for busy machines: twice the bounds of `benchmarks.http`."""

import json

import pytest

from benchmarks.http import NAME, UNITS, main, measure


def test_every_figure_is_printed_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--json", "--quick"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["benchmark"] for line in lines] == [NAME] * 2 * len(UNITS)
    found = {(line["case"], line["metric"]): line["value"] for line in lines}
    assert found["connecting", "num_errors"] == found["kept", "num_errors"] == 0
    assert found["kept", "latency_p50_s"] >= 0.5


@pytest.mark.slow
def test_two_thousand_requests_at_a_time_are_cheap_and_late_by_little() -> None:
    found = {(figure.case, figure.metric): figure.value for figure in measure(2000, 5.0, 1)}
    for case in ("connecting", "kept"):
        assert found[case, "num_errors"] == 0
        assert found[case, "cpu_ms_per_request"] < 0.8
        assert found[case, "latency_p99_s"] < 9
