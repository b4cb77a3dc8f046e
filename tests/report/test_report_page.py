"""The report in a real browser: what it shows, how fast it opens, and that it can be used without a mouse."""

import shlex
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentrl_jax.report.write import write_report
from agentrl_jax.runlog import RunLog
from tests.report.browser import Page, browsing
from tests.report.drawn_run import draw_run

pytestmark = pytest.mark.chromium

HOSTILE = "</script><img src=x onerror=document.title='pwned'>"


@pytest.fixture(scope="module")
def page(chromium: str) -> Iterator[Page]:
    with browsing() as page:
        yield page


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_report(draw_run(tmp_path_factory.mktemp("runs") / "small", said=HOSTILE))


@pytest.fixture
def opened(page: Page, report: Path) -> Iterator[Page]:
    """The small report, freshly opened; at the end nothing has been logged to its console."""
    page.console.clear()
    page.look()
    page.open(report)
    page.settle()
    yield page
    assert page.console == []


def test_ten_seconds_tell_whether_it_learned_and_where_the_time_went(opened: Page) -> None:
    tiles = opened.text("#overview")
    assert "25 %→75 %" in tiles
    assert "learned +50.0 points [+35.9, +64.1]" in tiles
    assert "waiting for groups 29 % 4.0 s" in tiles
    assert "learning 57 % 8.0 s" in tiles
    assert "generation" in tiles
    assert "careful" in opened.text(".warnings")
    sections = opened.evaluate("[...document.querySelectorAll('main > section')].map((e) => e.id)")
    assert sections == ["overview", "learning", "time", "staleness", "ends", "episodes", "policy", "settings"]
    assert opened.evaluate("[...document.querySelectorAll('svg.plot')].every((plot) => plot.childElementCount > 0)")
    assert opened.evaluate("document.querySelectorAll('svg.plot').length") > 12


def test_what_agents_say_is_text(opened: Page) -> None:
    opened.press("j")
    assert HOSTILE in opened.text(".viewer")
    assert opened.evaluate("document.querySelectorAll('img').length") == 0
    assert opened.evaluate("document.title") == "small · agentrl_jax"


def test_an_episode_is_read_by_keys_alone(opened: Page) -> None:
    opened.evaluate("document.querySelector('.rows').focus()")
    for key in ("ArrowDown", "ArrowDown", "Enter"):
        opened.press(key)
    assert opened.text(".viewer h3").startswith("g4-m2")
    assert opened.evaluate("location.hash") == "#episode=g4-m2"
    opened.evaluate("document.querySelector('.tokens').focus()")
    opened.press("ArrowRight")
    first = opened.text(".inspector")
    assert all(name in first for name in ("token", "engine", "learner", "ratio", "advantage", "version"))
    assert "masked: does not count" in first
    opened.press("ArrowRight")
    assert "counts in the loss" in opened.text(".inspector")
    opened.press("j")
    assert opened.text(".viewer h3").startswith("g4-m3")
    opened.press("k")
    assert opened.text(".viewer h3").startswith("g4-m2")
    opened.press("Escape")
    assert opened.evaluate("document.querySelector('.viewer').hidden")
    assert opened.evaluate("document.activeElement.className") == "rows"


def test_tokens_are_coloured_by_what_is_chosen(opened: Page) -> None:
    opened.press("j")
    colours = "new Set([...document.querySelectorAll('.token')].map((t) => getComputedStyle(t).backgroundColor)).size"
    modes = opened.evaluate("[...document.querySelectorAll('.modes input')].map((i) => i.value)")
    assert modes == ["plain", "engine", "learner", "ratio", "advantage", "version"]
    found = {}
    for _ in modes:
        mode = opened.evaluate("document.querySelector('.modes input:checked').value")
        found[mode] = opened.evaluate(colours)
        opened.press("c")
    assert found["plain"] == 1
    assert found["engine"] > 3
    assert found["ratio"] > 3


def test_charts_are_read_by_arrow_keys(opened: Page) -> None:
    opened.evaluate("document.querySelector('#learning svg').focus()")
    opened.press("ArrowRight")
    assert opened.text("#learning .readout").startswith("learner step 0held out, sampled 25.0 % [15.0 %, 35.0 %]")
    opened.press("End")
    assert "learner step 4" in opened.text("#learning .readout")
    assert "training" in opened.text("#learning .readout")


def test_filters_and_order_choose_the_rows(opened: Page) -> None:
    assert opened.text(".summary").startswith("64 episodes · success")
    opened.enter(".filters select", 0, "kg")
    assert opened.text(".summary").startswith("32 episodes of 64 · success")
    opened.enter(".filters select", 2, "success")
    assert "success 100.0 %" in opened.text(".summary")
    opened.evaluate(
        "[...document.querySelectorAll('.head button')].find((b) => b.textContent.startsWith('step')).click()"
    )
    assert opened.evaluate("document.querySelector('.space .row').children[1].textContent") == "4"
    opened.enter("input[type=search]", 0, "nothing")
    assert opened.text(".summary").startswith("0 episodes of 64")


@pytest.mark.parametrize("dark", [False, True])
def test_text_stands_out_in_light_and_dark(opened: Page, dark: bool) -> None:
    opened.look(dark=dark)
    opened.settle()
    assert (lightness(opened, "body", "backgroundColor") < 0.2) == dark
    for selector in ("body", ".tile h3", ".basis", "nav a", ".axis text", "#episodes .summary"):
        ink = "fill" if selector == ".axis text" else "color"
        assert contrast(lightness(opened, selector, ink), lightness(opened, "body", "backgroundColor")) > 4.0, selector
    opened.press("t")
    assert (lightness(opened, "body", "backgroundColor") < 0.2) == (not dark)


def lightness(page: Page, selector: str, name: str) -> float:
    """Relative luminance of a computed colour (WCAG)."""
    text = page.evaluate(f"getComputedStyle(document.querySelector({selector!r}))[{name!r}]")
    parts = [int(part) / 255 for part in text[text.index("(") + 1 : -1].split(",")[:3]]
    linear = [part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: float, other: float) -> float:
    return (max(one, other) + 0.05) / (min(one, other) + 0.05)


def test_it_fits_a_phone_and_a_sheet_of_paper(opened: Page) -> None:
    opened.look(width=390, height=800)
    opened.press("j")
    assert opened.evaluate("document.documentElement.scrollWidth") == 390
    opened.look(media="print")
    opened.settle()
    assert opened.evaluate("getComputedStyle(document.querySelector('.filters')).display") == "none"


def test_paper_is_light_whatever_the_screen_was(opened: Page) -> None:
    opened.press("t")
    assert lightness(opened, "body", "color") > 0.5
    opened.look(media="print", dark=True)
    opened.settle()
    assert contrast(lightness(opened, "body", "color"), lightness(opened, "body", "backgroundColor")) > 4.0
    assert lightness(opened, ".tile", "backgroundColor") > 0.9


def test_settings_say_what_a_resumption_changed(opened: Page) -> None:
    assert "max_steps: 3 → 4" in opened.text("#settings")


def test_a_link_opens_an_episode_and_two_runs_stand_side_by_side(page: Page, tmp_path: Path) -> None:
    one, two = (draw_run(tmp_path / name, num_steps=3, seed=seed) for seed, name in enumerate(("one", "two")))
    path = write_report(one, compare=two, episodes=["g5-m1"])
    page.console.clear()
    page.open(path)
    assert page.text(".viewer h3").startswith("g5-m1")
    assert "one and two" in page.text("h1")
    assert "What differs" in page.text("#settings")
    assert page.evaluate("document.querySelectorAll('.stroke.dash').length") > 3
    page.open(path, "#episode=g7-m0")
    assert page.text(".viewer h3").startswith("g7-m0")
    assert page.console == []


def test_a_run_without_episodes_has_no_empty_section(page: Page, tmp_path: Path) -> None:
    with RunLog(tmp_path / "fine tuned") as log:
        log.write_config({"run_dir": str(tmp_path / "fine tuned")})
        log.log_metrics("start", {"time": "2026-01-02T03:04:05+00:00"})
        for step in (1, 2):
            log.log_metrics("step", {"step": step, "metrics": {"loss": 1 / step}})
            log.log_metrics("validation", {"step": step, "mean_loss": 2 / step})
    page.console.clear()
    page.open(write_report(tmp_path / "fine tuned"))
    sections = page.evaluate("[...document.querySelectorAll('main > section')].map((section) => section.id)")
    assert sections == ["overview", "learning", "policy", "settings"]
    assert page.console == []


def test_the_command_for_an_episode_can_be_pasted(page: Page, tmp_path: Path) -> None:
    folder = draw_run(tmp_path / "it's a run", num_steps=40)  # 640 episodes, of which 200 are there token by token
    page.open(write_report(folder))
    page.evaluate("""(() => {
        for (const row of document.querySelectorAll(".space .row")) {
            row.click();
            if (document.querySelector(".notice code")) return;
        }
    })()""")
    words = shlex.split(page.text(".notice code"))
    assert words[:4] == ["python", "-m", "agentrl_jax.report", str(folder)]


def test_ten_thousand_episodes_open_in_three_seconds(page: Page, tmp_path: Path) -> None:
    folder = draw_run(tmp_path / "big", num_steps=80, num_groups=16, size=8, said="many words " * 10)
    path = write_report(folder)
    assert path.stat().st_size < 30e6
    page.console.clear()
    page.look()
    begun = time.monotonic()
    page.open(path)
    page.settle()
    opened_s = time.monotonic() - begun
    assert page.text("#episodes .summary").startswith("10\u202f240 episodes")
    assert len(page.evaluate("Object.keys(JSON.parse(document.getElementById('data').textContent).details)")) == 200
    assert opened_s < 3.0, f"{opened_s:.2f} s, {path.stat().st_size / 1e6:.1f} MB"
    assert page.evaluate("document.querySelectorAll('.space .row').length") < 60
    assert page.console == []
