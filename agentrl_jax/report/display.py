"""What a run shows while it goes on: a panel below its lines in a terminal, the lines alone anywhere else.

The panel is drawn from the records that the run log writes, so that it shows the same figures, and only when there is
something new: it has no thread and no clock of its own.
"""

import re
import sys
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from math import isfinite, nan
from typing import Any, TextIO

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from agentrl_jax.runlog import Observer

_RECENT = 5
"""Steps that rates and the remaining time are taken from."""

_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""What a terminal may take for an order, other than tabs and new lines."""

_BARS = "▁▂▃▄▅▆▇█"
_SPARKS = 20


@dataclass(frozen=True, slots=True)
class Display:
    """say: prints a line. observe: takes the records of a run log."""

    say: Callable[[str], None]
    observe: Observer


@contextmanager
def open_display(
    max_steps: int | None,
    environ: Mapping[str, str],
    *,
    max_minutes: float | None = None,
    stream: TextIO | None = None,
    width: int | None = None,
) -> Iterator[Display]:
    """A live display on `stream` (standard output) if that is a terminal, plain lines otherwise.

    max_steps: None if only the records say. max_minutes: of reinforcement learning.
    Plain too in CI and where TERM is dumb: nobody watches there, or cursor movements would be printed as they are.
    """
    stream = sys.stdout if stream is None else stream
    if not stream.isatty() or environ.get("CI") or environ.get("TERM", "dumb") in ("dumb", "unknown", ""):
        yield Display(
            say=lambda line: print(_printable(line), file=stream, flush=True), observe=lambda kind, record: None
        )
        return
    console = Console(file=stream, highlight=False, width=width)
    progress = Progress(max_steps, max_minutes)
    with Live(progress.panel(), console=console, auto_refresh=False, transient=True) as live:

        def say(line: str) -> None:
            console.print(Text(_printable(line)))  # a text, not markup: agents and servers may write brackets

        def observe(kind: str, record: Mapping[str, Any]) -> None:
            progress.observe(kind, record)
            live.update(progress.panel(), refresh=True)

        yield Display(say=say, observe=observe)


class Progress:
    """Where a run stands, from its records, and how that looks."""

    def __init__(self, max_steps: int | None, max_minutes: float | None = None) -> None:
        self.max_steps, self.max_minutes = max_steps, max_minutes
        self.phase = "starting"
        self.last: Mapping[str, Any] = {}
        self.step_s: deque[float] = deque(maxlen=_RECENT)
        self.success: dict[str, deque[float]] = {}
        self.held_out: dict[str, str] = {}
        self.validation: Mapping[str, Any] = {}
        self.ends: deque[Mapping[str, int]] = deque(maxlen=_RECENT)
        self.num_warnings = 0

    def observe(self, kind: str, record: Mapping[str, Any]) -> None:
        """Take one record of a run log."""
        if kind == "step" and "sft_s" in record:
            self.step_s.append(record["sft_s"] - self.last.get("sft_s", 0.0))
            self.phase, self.last, self.max_steps = "supervised fine-tuning", record, record["max_steps"]
        elif kind == "step":
            self.phase, self.last = "reinforcement learning", record
            self.step_s.append(record["step_s"])
            self.ends.append(record["ends"])
            for env, metrics in record["envs"].items():
                if isfinite(metrics["success_rate"]):
                    self.success.setdefault(env, deque(maxlen=_SPARKS)).append(metrics["success_rate"])
        elif kind == "warm_up":
            self.phase = f"warm-up ({record['phase']}), step {record['step']}, loss {record['loss']:.3f}"
        elif kind == "evaluation":
            self.phase = f"evaluation {record['when']} training"
            rate = _percent(record["success_rate"])
            self.held_out[record["env"]] = f"{rate} ({record['mode']}, step {record['step']})"
        elif kind == "validation":
            self.validation = record
        self.num_warnings += kind == "warning"

    @property
    def remaining_s(self) -> float | None:
        """Seconds until max_steps at the mean pace of the last steps, or until max_minutes; None before the first."""
        if not self.step_s or self.max_steps is None:
            return None
        seconds: float = (self.max_steps - self.last["step"]) * sum(self.step_s) / len(self.step_s)
        if self.max_minutes is not None:
            seconds = min(seconds, max(0.0, 60 * self.max_minutes - self.last["rl_s"]))
        return seconds

    @property
    def failures(self) -> dict[str, int]:
        """How episodes of the last steps ended that were not completed, the most frequent end first."""
        counts = Counter[str]()
        for ends in self.ends:
            counts.update({end: count for end, count in ends.items() if end != "completed" and count})
        return dict(counts.most_common())

    def panel(self) -> RenderableType:
        """The whole display."""
        rows: list[RenderableType] = [self._head()]
        if "sft_s" in self.last:
            rows.append(Text(self._fit(), style="dim"))
        elif self.last:
            rows += [Text(self._pace(), style="dim"), self._tasks()]
            failures = ", ".join(f"{end} {count}" for end, count in self.failures.items())
            rows.append(Text(f"ends of the last {len(self.ends)} steps: {failures or 'all completed'}"))
        if self.num_warnings:
            rows.append(Text(f"{self.num_warnings} warnings, see above", style="yellow"))
        return Panel(Group(*rows), title=self.phase, title_align="left", border_style="dim", padding=(0, 1))

    def _head(self) -> RenderableType:
        step = self.last.get("step", 0)
        remaining = self.remaining_s
        head = Table.grid(padding=(0, 2))
        head.add_row(
            Text(f"step {step}/{self.max_steps or '?'}", style="bold"),
            ProgressBar(total=max(1, self.max_steps or 1), completed=step, width=32),
            Text("" if remaining is None else f"{_duration(remaining)} left"),
        )
        return head

    def _pace(self) -> str:
        rates, last = self.last["throughput"], self.last
        staleness = last["metrics"].get("token_staleness", nan)
        stale = f", mean lag {staleness:.2f}" if isfinite(staleness) else ""
        parts = [f"{last[name]:.1f} s {what}" for name, what in _TIMES.items()]
        return (
            f"{rates['loss_tokens_per_s']:,.0f} tokens/s · {rates['episodes_per_s']:.1f} episodes/s · "
            f"age ≤ {last['age_max']}{stale} · {', '.join(parts)}"
        )

    def _fit(self) -> str:
        metrics = self.last["metrics"]
        seconds = sum(self.step_s) / len(self.step_s)
        parts = [
            f"loss {metrics.get('loss', nan):.3f}",
            f"learning rate {metrics['learning_rate']:.2g}",
            f"{seconds:.1f} s a step",
        ]
        if self.validation:
            held_out = self.validation
            parts.append(
                f"held out: loss {held_out['mean_loss']:.3f}, accuracy {_percent(held_out['accuracy'])} "
                f"(step {held_out['step']})"
            )
        return " · ".join(parts)

    def _tasks(self) -> RenderableType:
        table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
        for name in ("task", "success", "last steps", "reward", "no signal", "held out"):
            table.add_column(name)
        for env, metrics in self.last["envs"].items():
            table.add_row(
                Text(env),
                _percent(metrics["success_rate"]),
                "".join(_BARS[min(len(_BARS) - 1, int(rate * len(_BARS)))] for rate in self.success.get(env, ())),
                f"{metrics['reward_mean']:+.3f}",
                _percent(metrics["zero_signal_frac"]),
                Text(self.held_out.get(env, "")),
            )
        return table


_TIMES = {"collect_s": "waiting", "learn_s": "learning", "publish_s": "publishing"}


def _printable(line: str) -> str:
    r"""`line` without orders to a terminal, which what is quoted of environments and servers may hold.

    >>> _printable("the env said: \x1b[2Jgone")
    'the env said: \\x1b[2Jgone'
    """
    return _CONTROLS.sub(lambda found: f"\\x{ord(found[0]):02x}", line)


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %" if isfinite(share) else "?"


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {rest:02} s" if minutes else f"{rest} s"
