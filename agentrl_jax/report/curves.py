"""The curves of a run as one picture, drawn from its run directory alone."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from agentrl_jax.report.figures import surviving_records

_SMOOTHING = 5
"""Steps that each point of a smoothed curve averages over."""

_PARTS = {"collect_s": "waiting for groups", "learn_s": "learning", "publish_s": "publishing"}


def draw_curves(run_dir: Path) -> Path | None:
    """Write RUN_DIR/curves.png and return its path; None if the run took no step of reinforcement learning.

    Above: success by environment, each step's episodes as a thin line and their mean over five steps as a thick one;
    evaluations on held-out tasks before and after, sampled (filled) and greedy (hollow), with 95 % intervals.
    Below: where the time of each step went.
    """
    records = surviving_records(run_dir / "metrics.jsonl")
    steps = [record for record in records if record["kind"] == "step" and "envs" in record]
    if not steps:
        return None
    evaluations = [record for record in records if record["kind"] == "evaluation"]
    figure = Figure(figsize=(10, 7), layout="constrained")
    FigureCanvasAgg(figure)
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    _draw_success(above, steps, evaluations)
    _draw_time(below, steps)
    figure.suptitle(f"{run_dir.name}: {len(steps)} steps, version {steps[-1]['version'] + steps[-1]['is_applied']}")
    path = run_dir / "curves.png"
    figure.savefig(path, dpi=120)
    return path


def _draw_success(axes: Axes, steps: Sequence[Mapping[str, Any]], evaluations: Sequence[Mapping[str, Any]]) -> None:
    colours = matplotlib.colormaps["tab10"].colors  # type: ignore[attr-defined]
    for number, env in enumerate(sorted({env for step in steps for env in step["envs"]})):
        colour = colours[number % len(colours)]
        points = [(step["step"], step["envs"][env]["success_rate"]) for step in steps if env in step["envs"]]
        known = [(x, y) for x, y in points if y is not None]
        xs, ys = [x for x, _ in known], [y for _, y in known]
        axes.plot(xs, ys, color=colour, alpha=0.3, linewidth=1)
        axes.plot(xs, _smoothed(ys), color=colour, linewidth=2, label=env)
        _draw_evaluations(axes, [e for e in evaluations if e["env"] == env], colour)
    if evaluations:  # in the legend, what all colours have in common
        axes.plot([], [], color="grey", linewidth=2, label="training")
        for mode in ("sampled", "greedy"):
            axes.plot([], [], **_mark(mode, "grey"), label=f"held out, {mode}")
    axes.set_ylim(-0.03, 1.03)
    axes.set_ylabel("success")
    axes.grid(alpha=0.3)
    _place_legend(axes)


def _place_legend(axes: Axes) -> None:
    """Beside the picture, where it hides nothing."""
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), fontsize="small", frameon=False)


def _mark(mode: str, colour: Any) -> dict[str, Any]:
    face = colour if mode == "sampled" else "white"
    return {"color": colour, "marker": "o", "markerfacecolor": face, "linestyle": "none"}


def _draw_evaluations(axes: Axes, found: Sequence[Mapping[str, Any]], colour: Any) -> None:
    newest = {(e["mode"], e["step"]): e for e in found}
    for (mode, step), e in newest.items():
        rate = e["success_rate"]
        if rate is None:
            continue
        axes.errorbar(
            [step + (0.0 if mode == "sampled" else 0.5)],
            [rate],
            yerr=[[rate - e["success_low"]], [e["success_high"] - rate]],
            capsize=3,
            **_mark(mode, colour),
        )


def _draw_time(axes: Axes, steps: Sequence[Mapping[str, Any]]) -> None:
    xs = [step["step"] for step in steps]
    axes.stackplot(xs, *([step[part] for step in steps] for part in _PARTS), labels=list(_PARTS.values()))
    axes.set_ylabel("seconds a step")
    axes.set_xlabel("learner step")
    _place_legend(axes)


def _smoothed(values: Sequence[float]) -> list[float]:
    windows = [values[max(0, end - _SMOOTHING) : end] for end in range(1, len(values) + 1)]
    return [sum(window) / len(window) for window in windows]
