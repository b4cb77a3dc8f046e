"""The report as a file: one for all, closed to the outside, and nothing an agent says gets out of its place."""

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl_jax.errors import ConfigError, RecordError
from agentrl_jax.report.__main__ import main
from agentrl_jax.report.page import embedded_json, render_page
from agentrl_jax.report.selection import MAX_DETAILED
from agentrl_jax.report.write import report_data, write_report
from agentrl_jax.runlog import RunLog
from tests.report.drawn_run import draw_run

HOSTILE = "</script><script>alert(1)</script><!--<script> ]]> {{script}} \u2028 \ud800 <img src=x onerror=alert(1)>"


class Elements(HTMLParser):
    """The start tags of a page with their attributes, and the text of its script and style elements."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[tuple[str, str]] = []
        self._in = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._in = tag

    def handle_data(self, data: str) -> None:
        if self._in in ("script", "style"):
            self.texts.append((self._in, data))

    def handle_endtag(self, tag: str) -> None:
        self._in = ""


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return draw_run(tmp_path_factory.mktemp("runs") / "a <b>run & more", said=HOSTILE.replace("\ud800", ""))


def test_the_policy_allows_this_script_and_style_and_nothing_else(run_dir: Path) -> None:
    page = write_report(run_dir).read_text(encoding="utf-8")
    elements = Elements(page)
    tags = [tag for tag, _ in elements.tags]
    assert (tags.count("script"), tags.count("style"), tags.count("img"), tags.count("link")) == (2, 1, 0, 0)
    (policy,) = (a["content"] or "" for _, a in elements.tags if a.get("http-equiv") == "Content-Security-Policy")
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == rules["base-uri"] == rules["form-action"] == "'none'"
    (style,) = (text for tag, text in elements.texts if tag == "style")
    _, script = (text for tag, text in elements.texts if tag == "script")
    for name, text in (("style-src", style), ("script-src", script)):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert rules[name] == f"'sha256-{digest}'"
    assert all(not name.startswith("on") and name != "style" for _, attributes in elements.tags for name in attributes)


def test_nothing_is_asked_of_the_outside(run_dir: Path) -> None:
    page = write_report(run_dir).read_text(encoding="utf-8")
    assert set(re.findall(r"https?://[^\s\"'`<)]*", page)) == {"http://www.w3.org/2000/svg"}
    links = [a[name] for _, a in Elements(page).tags for name in ("src", "href") if name in a]
    assert links == ["#main"]
    assert "@import" not in page
    assert "url(" not in page


def test_what_agents_say_stays_in_the_data(run_dir: Path) -> None:
    page = write_report(run_dir).read_text(encoding="utf-8")
    data = json.loads(next(text for tag, text in Elements(page).texts if tag == "script"))
    said = HOSTILE.replace("\ud800", "")
    assert said in " ".join(data["texts"])
    assert said in data["run"]["warnings"][0]["text"]
    assert "onerror" not in page.replace(embedded_json(said)[1:-1], "")
    assert "<title>a &lt;b&gt;run &amp; more" in page


@given(st.recursive(st.text(st.characters(), max_size=20) | st.just(HOSTILE), st.lists, max_leaves=5))
def test_any_data_comes_back_as_it_was(value: Any) -> None:
    page = render_page("t", {"value": value})
    texts = [text for tag, text in Elements(page).texts if tag == "script"]
    assert len(texts) == 2
    assert json.loads(texts[0]) == {"value": value}


def test_a_report_says_which_episodes_it_holds(run_dir: Path) -> None:
    data = report_data(run_dir, episodes=["g9-m1", "g9-m1"])
    assert data["episodes"]["total"] == 64
    assert len(data["details"]) == 64 <= MAX_DETAILED
    (place,) = data["open"]
    columns = data["episodes"]["columns"]
    assert (columns["group"][place], columns["member"][place]) == (9, 1)
    assert data["notes"]["numKeptBatches"] == len(data["run"]["ratio"]["steps"]) == 4
    assert sum(data["run"]["ratio"]["counts"]) > 1000


def test_two_runs_are_compared(run_dir: Path, tmp_path: Path) -> None:
    other = draw_run(tmp_path / "other", num_steps=2, seed=7)
    data = report_data(run_dir, compare=other)
    assert data["compare"]["name"] == "other"
    assert data["compare"]["steps"]["step"] == [1, 2]
    assert data["compare"]["numEpisodes"] == 32


def test_a_run_that_has_only_begun_has_a_report(tmp_path: Path) -> None:
    with RunLog(tmp_path / "run") as log:
        log.log_metrics("start", {"time": "now"})
        path = write_report(tmp_path / "run", tmp_path / "elsewhere.html")
    assert path == tmp_path / "elsewhere.html"
    assert path.read_text().startswith("<!doctype html>")
    assert report_data(tmp_path / "run")["notes"]["tokenizer"].startswith("tokens are not told apart: expected a")


def test_a_damaged_batch_is_named_and_the_rest_is_drawn(tmp_path: Path) -> None:
    folder = draw_run(tmp_path / "run", num_steps=2)
    (folder / "batches" / "step-000002.npz").write_bytes(b"PK")
    data = report_data(folder)
    assert "step-000002.npz is not a recorded batch" in data["notes"]["unreadable"][0]
    assert data["run"]["ratio"]["steps"] == [1]


def test_batches_of_steps_that_a_resume_undid_do_not_count(tmp_path: Path) -> None:
    folder = draw_run(tmp_path / "run", num_steps=3)
    counts = sum(report_data(folder)["run"]["ratio"]["counts"])
    with RunLog(folder, resume=True) as log:
        log.log_resume(1, 9)
    data = report_data(folder)
    assert data["run"]["ratio"]["steps"] == [1]
    assert 0 < sum(data["run"]["ratio"]["counts"]) < counts
    assert data["notes"]["numKeptBatches"] == 1


def test_the_command_writes_and_says_where(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = draw_run(tmp_path / "run", num_steps=1)
    assert main([str(folder), "--episode", "g5-m0", "g4-m1", "--seed", "3"]) == 0
    assert capsys.readouterr().out == f"report: {folder / 'report.html'}\n"
    assert main([str(folder), "--out", str(tmp_path / "r.html"), "--compare", str(folder)]) == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["{run}/model"], "has no metrics.jsonl; expected the run directory of a training run"),
        (["{run}", "--compare", "{run}/model"], "has no metrics.jsonl"),
        (["{run}", "--episode", "g0-m9"], "has no episode 'g0-m9' among its 16"),
        (["{run}", "--out", "{run}/no/folder.html"], "cannot be written: No such file"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    folder = draw_run(tmp_path / "run", num_steps=1)
    assert main([argument.format(run=folder) for argument in arguments]) == 2
    assert message in capsys.readouterr().err


def test_a_damaged_record_is_an_error(tmp_path: Path) -> None:
    folder = draw_run(tmp_path / "run", num_steps=1)
    path = folder / "episodes.jsonl"
    path.write_text(path.read_text().replace('"ids":"', '"ids":"*'))
    with pytest.raises(RecordError, match="in base64"):
        write_report(folder)
    assert main([str(folder)]) == 2
    path.write_text(path.read_text().replace('"pool":', '"no_pool":'))
    with pytest.raises(RecordError, match=r"expected the turns of g\d-m\d, got .*`pool`"):
        write_report(folder)
    (folder / "episodes.jsonl").unlink()
    (folder / "config.json").write_text("{")
    with pytest.raises(RecordError, match=r"config\.json: expected settings"):
        write_report(folder)
    (folder / "metrics.jsonl").write_bytes(b"\0\0\0\n")
    with pytest.raises(RecordError, match="expected a record in every line"):
        write_report(folder)
    assert main([str(folder)]) == 2
    with pytest.raises(ConfigError, match="no metrics"):
        write_report(tmp_path)
