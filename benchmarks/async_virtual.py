"""The virtual part of benchmarks.async_vs_sync: the published set-up, simulated with the real controller.

`colocated`: the synchronous baseline in which all GPUs first generate, then all train. `max_staleness=0`: the same
program as the asynchronous cases on the same division of the GPUs. All run the same model of service times.
`in_place`: sessions go on with their caches over a publish, as `--publish.mode in_place` has it; elsewhere their
prefixes are computed anew.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import NamedTuple

from benchmarks.figures import Figure, summarise
from benchmarks.service_bound import Bound, bounds
from benchmarks.service_cases import Case, Outcome, Work, colocated
from benchmarks.service_model import ServiceModel, Tail
from benchmarks.service_runs import simulate_all
from benchmarks.service_world import simulate

NAME = "async_vs_sync"


@dataclass(frozen=True, slots=True, kw_only=True)
class SetUp:
    """What a user would tune. room: of the engines, over what they need (`with_room`); crowding: see `Case`."""

    room: float
    crowding: float


SET_UP = SetUp(room=0.85, crowding=0.8)
"""Chosen after runs of 16 to 64 GPUs and of all tails, with room 0.85 and 0.88, crowding 0.5, 0.65, 0.8 and 1.0."""


class Way(NamedTuple):
    """How a run goes about it. keeps_caches: over publishes."""

    max_staleness: int
    keeps_caches: bool = False

    @property
    def name(self) -> str:
        return f"max_staleness={self.max_staleness}" + (" in_place" if self.keeps_caches else "")


WAYS = (*map(Way, (0, 1, 2, 4)), Way(4, keeps_caches=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """num_steps: that count, of each run.

    sigmas: of the sensitivity table, on the fewest GPUs, tail_repeats times, with the same set-up and the last of
    `ways`. A repeat is a seed: other draws, another order of tasks.
    """

    gpus: tuple[int, ...]
    sigmas: tuple[float, ...]
    num_steps: int
    repeats: int
    tail_repeats: int
    ways: tuple[Way, ...] = WAYS


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeat:
    """The runs of one seed: the baseline, and those on one division of the GPUs."""

    baseline: Outcome
    runs: Mapping[Way, Outcome]


def with_room(model: ServiceModel, work: Work, num_gpus: int, room: float) -> Bound:
    """The division of the best bound on which the engines need at most `room` of the learner's time, if there is one.

    Engines that could just keep up only do so with turns that take for ever, and then groups get too old.
    """
    every = bounds(model, work, num_gpus)
    return next((found for found in every if found.engine_s <= room * found.learner_s), every[0])


def batch_of(model: ServiceModel, tail: Tail, num_gpus: int) -> Work:
    """What one batch of so many GPUs asks for."""
    return simulate(colocated(num_gpus, num_steps=1), model, tail).work


def on(division: Bound, way: Way, *, crowding: float, num_steps: int, seed: int = 0) -> Case:
    """A run on one division of the GPUs."""
    return Case(
        num_engines=division.num_engines,
        num_learner_gpus=division.num_learner_gpus,
        max_staleness=way.max_staleness,
        keeps_caches=way.keeps_caches,
        num_steps=num_steps,
        crowding=crowding,
        seed=seed,
    )


def play(
    model: ServiceModel, tail: Tail, division: Bound, crowding: float, size: Size, seeds: Sequence[int]
) -> list[Repeat]:
    """All runs on one division of the GPUs, by seed."""
    num_gpus = division.num_engines + division.num_learner_gpus
    cases = {
        (seed, way): on(division, way, crowding=crowding, num_steps=size.num_steps, seed=seed)
        for seed in seeds
        for way in size.ways
    }
    baselines = {seed: replace(colocated(num_gpus, num_steps=size.num_steps), seed=seed) for seed in seeds}
    found = simulate_all([*baselines.values(), *cases.values()], model, tail)
    runs = dict(zip(cases, found[len(seeds) :], strict=True))
    return [
        Repeat(baseline=baseline, runs={way: runs[seed, way] for way in size.ways})
        for seed, baseline in zip(baselines, found, strict=False)
    ]


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
        "prefill_over_new": ("", [run.prefill_over_new for run in runs]),
        "straggler_wait_frac": ("", [run.straggler_wait_frac for run in runs]),
        "live_groups": ("groups", [run.num_live for run in runs]),
        "group_age_max": ("versions", [run.age_max for run in runs]),
        "token_staleness_max": ("versions", [run.lag_max for run in runs]),
    }
    return list(_summaries(case, values))


def size_figures(model: ServiceModel, division: Bound, crowding: float, repeats: Sequence[Repeat]) -> Iterator[Figure]:
    """The figures of one number of GPUs. `best`: the way with the best median of tokens/s."""
    num_gpus = division.num_engines + division.num_learner_gpus
    where = f"gpus={num_gpus}"
    baselines = [found.baseline for found in repeats]
    yield from run_figures(model, f"{where} colocated", baselines, baselines)
    ways = list(repeats[0].runs)
    for way in ways:
        runs = [found.runs[way] for found in repeats]
        yield from run_figures(model, f"{where} {way.name}", runs, baselines)
        same = [found.runs[way].tokens_per_s / found.runs[Way(0)].tokens_per_s for found in repeats]
        yield from _summaries(f"{where} {way.name}", {"over_same_division": ("", same)})
    best = max(ways, key=lambda way: median(found.runs[way].tokens_per_s for found in repeats))
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
        "max_staleness": ("versions", [best.max_staleness]),
        "keeps_caches": ("", [float(best.keeps_caches)]),
        "engine_gpus": ("GPUs", [division.num_engines]),
        "crowding": ("", [crowding]),
        "sync_tokens_per_s": ("1/s", [base.tokens_per_s for base in baselines]),
    }
    if index is not None:
        values["published_sync_tokens_per_s"] = ("1/s", [model.published.sync_tokens_per_s[index]])
        values["published_ratio"] = ("", [model.published.ratios[index]])
    yield from _summaries(f"{where} best", values)


def halves_figures(
    model: ServiceModel, tail: Tail, num_gpus: int, crowding: float, repeats: Sequence[Repeat]
) -> Iterator[Figure]:
    """The released division, half of the GPUs each, and the last of the ways that were run."""
    way = list(repeats[0].runs)[-1]
    half = Case(
        num_engines=num_gpus // 2,
        num_learner_gpus=num_gpus - num_gpus // 2,
        max_staleness=way.max_staleness,
        keeps_caches=way.keeps_caches,
        num_steps=repeats[0].baseline.work.num_steps,
        crowding=crowding,
    )
    baselines = [found.baseline for found in repeats]
    runs = simulate_all([replace(half, seed=base.case.seed) for base in baselines], model, tail)
    yield from run_figures(model, f"gpus={num_gpus} halves", runs, baselines)


def tail_figures(model: ServiceModel, tail: Tail, size: Size) -> Iterator[Figure]:
    """One row of the sensitivity table: each tail with its own latency."""
    num_gpus, way = min(size.gpus), size.ways[-1]
    division = with_room(model, batch_of(model, tail, num_gpus), num_gpus, SET_UP.room)
    alone = replace(size, ways=(way,))
    repeats = play(model, tail, division, SET_UP.crowding, alone, range(size.tail_repeats))
    runs, baselines = [found.runs[way] for found in repeats], [found.baseline for found in repeats]
    case = f"sigma={tail.sigma} gpus={num_gpus} {way.name}"
    wanted = {"tokens_per_s", "over_colocated", "fraction_of_bound", "prefill_over_new", "straggler_wait_frac"}
    yield from (figure for figure in run_figures(model, case, runs, baselines) if figure.metric in wanted)
    values: dict[str, tuple[str, Sequence[float]]] = {
        "engine_gpus": ("GPUs", [division.num_engines]),
        "crowding": ("", [SET_UP.crowding]),
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
    for num_gpus in size.gpus:
        division = with_room(model, batch_of(model, tail, num_gpus), num_gpus, SET_UP.room)
        repeats = play(model, tail, division, SET_UP.crowding, size, range(size.repeats))
        found = list(size_figures(model, division, SET_UP.crowding, repeats))
        if num_gpus == min(size.gpus):
            found += halves_figures(model, tail, num_gpus, SET_UP.crowding, repeats)
        yield found
    for sigma in size.sigmas:
        yield list(tail_figures(model, model.tail(sigma), size))
