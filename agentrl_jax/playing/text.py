"""The scores of an evaluation as a table. Pure functions of scores."""

from collections.abc import Sequence

from agentrl_jax.playing.scores import Score
from agentrl_jax.types import EpisodeEnd


def score_table(scores: Sequence[Score]) -> list[str]:
    """A line for each env and mixture: mean success with its 95 % interval, pass@k, best of n, and how else it ended.

    With one sample of each task, pass@k and best of n say nothing more, and are left out.
    """
    ks = [k for k in sorted({k for found in scores for k in found.pass_at_k}) if k > 1]
    head = ["env", "mixture", "tasks", "episodes", "success", "95 %", *(f"pass@{k}" for k in ks)]
    head += ["best reward"] if ks else []
    rows = [[*head, "reward", "turns", "other ends"]]
    for found in scores:
        low, high = found.interval
        row = [found.env, found.mixture, str(found.num_tasks), str(found.num_episodes), _percent(found.avg_at_k)]
        row += [f"[{100 * low:.1f}, {100 * high:.1f}]"]
        row += [_percent(found.pass_at_k[k]) if k in found.pass_at_k else "-" for k in ks]
        row += [f"{found.best_of_n:+.3f}"] if ks else []
        rows.append([*row, f"{found.reward_mean:+.3f}", f"{found.turns_mean:.1f}", _other_ends(found)])
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _other_ends(found: Score) -> str:
    others = sorted((count, end.value) for end, count in found.ends.items() if end is not EpisodeEnd.COMPLETED)
    return ", ".join(f"{name} {count}" for count, name in reversed(others))


def _percent(rate: float) -> str:
    return "-" if rate != rate else f"{100 * rate:.1f} %"
