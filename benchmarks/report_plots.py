"""The plots of docs/plots/, drawn from kept figures."""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure as Picture

from benchmarks.report_results import Kept, Results

_SIZE = (9.0, 3.6)


def plot_names(results: Results) -> list[str]:
    """The plots that these results give."""
    return [name for name in _PLOTS if name in results]


def draw_plots(results: Results, folder: Path) -> list[Path]:
    """Draw them all; return the files."""
    folder.mkdir(parents=True, exist_ok=True)
    return [draw(name, results[name], folder / f"{name}.png") for name in plot_names(results)]


def draw(name: str, kept: Kept, path: Path) -> Path:
    """Draw one of them into `path`, and return it."""
    picture = Picture(figsize=_SIZE, layout="constrained")
    FigureCanvasAgg(picture)
    left, right = picture.subplots(1, 2)
    _PLOTS[name](left, right, kept)
    for axes in (left, right):
        axes.grid(alpha=0.3)
        if labels := axes.get_legend_handles_labels()[1]:
            axes.legend(fontsize="small" if len(labels) < 8 else "xx-small", loc="best")
    picture.savefig(path, dpi=110, metadata={"Software": None})
    return path


def numbered(kept: Kept, case: str, metric: str) -> dict[float, float]:
    """Values of a metric by the number at `(…)` in the name of the case, in rising order."""
    pattern = re.compile(case)
    found = {}
    for figure in kept.figures:
        match = pattern.fullmatch(figure.case)
        if match and figure.metric == metric:
            found[float(match[1])] = figure.value
    return dict(sorted(found.items()))


def _line(axes: Axes, values: Mapping[float, float], label: str, style: str = "o-", **options: Any) -> None:
    if values:
        axes.plot(list(values), list(values.values()), style, label=label, **options)


def _ticks(axes: Axes, values: Mapping[float, float]) -> None:
    """Name the sizes that were measured, instead of powers of ten."""
    sizes = [int(number) for number in values]
    axes.set_xticks(sizes, list(map(str, sizes)), minor=False)
    axes.set_xticks([], minor=True)


def _async_vs_sync(left: Axes, right: Axes, kept: Kept) -> None:
    for metric, label, style in (
        ("bound_tokens_per_s", "no scheduler beats", "kv:"),
        ("tokens_per_s", "asynchronous", "o-"),
        ("sync_tokens_per_s", "synchronous, colocated", "s-"),
        ("published_sync_tokens_per_s", "synchronous, published", "x--"),
    ):
        _line(left, numbered(kept, r"gpus=(\d+) best", metric), label, style)
    left.set(xlabel="GPUs", ylabel="tokens/s", title="14B on WebShop, simulated", xscale="log", yscale="log")
    _ticks(left, numbered(kept, r"gpus=(\d+) best", "tokens_per_s"))
    case, by = r"sigma=([\d.]+) gpus=\d+ max_staleness=\d+(?: in_place)?", "sigma of latencies and turns"
    if not numbered(kept, case, "over_colocated"):
        case, by = r"gpus=16 max_staleness=(\d+)", "max_staleness, 16 GPUs"
    _line(right, numbered(kept, case, "over_colocated"), "asynchronous over synchronous")
    _line(right, numbered(kept, case, "fraction_of_bound"), "share of the bound", "s-")
    right.axhspan(1.9, 2.1, alpha=0.15, label="published ratios")
    right.set(xlabel=by, ylim=(0, None), title="what it depends on")


def _scale(left: Axes, right: Axes, kept: Kept) -> None:
    case = r"gpus=(\d+)"
    _line(left, numbered(kept, case, "bound_tokens_per_s"), "no scheduler beats", "k:")
    _line(left, numbered(kept, case, "tokens_per_s"), "simulated")
    left.set(xlabel="GPUs", ylabel="tokens/s", xscale="log", yscale="log", title="throughput")
    for metric, label, style in (
        ("fraction_of_bound", "share of the bound", "o-"),
        ("learner_busy_frac", "learner busy", "s-"),
        ("straggler_wait_frac", "waiting for stragglers", "^-"),
        ("controller_core_frac", "one core by the controller", "x--"),
    ):
        _line(right, numbered(kept, case, metric), label, style)
    right.set(xlabel="GPUs", xscale="log", ylim=(0, None), title="what it bends on")
    for axes in (left, right):
        _ticks(axes, numbered(kept, case, "tokens_per_s"))


def _learning(left: Axes, right: Axes, kept: Kept) -> None:
    """An arm has a colour, and an environment a style of line."""
    cases = dict.fromkeys(f.case.partition(" step=")[0] for f in kept.figures if " step=" in f.case)
    arms = list(dict.fromkeys(case.rpartition(" ")[0] for case in cases))
    envs = list(dict.fromkeys(case.rpartition(" ")[2] for case in cases))
    for case in cases:
        arm, _, env = case.rpartition(" ")
        style, colour = ("o-", "s--", "^:", "v-.", "x-")[envs.index(env) % 5], f"C{arms.index(arm) % 10}"
        curve = numbered(kept, re.escape(case) + r" step=(\d+)", "success")
        _line(left, curve, case, style, color=colour, markersize=4)
    left.set(xlabel="step", ylabel="success", ylim=(-0.02, 1.02), title="learning curves")
    mixtures = list(dict.fromkeys(f.case.partition(" k=")[0] for f in kept.figures if " k=" in f.case))
    for mixture in mixtures:
        _line(right, numbered(kept, re.escape(mixture) + r" k=(\d+)", "pass_at_k"), mixture, "o-")
    if not mixtures:
        right.text(0.5, 0.5, "not run yet", ha="center", va="center", transform=right.transAxes)
    right.set(xlabel="k", ylabel="pass@k", ylim=(-0.02, 1.02), title="several policies at one episode")


_PLOTS: Mapping[str, Callable[[Axes, Axes, Kept], None]] = {
    "async_vs_sync": _async_vs_sync,
    "scale": _scale,
    "learning": _learning,
}
