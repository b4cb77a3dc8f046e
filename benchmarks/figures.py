"""What every benchmark prints: figures, as a table to read or as one JSON line each to keep.

A figure is the median of its repeats, with the smallest and the largest beside it. A ratio of two cases is a figure
of its own, taken within each repeat and not from the medians.
"""

import importlib.metadata
import os
import platform
import statistics
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from agentrl_jax.runlog import to_json

_REPOSITORY = Path(__file__).resolve().parents[1]
_PACKAGES = ("agentrl_jax", "jax", "flax", "numpy", "trio")


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """value, min and max are over `repeats` repeats, in `unit` ("" for ratios and shares)."""

    benchmark: str
    case: str
    metric: str
    value: float
    unit: str
    min: float
    max: float
    repeats: int


def summarise(values: Sequence[float], *, benchmark: str, case: str, metric: str, unit: str) -> Figure:
    """The figure of one measured quantity; `values` has one entry per repeat, and at least one."""
    return Figure(
        benchmark=benchmark,
        case=case,
        metric=metric,
        value=statistics.median(values),
        unit=unit,
        min=min(values),
        max=max(values),
        repeats=len(values),
    )


def json_lines(figures: Iterable[Figure]) -> Iterator[str]:
    """One line of strict JSON per figure: its fields, and the commit, machine and versions that made it."""
    for figure in figures:
        yield to_json({**asdict(figure), **provenance()})


def table(figures: Sequence[Figure]) -> str:
    """A row per case, a column per metric; `median (min-max)` where repeats differ."""
    cases = list(dict.fromkeys(figure.case for figure in figures))
    metrics = list(dict.fromkeys(figure.metric for figure in figures))
    cells = {(figure.case, figure.metric): _cell(figure) for figure in figures}
    rows = [["case", *metrics], *([case, *(cells.get((case, metric), "") for metric in metrics)] for case in cases)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)


def _cell(figure: Figure) -> str:
    value, low, high = (f"{number:.3g}" for number in (figure.value, figure.min, figure.max))
    return value if low == high else f"{value} ({low}-{high})"


@cache
def provenance() -> dict[str, Any]:
    """commit: short hash, with "+" if tracked files differ from it; "" outside a checkout."""
    return {
        "commit": _git("rev-parse", "--short", "HEAD") + ("+" if _git("status", "--short", "-uno") else ""),
        "machine": f"{_processor()}, {os.cpu_count()} cores",
        "versions": {
            "python": platform.python_version(),
            **{name: importlib.metadata.version(name) for name in _PACKAGES},
        },
    }


def _git(*arguments: str) -> str:
    try:
        done = subprocess.run(["git", *arguments], cwd=_REPOSITORY, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def _processor() -> str:
    """The processor's own name where the system tells it, else its architecture."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return next(iter(names), platform.machine())
