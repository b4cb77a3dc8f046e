"""Up to how many GPUs and concurrent episodes does asynchronous training scale, where does it bend, and why?

    python -m benchmarks.scale [--json] [--quick] [--plot FILE]

The simulation of benchmarks.async_vs_sync (the real controller over service times, in virtual time) from 16 to 1,024
GPUs. `gpus=N`: the batch grows with the GPUs, and so do the concurrent episodes, to 20,000. `gpus=N fixed-batch`: the
batch stays that of 64 GPUs, as where a run is to end sooner and not to learn from more. max_staleness is 4, publishes
are `in_place`, and the division of the GPUs leaves the engines some room (`async_virtual.with_room`). Fewer GPUs are
measured for more steps, as their batches differ more. Half of the time is for the largest size, which is begun first
and shown last.

What bends a curve is whatever is not divided among more GPUs:

fixed_frac           of a step: gradient reduction, optimiser and the publish, which take as long on any number of GPUs
prefill_over_new     prompt tokens that were computed, over those that had to be: how much the caches lost
straggler_wait_frac  of a step: the slowest episodes, which no GPU makes faster. The larger a batch, the more often one
                     of its groups takes longer than max_staleness steps, and all wait (slowest_group_s of all steps
                     that were measured, step_s)
controller_core_frac CPU-seconds of this process in a second of the simulated run: where it reaches 1, one core can no
                     longer keep up. The simulated engines' own work is part of it, so that this is an upper bound
most_episodes        under way at once, when a run begins; live_episodes: at the ends of steps. cpu_ms_per_turn grows
                     with them if something scans them, and a little with the memory that they take

A good answer: fraction_of_bound >= 0.90 at every size of growing batches; controller_core_frac < 1; cpu_ms_per_turn the
same at all sizes.
"""

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from agentrl_jax.errors import ConfigError
from benchmarks.async_virtual import SET_UP, fraction_of_bound, with_room
from benchmarks.figures import Figure, json_lines, summarise, table
from benchmarks.report_plots import draw
from benchmarks.report_results import Kept
from benchmarks.service_bound import bounds
from benchmarks.service_cases import Case, Outcome, Work, colocated
from benchmarks.service_model import ServiceModel, Tail, load
from benchmarks.service_runs import workers
from benchmarks.service_world import simulate
from launch.command import parse

NAME = "scale"
MAX_STALENESS = 4
WARM_UP = 8
"""Steps before those that are measured. Where caches are kept over publishes, how a run began no longer matters then:
of 64 GPUs, prefill_over_new is 1.19, 1.10, 1.05 and 1.04 in steps 7 to 10, and 1.03 to 1.06 in the next twelve."""
FIXED_GPUS = 64
_SHAPE_GPUS = 16
"""On so many, one batch is played to see what episodes are like."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """Steps measured, by number of GPUs. growing: of those whose batch grows with them; fixed: whose batch does not."""

    growing: Mapping[int, int]
    fixed: Mapping[int, int]


FULL = Size(growing={16: 12, 32: 12, 64: 8, 128: 6, 256: 4, 512: 4, 1024: 4}, fixed={256: 8, 1024: 8})
QUICK = Size(growing={16: 1, 64: 1}, fixed={128: 1})


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Simulated runs on up to 1,024 GPUs."""

    json: bool = False
    """One JSON line per figure instead of a table"""
    quick: bool = False
    """Three sizes, up to 128 GPUs"""
    plot: Path | None = None
    """Also draw the curves into this file, a PNG"""

    def __post_init__(self) -> None:
        if self.plot is not None and (self.plot.suffix != ".png" or not self.plot.absolute().parent.is_dir()):
            raise ConfigError(f"--plot must be a .png in a folder that exists, got {self.plot}")


def case_of(model: ServiceModel, shape: Work, num_gpus: int, num_groups: int, num_steps: int) -> Case:
    """A run of batches like `shape`."""
    division = with_room(model, shape.scaled(num_groups / shape.num_groups), num_gpus, SET_UP.room)
    return Case(
        num_engines=division.num_engines,
        num_learner_gpus=division.num_learner_gpus,
        max_staleness=MAX_STALENESS,
        num_steps=num_steps,
        num_groups=num_groups,
        warm_up=WARM_UP,
        crowding=SET_UP.crowding,
        keeps_caches=True,
    )


def measure(case: Case, model: ServiceModel, tail: Tail) -> tuple[Outcome, float]:
    """One run, and the CPU-seconds that it took this process."""
    begun = time.process_time()
    outcome = simulate(case, model, tail)
    return outcome, time.process_time() - begun


def figures(case: str, model: ServiceModel, outcome: Outcome, cpu_s: float) -> Iterator[Figure]:
    """The figures of one run."""
    fixed_s = model.learner.fixed_s + model.publish_s
    values = {
        "tokens_per_s": ("1/s", outcome.tokens_per_s),
        "bound_tokens_per_s": ("1/s", bounds(model, outcome.work, outcome.case.num_gpus)[0].tokens_per_s),
        "fraction_of_bound": ("", fraction_of_bound(model, outcome)),
        "engine_gpus": ("GPUs", float(outcome.case.num_engines)),
        "learner_busy_frac": ("", outcome.learner_busy_frac),
        "engine_busy_frac": ("", outcome.engine_busy_frac),
        "fixed_frac": ("", fixed_s / outcome.step_s),
        "prefill_over_new": ("", outcome.prefill_over_new),
        "straggler_wait_frac": ("", outcome.straggler_wait_frac),
        "slowest_group_s": ("s", outcome.slowest_group_s),
        "step_s": ("s", outcome.step_s),
        "most_episodes": ("", float(outcome.most_open)),
        "live_episodes": ("", outcome.num_open),
        "controller_core_frac": ("", cpu_s / outcome.total_s),
        "cpu_ms_per_turn": ("ms", 1e3 * cpu_s / outcome.num_turns),
    }
    for metric, (unit, value) in values.items():
        yield summarise([value], benchmark=NAME, case=case, metric=metric, unit=unit)


def scale_figures(model: ServiceModel, size: Size) -> Iterator[list[Figure]]:
    """A list for each size, as it is found."""
    tail = model.published_tail
    shape = simulate(colocated(_SHAPE_GPUS, num_steps=1), model, tail).work
    fixed_groups = model.num_groups(FIXED_GPUS)
    cases = {
        f"gpus={num_gpus} fixed-batch": case_of(model, shape, num_gpus, fixed_groups, num_steps)
        for num_gpus, num_steps in size.fixed.items()
    } | {
        f"gpus={num_gpus}": case_of(model, shape, num_gpus, model.num_groups(num_gpus), num_steps)
        for num_gpus, num_steps in size.growing.items()
    }
    *others, largest = cases
    with workers(len(cases)) as pool:
        # The longest first, or one core would wait for it at the end.
        begun = {name: pool.submit(measure, cases[name], model, tail) for name in (largest, *others)}
        for name in cases:
            yield list(figures(name, model, *begun[name].result()))


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the figures."""
    options = parse(Options, arguments, program=f"benchmarks.{NAME}")
    found: list[Figure] = []
    try:
        for part in scale_figures(load(), QUICK if options.quick else FULL):
            found += part
            print(f"{NAME}: {part[0].case} measured", file=sys.stderr, flush=True)
            if options.json:
                print("\n".join(json_lines(part)), flush=True)
    except KeyboardInterrupt:
        print(f"{NAME}: stopped; only what had been measured is shown", file=sys.stderr)
        return 130
    finally:
        if found and not options.json:
            print(table(found))
    if options.plot is not None:
        draw(NAME, Kept(figures=tuple(found), commit="", machine=""), options.plot)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
