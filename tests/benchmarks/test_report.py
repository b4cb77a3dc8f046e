"""README and docs show the figures that are kept, and nothing else; how they are written, by hand."""

import json
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from agentrl_jax.errors import ConfigError
from benchmarks.figures import Figure, json_lines, summarise
from benchmarks.report import DOCUMENTS, REPOSITORY, check_complete, fill, full_table, readme_table, shown, stale_files
from benchmarks.report_plots import draw_plots, numbered
from benchmarks.report_results import Kept, read_results
from benchmarks.report_rows import ROWS, Row

ROW = Row(what="a thing", benchmark="engine", case="tiny", metric="ratio", scale="times", bar="≥ 2")


def figure(value: float, *more: float, case: str = "tiny", metric: str = "ratio", benchmark: str = "engine") -> Figure:
    return summarise([value, *more], benchmark=benchmark, case=case, metric=metric, unit="")


def kept(*figures: Figure) -> Kept:
    return Kept(figures=figures, commit="abc", machine="a CPU, 2 cores")


def line(found: Figure, **more: Any) -> str:
    return json.dumps({**asdict(found), "commit": "abc", "machine": "a CPU", "versions": {}, **more})


def test_readme_and_docs_show_what_is_kept() -> None:
    check_complete(read_results())
    stale = stale_files(REPOSITORY, read_results())
    assert not stale, f"run python -m benchmarks.report: {', '.join(path.name for path in stale)} shows other figures"


def test_a_number_that_was_changed_by_hand_is_found(tmp_path: Path) -> None:
    results = {"engine": kept(figure(2.5, case="tiny", metric="ratio_to_best_peer"))}
    marked = (
        "# x\n<!-- results:begin -->\nold\n<!-- results:end -->\n<!-- results:begin engine -->\n<!-- results:end -->\n"
        "<!-- results:begin peers -->\n<!-- results:end -->\n"
    )
    for path in (tmp_path / name for name in DOCUMENTS):
        path.parent.mkdir(exist_ok=True)
        path.write_text(fill(marked, results))
    assert stale_files(tmp_path, results) == {}
    text = (tmp_path / "README.md").read_text()
    assert "2.5x" in text
    (tmp_path / "README.md").write_text(text.replace("2.5x", "3.5x"))
    assert list(stale_files(tmp_path, results)) == [tmp_path / "README.md"]


@pytest.mark.parametrize(
    ("values", "scale", "text"),
    [
        ([2.0, 3.0, 4.0], "times", "3x (2-4)"),
        ([0.91], "percent", "91.0 %"),
        ([0.8979, 0.9, 0.9051], "percent", "90.0 % (89.8-90.5)"),
        ([12345.6], "plain", "12,346"),
        ([0.12345], "plain", "0.123"),
        ([float("nan")], "plain", "—"),
    ],
)
def test_values_by_hand(values: list[float], scale: str, text: str) -> None:
    assert shown(figure(*values), scale) == text


def test_only_rows_that_are_kept_are_shown() -> None:
    missing = Row(what="another", benchmark="http", case="kept", metric="cpu_ms_per_request")
    table = readme_table({"engine": kept(figure(2.5))}, [ROW, missing])
    assert "| a thing | 2.5x | ≥ 2 | `python -m benchmarks.engine` |" in table
    assert "another" not in table
    assert "a CPU, 2 cores" in table
    assert readme_table({}, [ROW]) == "Nothing has been kept yet.\n"


def test_a_benchmark_that_is_half_kept_is_refused() -> None:
    other = Row(what="another", benchmark="engine", case="real", metric="ratio", flags="--mode=real")
    check_complete({}, [ROW, other])
    check_complete({"engine": kept(figure(2.5), figure(1.0, case="real"))}, [ROW, other])
    with pytest.raises(ConfigError, match=r"engine.jsonl has no ratio of 'real'.*benchmarks.engine --mode=real --json"):
        check_complete({"engine": kept(figure(2.5))}, [ROW, other])


def test_those_who_are_compared_with_are_shown_by_themselves() -> None:
    rows = {"train_step": kept(figure(0.4, case="4L-d128-32x512", metric="cpu_s_over_tunix", benchmark="train_step"))}
    rows["publish"] = kept(figure(0.1, case="reader/in_place", metric="pause_s_per_gb", benchmark="publish"))
    text = fill("<!-- results:begin peers -->\n<!-- results:end -->\n", rows)
    assert "Tunix" in text
    assert "publish" not in text
    assert "png" not in text
    assert "Tunix" in fill("<!-- results:begin -->\n<!-- results:end -->\n", rows)


def test_a_full_table_has_every_figure_or_says_how_to_get_them() -> None:
    table = full_table("engine", {"engine": kept(figure(1.0), figure(2.0, metric="other"))})
    assert "| `tiny` | `ratio` | 1 |" in table
    assert "|  | `other` | 2 |" in table
    assert "benchmarks.http --json > benchmarks/results/http.jsonl" in full_table("http", {})


def test_text_without_a_place_for_figures_is_refused() -> None:
    with pytest.raises(ConfigError, match="results:begin"):
        fill("nothing here", {})


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["{"], "line 1: expected a figure of engine"),
        ([line(figure(1.0, benchmark="http"))], "line 1: expected a figure of engine"),
        ([json.dumps(asdict(figure(1.0)))], "expected a figure of engine"),  # without its machine
        ([line(figure(1.0)), line(figure(2.0))], "holds a figure twice"),
        ([], "is empty"),
    ],
)
def test_a_file_that_no_benchmark_has_printed_is_refused(lines: list[str], message: str, tmp_path: Path) -> None:
    (tmp_path / "engine.jsonl").write_text("\n".join(lines))
    with pytest.raises(ConfigError, match=message):
        read_results(tmp_path)


def test_figures_are_read_back_as_they_were_printed(tmp_path: Path) -> None:
    found = figure(1.0, 2.0, 3.0)
    (tmp_path / "engine.jsonl").write_text(line(found) + "\n" + line(figure(5.0, metric="b"), commit="abd") + "\n")
    results = read_results(tmp_path)
    assert results["engine"].find("tiny", "ratio") == found
    assert results["engine"].find("tiny", "c") is None
    assert results["engine"].commit == "abc, abd"


def test_what_is_no_number_is_read_and_shown(tmp_path: Path) -> None:
    (tmp_path / "engine.jsonl").write_text("\n".join(json_lines([figure(float("nan"))])))
    assert "| `tiny` | `ratio` | — |" in full_table("engine", read_results(tmp_path))


def test_every_row_names_a_benchmark_and_no_figure_twice() -> None:
    for row in ROWS:
        assert (REPOSITORY / "benchmarks" / f"{row.benchmark}.py").is_file()
    names = [(row.benchmark, row.case, row.metric) for row in ROWS]
    assert len(set(names)) == len(names)


def test_plots_are_drawn_from_the_numbers_in_the_names_of_cases(tmp_path: Path) -> None:
    figures = [
        figure(float(gpus), case=f"gpus={gpus} best", metric=metric, benchmark="async_vs_sync")
        for gpus in (64, 16)
        for metric in ("tokens_per_s", "bound_tokens_per_s")
    ]
    figures.append(figure(2.0, case="sigma=0.7 gpus=16 max_staleness=4", metric="over_colocated"))
    found = kept(*figures)
    assert numbered(found, r"gpus=(\d+) best", "tokens_per_s") == {16.0: 16.0, 64.0: 64.0}
    assert list(numbered(found, r"gpus=(\d+) best", "tokens_per_s")) == [16.0, 64.0]
    (path,) = draw_plots({"async_vs_sync": found, "http": kept(figure(1.0))}, tmp_path)
    assert path.read_bytes().startswith(b"\x89PNG")
    shutil.rmtree(tmp_path)
