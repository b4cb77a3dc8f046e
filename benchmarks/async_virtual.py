"""The virtual part of benchmarks.async_vs_sync: the published set-up, simulated with the real controller.

`colocated`: the synchronous baseline in which all GPUs first generate, then all train. `max_staleness=0`: the same
program as the asynchronous cases on the same division of the GPUs. All run the same model of service times.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

from benchmarks.figures import Figure, summarise
from benchmarks.service_bound import Bound, bounds
from benchmarks.service_cases import Case, Outcome, Work, colocated
from benchmarks.service_model import ServiceModel, Tail
from benchmarks.service_world import simulate

NAME = "async_vs_sync"
STALENESS = (0, 1, 2, 4)


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """num_steps: that count, of each run. rooms: of the divisions that are tried on the fewest GPUs (`with_room`).

    sigmas: of the sensitivity table, on the fewest GPUs, tail_repeats times. A repeat is a seed: other draws, another
    order of tasks.
    """

    gpus: tuple[int, ...]
    sigmas: tuple[float, ...]
    num_steps: int
    repeats: int
    tail_repeats: int
    rooms: tuple[float, ...]
    staleness: tuple[int, ...] = STALENESS


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeat:
    """The runs of one seed: the baseline, and those on one division of the GPUs by max_staleness."""

    baseline: Outcome
    runs: Mapping[int, Outcome]


def with_room(model: ServiceModel, work: Work, num_gpus: int, room: float) -> Bound:
    """The division of the best bound on which the engines need at most `room` of the learner's time, if there is one.

    Engines that could just keep up only do so with turns that take for ever, and then groups get too old.
    """
    every = bounds(model, work, num_gpus)
    return next((found for found in every if found.engine_s <= room * found.learner_s), every[0])


def find_room(model: ServiceModel, tail: Tail, size: Size) -> float:
    """The one of `size.rooms` with which the asynchronous run on the fewest GPUs is fastest."""
    num_gpus = min(size.gpus)
    if len(size.rooms) == 1:
        return size.rooms[0]
    work = simulate(colocated(num_gpus, num_steps=1), model, tail).work

    def speed(room: float) -> float:
        case = on(with_room(model, work, num_gpus, room), max(size.staleness), num_steps=3)
        return simulate(case, model, tail).tokens_per_s

    return max(size.rooms, key=speed)


def divide(model: ServiceModel, tail: Tail, num_gpus: int, room: float) -> Bound:
    """The division of the GPUs for this tail's batches (`with_room`)."""
    return with_room(model, simulate(colocated(num_gpus, num_steps=1), model, tail).work, num_gpus, room)


def on(division: Bound, max_staleness: int, *, num_steps: int, seed: int = 0) -> Case:
    """A run on one division of the GPUs."""
    return Case(
        num_engines=division.num_engines,
        num_learner_gpus=division.num_learner_gpus,
        max_staleness=max_staleness,
        num_steps=num_steps,
        seed=seed,
    )


def repeat(model: ServiceModel, tail: Tail, division: Bound, size: Size, seed: int) -> Repeat:
    """All runs of one seed."""
    num_gpus = division.num_engines + division.num_learner_gpus
    baseline = replace(colocated(num_gpus, num_steps=size.num_steps), seed=seed)
    return Repeat(
        baseline=simulate(baseline, model, tail),
        runs={k: simulate(on(division, k, num_steps=size.num_steps, seed=seed), model, tail) for k in size.staleness},
    )


def fraction_of_bound(model: ServiceModel, outcome: Outcome) -> float:
    """Of the fastest that any division of as many GPUs allows for the same batches."""
    return outcome.tokens_per_s / bounds(model, outcome.work, outcome.case.num_gpus)[0].tokens_per_s


def _summaries(case: str, values: Mapping[str, tuple[str, Sequence[float]]]) -> Iterator[Figure]:
    for metric, (unit, found) in values.items():
        yield summarise(found, benchmark=NAME, case=case, metric=metric, unit=unit)


def run_figures(model: ServiceModel, case: str, runs: Sequence[Outcome], baselines: Sequence[Outcome]) -> list[Figure]:
    """The figures of one case; each run is compared with the baseline of its own seed."""
    ratios = [run.tokens_per_s / base.tokens_per_s for run, base in zip(runs, baselines, strict=True)]
    values: dict[str, tuple[str, Sequence[float]]] = {
        "tokens_per_s": ("1/s", [run.tokens_per_s for run in runs]),
        "groups_per_s": ("1/s", [run.groups_per_s for run in runs]),
        "over_colocated": ("", ratios),
        "fraction_of_bound": ("", [fraction_of_bound(model, run) for run in runs]),
        "learner_busy_frac": ("", [run.learner_busy_frac for run in runs]),
        "engine_busy_frac": ("", [run.engine_busy_frac for run in runs]),
        "straggler_wait_frac": ("", [run.straggler_wait_frac for run in runs]),
        "live_groups": ("groups", [run.num_live for run in runs]),
        "group_age_max": ("versions", [run.age_max for run in runs]),
        "token_staleness_max": ("versions", [run.lag_max for run in runs]),
    }
    return list(_summaries(case, values))


def size_figures(model: ServiceModel, division: Bound, repeats: Sequence[Repeat]) -> Iterator[Figure]:
    """The figures of one number of GPUs. `best`: the max_staleness with the best median of tokens/s."""
    num_gpus = division.num_engines + division.num_learner_gpus
    where = f"gpus={num_gpus}"
    baselines = [found.baseline for found in repeats]
    yield from run_figures(model, f"{where} colocated", baselines, baselines)
    staleness = list(repeats[0].runs)
    for k in staleness:
        runs = [found.runs[k] for found in repeats]
        yield from run_figures(model, f"{where} max_staleness={k}", runs, baselines)
        same = [found.runs[k].tokens_per_s / found.runs[0].tokens_per_s for found in repeats]
        yield from _summaries(f"{where} max_staleness={k}", {"over_same_division": ("", same)})
    best = max(staleness, key=lambda k: median(found.runs[k].tokens_per_s for found in repeats))
    runs = [found.runs[best] for found in repeats]
    limits = [bounds(model, run.work, num_gpus)[0].tokens_per_s for run in runs]
    ratios = [run.tokens_per_s / base.tokens_per_s for run, base in zip(runs, baselines, strict=True)]
    index = model.published.gpus.index(num_gpus) if num_gpus in model.published.gpus else None
    values: dict[str, tuple[str, Sequence[float]]] = {
        "fraction_of_bound": ("", [fraction_of_bound(model, run) for run in runs]),
        "tokens_per_s": ("1/s", [run.tokens_per_s for run in runs]),
        "bound_tokens_per_s": ("1/s", limits),
        "over_colocated": ("", ratios),
        "bound_over_colocated": ("", [limit / b.tokens_per_s for limit, b in zip(limits, baselines, strict=True)]),
        "max_staleness": ("versions", [best]),
        "engine_gpus": ("GPUs", [division.num_engines]),
        "sync_tokens_per_s": ("1/s", [base.tokens_per_s for base in baselines]),
    }
    if index is not None:
        values["published_sync_tokens_per_s"] = ("1/s", [model.published.sync_tokens_per_s[index]])
        values["published_ratio"] = ("", [model.published.ratios[index]])
    yield from _summaries(f"{where} best", values)


def halves_figures(model: ServiceModel, tail: Tail, num_gpus: int, repeats: Sequence[Repeat]) -> Iterator[Figure]:
    """The released division, half of the GPUs each, with the largest max_staleness that was run."""
    k = max(repeats[0].runs)
    baselines = [found.baseline for found in repeats[:1]]
    half = Case(
        num_engines=num_gpus // 2,
        num_learner_gpus=num_gpus - num_gpus // 2,
        max_staleness=k,
        num_steps=baselines[0].work.num_steps,
    )
    yield from run_figures(model, f"gpus={num_gpus} halves", [simulate(half, model, tail)], baselines)


def tail_figures(model: ServiceModel, tail: Tail, num_gpus: int, size: Size, room: float) -> Iterator[Figure]:
    """One row of the sensitivity table: each tail with its own latency and division of the GPUs."""
    division = divide(model, tail, num_gpus, room)
    k = max(size.staleness)
    repeats = [repeat(model, tail, division, replace(size, staleness=(k,)), seed) for seed in range(size.tail_repeats)]
    runs, baselines = [found.runs[k] for found in repeats], [found.baseline for found in repeats]
    case = f"sigma={tail.sigma} gpus={num_gpus} max_staleness={k}"
    wanted = {"tokens_per_s", "over_colocated", "fraction_of_bound", "straggler_wait_frac"}
    yield from (figure for figure in run_figures(model, case, runs, baselines) if figure.metric in wanted)
    values: dict[str, tuple[str, Sequence[float]]] = {
        "latency_median_s": ("s", [tail.latency_median_s]),
        "sync_misfit": ("", [model.misfit(tail)]),
    }
    values |= {
        f"sync_tokens_per_s_{gpus}": ("1/s", [speed])
        for gpus, speed in zip(model.published.gpus, tail.sync_tokens_per_s, strict=True)
    }
    yield from _summaries(case, values)


def virtual_figures(model: ServiceModel, size: Size) -> Iterator[list[Figure]]:
    """Everything, a list at a time, as it is found: first the sizes, then the tails."""
    tail = model.published_tail
    room = find_room(model, tail, size)
    for num_gpus in size.gpus:
        division = divide(model, tail, num_gpus, room)
        repeats = [repeat(model, tail, division, size, seed) for seed in range(size.repeats)]
        yield [*size_figures(model, division, repeats), *halves_figures(model, tail, num_gpus, repeats)]
    for sigma in size.sigmas:
        yield list(tail_figures(model, model.tail(sigma), min(size.gpus), size, room))
