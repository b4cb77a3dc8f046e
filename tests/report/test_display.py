"""What a run shows: a live panel in a terminal, lines anywhere else, the same figures in both."""

import io
import os
import re
import subprocess
import sys
from math import nan
from pathlib import Path
from typing import Any

import pytest

from agentrl_jax.report.display import Progress, open_display

ENV = {"success_rate": 0.5, "reward_mean": 0.25, "zero_signal_frac": 0.1}


def step(number: int, rate: float = 0.5, **changes: Any) -> dict[str, Any]:
    return {
        "step": number,
        "step_s": 10.0,
        "collect_s": 6.0,
        "learn_s": 3.0,
        "publish_s": 1.0,
        "age_max": 2,
        "metrics": {"token_staleness": 1.25},
        "ends": {"completed": 7, "max_turns": 2, "env_error": 1},
        "envs": {"kg": {**ENV, "success_rate": rate}},
        "rl_s": 10.0 * number,
        "throughput": {"loss_tokens_per_s": 1234.0, "episodes_per_s": 1.6, "tokens_per_s": 9.0},
        **changes,
    }


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def shown(stream: io.StringIO) -> str:
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", stream.getvalue())


def test_a_terminal_shows_where_the_run_stands() -> None:
    stream = Terminal()
    with open_display(10, {"TERM": "xterm-256color"}, stream=stream, width=150) as display:
        display.say("a line [with] brackets")
        display.observe(
            "evaluation", {"when": "before", "step": 0, "env": "kg", "mode": "greedy", "success_rate": 0.125}
        )
        display.observe("warning", {"text": "careful"})
        display.observe("step", step(4))
    text = shown(stream)
    assert "\x1b[" in stream.getvalue()
    assert "a line [with] brackets" in text
    for part in (
        "step 4/10",
        "1 min 00 s left",
        "1,234 tokens/s",
        "1.6 episodes/s",
        "age ≤ 2, mean lag 1.25",
        "6.0 s waiting, 3.0 s learning, 1.0 s publishing",
        "50.0 %",
        "+0.250",
        "12.5 % (greedy, step 0)",
        "max_turns 2, env_error 1",
        "1 warnings",
    ):
        assert part in text, part


@pytest.mark.parametrize(
    ("terminal", "environ"),
    [
        (False, {"TERM": "xterm"}),
        (True, {"TERM": "xterm", "CI": "true"}),
        (True, {"TERM": "dumb"}),
        (True, {}),
    ],
)
def test_elsewhere_there_are_plain_lines(terminal: bool, environ: dict[str, str]) -> None:
    stream = Terminal() if terminal else io.StringIO()
    with open_display(10, environ, stream=stream) as display:
        display.say("one")
        display.observe("step", step(1))
        display.say("two")
    assert stream.getvalue() == "one\ntwo\n"


def test_a_pipe_gets_lines_at_once(tmp_path: Path) -> None:
    program = (
        "import os\nfrom agentrl_jax.report.display import open_display\n"
        "with open_display(3, {'TERM': 'xterm'}) as display:\n    display.say('first')\n    os._exit(0)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, env={**os.environ}, timeout=60
    )
    assert (done.stdout, done.stderr) == ("first\n", "")


def test_the_remaining_time_is_that_of_the_last_steps() -> None:
    progress = Progress(20)
    assert progress.remaining_s is None
    for number, seconds in enumerate((100.0, 2.0, 2.0, 2.0, 2.0, 2.0), 1):
        progress.observe("step", step(number, step_s=seconds))
    assert progress.remaining_s == 14 * 2.0


def test_the_remaining_time_is_never_more_than_the_run_is_given() -> None:
    progress = Progress(20, max_minutes=1.0)
    progress.observe("step", step(1))
    assert progress.remaining_s == 50.0
    progress.observe("step", step(19))
    assert progress.remaining_s == 0.0
    assert Progress(20, max_minutes=9.0).remaining_s is None


def test_supervised_steps_are_shown_as_such() -> None:
    stream = Terminal()
    with open_display(None, {"TERM": "xterm"}, stream=stream, width=150) as display:
        display.observe("validation", {"step": 0, "mean_loss": 3.0, "accuracy": 0.25})
        for number, seconds in ((1, 9.0), (2, 11.0)):
            metrics = {"loss": 2.5, "learning_rate": 1e-5}
            display.observe("step", {"step": number, "max_steps": 8, "sft_s": seconds, "metrics": metrics})
        display.observe("step", {"step": 3, "max_steps": 8, "sft_s": 13.0, "metrics": {"learning_rate": 2e-5}})
    text = shown(stream)
    for part in ("step 0/?", "supervised fine-tuning", "step 2/8", "loss 2.500", "learning rate 1e-05", "5.5 s a step"):
        assert part in text, part
    assert "33 s left" in text
    assert "held out: loss 3.000, accuracy 25.0 % (step 0)" in text
    assert "loss nan" in text


@pytest.mark.parametrize("environ", [{"TERM": "xterm"}, {"TERM": "dumb"}])
def test_what_is_quoted_gives_no_orders_to_a_terminal(environ: dict[str, str]) -> None:
    stream = Terminal()
    with open_display(10, environ, stream=stream, width=150) as display:
        display.say("an env said \x1b]0;title\x07\x1b[2J\x9b31m\tand\rmore")
    assert r"an env said \x1b]0;title\x07\x1b[2J\x9b31m" in stream.getvalue()
    assert r"and\x0dmore" in stream.getvalue()


def test_failures_are_those_of_the_last_five_steps() -> None:
    progress = Progress(20)
    progress.observe("step", step(1, ends={"engine_error": 9}))
    for number in range(2, 7):
        progress.observe("step", step(number, ends={"completed": 5, "max_turns": number, "cancelled": 0}))
    assert progress.failures == {"max_turns": 20}


def test_a_task_that_was_not_played_has_no_rate() -> None:
    stream = Terminal()
    with open_display(10, {"TERM": "xterm"}, stream=stream, width=150) as display:
        display.observe("step", step(1, nan, metrics={}, ends={"completed": 3}))
    assert "?" in shown(stream)
    assert "mean lag" not in shown(stream)
    assert "all completed" in shown(stream)
