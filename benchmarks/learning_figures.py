"""What the finished cells of benchmarks.learning say: success by arm and task, gains, curves, pass@k. Pure functions.

A seed is one observation: all arms of a seed begin with the same warm policy and are compared within it. Intervals are
95 %, by Student's t over seeds, so that two seeds say next to nothing, and say that.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from math import nan
from statistics import fmean
from typing import Any

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
            mean, (low, high) = difference_of_means(rates, [0.0] * len(rates))
            yield from _interval(f"{arm} {env}", "success", mean, max(low, 0.0), high)
        seconds = [cell["seconds"] for cell in by_seed.values()]
        yield _figure(f"{arm}", "seconds", seconds, "s")


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
            mean, (low, high) = difference_of_means(mine, full)
            yield from _interval(f"{arm} over {BASE} {env}", "gain", mean, low, high)


def _curves(arms: Sequence[Cell]) -> Iterator[Figure]:
    for arm, by_seed in _by_arm(arms).items():
        points: dict[int, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
        for seed, cell in by_seed.items():
            for point in cell["curve"]:
                points[point["step"]][seed].append(point["success"])
        for step, found in sorted(points.items()):
            yield _figure(f"{arm} step={step}", "success", [fmean(rates) for rates in found.values()])


def _interval(case: str, metric: str, mean: float, low: float, high: float) -> Iterator[Figure]:
    for name, value in (("mean", mean), ("low", low), ("high", high)):
        yield _figure(case, f"{metric}_{name}", [value])


def _figure(case: str, metric: str, values: Sequence[float], unit: str = "") -> Figure:
    return summarise(values, benchmark=NAME, case=case, metric=metric, unit=unit)
