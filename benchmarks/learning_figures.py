"""What the finished cells of benchmarks.learning say: success by arm and task, gains, curves, pass@k. Pure functions.

A seed is one observation: all arms of a seed begin with the same warm policy and are compared within it. Intervals are
95 %, by Student's t over seeds, so that two seeds say next to nothing, and say that. Seeds may agree by chance, or
because all episodes ended alike: no interval is narrower than that of the episodes (Wilson's, Newcombe's).
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import nan
from typing import Any

from agentrl_jax.algo.intervals import difference_interval, proportion_interval
from agentrl_jax.algo.passk import difference_of_means
from benchmarks.figures import Figure, summarise

NAME = "learning"
BASE = "full"

Cell = Mapping[str, Any]
"""A line of cells.jsonl."""


def learning_figures(cells: Sequence[Cell]) -> Iterator[Figure]:
    """All figures that these cells allow."""
    arms = [cell for cell in cells if "success" in cell]
    yield from _success(arms)
    yield from _gains(arms)
    yield from _curves(arms)
    for cell in cells:
        for found in cell.get("curves", ()):
            for k, rate in found["pass_at_k"].items():
                yield _figure(f"{found['mixture']} {found['env']} k={k}", "pass_at_k", [rate])


def rate(cell: Cell, env: str) -> float:
    """Success of a cell on one environment; NaN if no episode was valid."""
    found = cell["success"][env]
    return found["num_successes"] / found["num_valid"] if found["num_valid"] else nan


def _by_arm(arms: Sequence[Cell]) -> dict[str, dict[int, Cell]]:
    found: dict[str, dict[int, Cell]] = defaultdict(dict)
    for cell in arms:
        found[cell["arm"]][cell["seed"]] = cell
    return found


def _success(arms: Sequence[Cell]) -> Iterator[Figure]:
    for arm, by_seed in _by_arm(arms).items():
        for env in next(iter(by_seed.values()))["success"]:
            rates = [rate(cell, env) for cell in by_seed.values()]
            yield _figure(f"{arm} {env}", "success", rates)
            mean, of_seeds = difference_of_means(rates, [0.0] * len(rates))
            low, high = _hull(of_seeds, proportion_interval(*_pooled(by_seed.values(), env)))
            yield from _interval(f"{arm} {env}", "success", mean, max(low, 0.0), high)


def _gains(arms: Sequence[Cell]) -> Iterator[Figure]:
    by_arm = _by_arm(arms)
    for arm, by_seed in by_arm.items():
        seeds = [seed for seed in by_seed if seed in by_arm.get(BASE, {})]
        if arm == BASE or not seeds:
            continue
        for env in by_seed[seeds[0]]["success"]:
            mine = [rate(by_seed[seed], env) for seed in seeds]
            full = [rate(by_arm[BASE][seed], env) for seed in seeds]
            yield _figure(f"{arm} over {BASE} {env}", "gain", [a - b for a, b in zip(mine, full, strict=True)])
            mean, of_seeds = difference_of_means(mine, full)
            both = [_pooled([found[seed] for seed in seeds], env) for found in (by_seed, by_arm[BASE])]
            low, high = _hull(of_seeds, difference_interval(*both[0], *both[1]))
            yield from _interval(f"{arm} over {BASE} {env}", "gain", mean, low, high)


def _curves(arms: Sequence[Cell]) -> Iterator[Figure]:
    for arm, by_seed in _by_arm(arms).items():
        points: dict[tuple[str, int], list[float]] = defaultdict(list)
        for cell in by_seed.values():
            for point in cell["curve"]:
                points[point["env"], point["step"]].append(point["success"])
        for (env, step), rates in sorted(points.items()):
            yield _figure(f"{arm} {env} step={step}", "success", rates)


def _pooled(cells: Iterable[Cell], env: str) -> tuple[int, int]:
    """Successes and valid episodes of all of them."""
    found = [cell["success"][env] for cell in cells]
    return sum(one["num_successes"] for one in found), sum(one["num_valid"] for one in found)


def _hull(first: tuple[float, float], second: tuple[float, float]) -> tuple[float, float]:
    return min(first[0], second[0]), max(first[1], second[1])


def _interval(case: str, metric: str, mean: float, low: float, high: float) -> Iterator[Figure]:
    for name, value in (("mean", mean), ("low", low), ("high", high)):
        yield _figure(case, f"{metric}_{name}", [value])


def _figure(case: str, metric: str, values: Sequence[float], unit: str = "") -> Figure:
    return summarise(values, benchmark=NAME, case=case, metric=metric, unit=unit)
