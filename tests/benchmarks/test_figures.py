"""Figures as JSON lines and as a table."""

import json

from benchmarks.figures import json_lines, summarise, table

SPEED = summarise([3.0, 1.0, 2.5], benchmark="b", case="fast", metric="speed", unit="1/s")
AGE = summarise([2.0], benchmark="b", case="slow", metric="age", unit="versions")
FIELDS = {"benchmark", "case", "metric", "value", "unit", "min", "max", "repeats", "commit", "machine", "versions"}


def test_a_figure_is_the_median_and_the_extremes() -> None:
    assert (SPEED.value, SPEED.min, SPEED.max, SPEED.repeats) == (2.5, 1.0, 3.0, 3)


def test_a_line_says_what_was_measured_where_and_with_what() -> None:
    line = json.loads(next(json_lines([SPEED])))
    assert set(line) == FIELDS
    assert (line["benchmark"], line["case"], line["metric"], line["unit"]) == ("b", "fast", "speed", "1/s")
    assert "cores" in line["machine"]
    assert {"python", "agentrl_jax", "jax"} <= set(line["versions"])
    assert "\n" not in next(json_lines([SPEED]))


def test_values_that_json_cannot_say_become_null() -> None:
    nothing = summarise([float("nan")], benchmark="b", case="c", metric="m", unit="")
    assert json.loads(next(json_lines([nothing])))["value"] is None


def test_a_table_has_a_row_per_case_and_a_column_per_metric() -> None:
    assert table([SPEED, AGE]).split("\n") == [
        "case  speed      age",
        "fast  2.5 (1-3)",
        "slow             2",
    ]
