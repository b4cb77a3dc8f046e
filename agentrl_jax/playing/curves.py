"""pass@k over k, a line for each mixture: what sampling more often is worth (AgentRL, arXiv 2510.04206, Fig. 8)."""

from collections.abc import Sequence
from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from agentrl_jax.playing.scores import Score

_MARKERS = {"turn": "o-", "episode": "s--"}
_WIDTH, _HEIGHT = 5.0, 4.0


def draw_pass_curves(scores: Sequence[Score], path: Path) -> bool:
    """Write a picture with one panel for each env; False, and nothing is written, if each task has one sample only.

    Policies alone are dotted, mixtures by turns solid, mixtures by episodes dashed.
    """
    curves = [found for found in scores if len(found.pass_at_k) > 1]
    if not curves:
        return False
    envs = list(dict.fromkeys(found.env for found in curves))
    figure = Figure(figsize=(_WIDTH * len(envs), _HEIGHT), layout="constrained")
    FigureCanvasAgg(figure)
    for axes, env in zip(figure.subplots(1, len(envs), squeeze=False)[0], envs, strict=True):
        for found in curves:
            if found.env == env:
                ks, rates = list(found.pass_at_k), list(found.pass_at_k.values())
                axes.plot(ks, rates, _MARKERS.get(found.mixture.partition(":")[0], "x:"), label=found.mixture)
        axes.set_xscale("log", base=2)
        axes.set_ylim(-0.03, 1.03)
        axes.set_xlabel("k")
        axes.set_ylabel("pass@k")
        axes.set_title(env)
        axes.grid(alpha=0.3)
        axes.legend(loc="best", fontsize="small")
    figure.savefig(path, dpi=120)
    return True
