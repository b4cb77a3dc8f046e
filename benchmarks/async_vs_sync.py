"""How much faster is asynchronous training than synchronous, and how far from what no scheduler could beat?

    python -m benchmarks.async_vs_sync [--json] [--quick] [--mode virtual|real|both] [--model FOLDER]

virtual (some twenty minutes on two cores): the real controller, loop, ledger, permits, places, pool and episodes, in
  virtual time, over service times of engines, learner, publishes and environments (service_model.py). The set-up is the
  published one: Qwen2.5-14B on WebShop at 16, 32 and 64 GPUs. The model's only free values, the environments' latency
  and its tail, were calibrated on the published synchronous throughput before the first asynchronous run
  (service_calibration.py). Two synchronous baselines: `colocated`, in which all GPUs first generate, then all train,
  and `max_staleness=0`, the same program on the same division of the GPUs. `in_place`: sessions keep their caches over
  publishes (`--publish.mode in_place`); elsewhere their prefixes are computed anew. The division and the number of
  places leave engines and caches some room (`SET_UP`); `halves` is the released division. Below: the same for other
  tails, each with its own calibrated latency. The seed of a repeat decides every figure of it.
real (twenty minutes on two quiet cores): the joined pipeline with the embedded engine, pinned to a core, learner
  and controller to another, and environments of log-normal latency (async_real.py).

`fraction_of_bound` is the share of the throughput that no scheduler can beat for the same service times: that at which
the busiest resource is busy all the time (service_bound.py, async_real.py).

A good answer: fraction_of_bound >= 0.90 at all three sizes, and in the real mode; over_colocated beside the published
1.9, 2.1 and 1.9. The bound on the age of groups and tokens is never broken: the benchmark fails if it is.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from agentrl_jax.errors import ConfigError
from benchmarks import async_real, async_virtual
from benchmarks.async_virtual import Way
from benchmarks.figures import Figure, json_lines, table
from benchmarks.service_calibration import SIGMAS
from benchmarks.service_model import load
from launch.config import parse

VIRTUAL = async_virtual.Size(
    gpus=(16, 32, 64),
    sigmas=SIGMAS,
    num_steps=10,
    repeats=3,
    tail_repeats=1,
)
VIRTUAL_QUICK = async_virtual.Size(
    gpus=(16,),
    sigmas=(),
    num_steps=2,
    repeats=1,
    tail_repeats=1,
    ways=(Way(0), Way(4, keeps_caches=True)),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Speed of asynchronous over synchronous training, and the age of what it trains on."""

    json: bool = False
    """One JSON line per figure instead of tables"""
    quick: bool = False
    """One size, few and short runs"""
    mode: Literal["virtual", "real", "both"] = "virtual"
    """In virtual time over service times, for real, or both"""
    model: Path | None = None
    """Policy folder for the real mode (default: one made by a short warm-up)"""

    def __post_init__(self) -> None:
        if self.model is not None and self.mode == "virtual":
            raise ConfigError("--model has no effect with --mode virtual; leave it out, or add --mode real")
        if self.model is not None and not self.model.is_dir():
            raise ConfigError(f"--model {self.model}: expected a policy folder, but there is none")


def show(figures: Iterable[Figure], *, as_json: bool) -> None:
    """Print one table, or its figures."""
    found = list(figures)
    print("\n".join(json_lines(found)) if as_json else table(found) + "\n", flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the figures; 0 if the staleness bounds held, else the exception says which did not."""
    options = parse(Options, arguments, program="benchmarks.async_vs_sync")
    if options.mode != "real":
        tails: list[Figure] = []
        for found in async_virtual.virtual_figures(load(), VIRTUAL_QUICK if options.quick else VIRTUAL):
            if found[0].case.startswith("sigma"):
                tails += found
            else:
                best = [figure for figure in found if figure.case.endswith("best")]
                show((figure for figure in found if figure not in best), as_json=options.json)
                show(best, as_json=options.json)
        if tails:
            show(tails, as_json=options.json)
    if options.mode != "virtual":
        size = async_real.quick_size() if options.quick else async_real.full_size()
        show(async_real.real_figures(size, options.model), as_json=options.json)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
