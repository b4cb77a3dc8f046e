"""What does one learner step cost: time, CPU-seconds, memory and compilation, by mesh and length?

    python -m benchmarks.train_step [--json] [--quick]

`4L-d128-32x512`: 4 layers of width 128, MLP 512, vocabulary 512, 32 sequences of 512 tokens, forward, backward and
AdamW on one device; `/rowsN` cuts the batch into micro-batches of N rows. The other cases ask one thing each: row
length at equal tokens, mesh (host devices of one CPU: what sharding costs, not what it gains), depth, packing on
ragged multi-turn batches, and the memory of a large vocabulary's head. Where `google-tunix` can be imported, its own
trainer takes the same step, the two alternating.

A good answer on two shared cores: at most 2.8 cpu_s_per_step and 0.8 GB temp for `4L-d128-32x512`, and at most 0.65 of
Tunix's CPU-seconds; 28 layers compile in at most 1.2 times what 4 take; packing gives at least 2.3 times the useful
tokens per CPU-second where rows are filled to 35 %; and the head needs at most a tenth of what all logits at once take.
`matmul_frac` is the share of this machine's own rate on one large product, measured in the same run, counting only
what a step must compute.
"""

import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import jax

from agentrl_jax.packing import PackingConfig, pack_demonstrations
from benchmarks.figures import Figure, json_lines, summarise, table
from benchmarks.step_cases import (
    SMALL,
    Spent,
    demonstrations,
    full_batch,
    head_temp_bytes,
    make_learner,
    matmul_gflops_per_cpu_s,
    padded_batch,
    ragged_lengths,
    run_step,
    step_flops,
    stopwatch,
)
from benchmarks.tunix_step import is_installed, tunix_step
from launch.config import parse

NAME = "train_step"
HEADLINE = "4L-d128-32x512"
NUM, LENGTH, ROWS = 32, 512, 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Time, memory and compilation of one learner step."""

    json: bool = False
    """One JSON line per figure instead of a table"""
    quick: bool = False
    """Fewer repeats, and only the cases with a bound"""

    @property
    def repeats(self) -> int:
        return 3 if self.quick else 7


def main(arguments: list[str] | None = None) -> None:
    """Measure and print."""
    options = parse(Options, arguments, program=f"benchmarks.{NAME}")
    if not options.quick:  # for the meshes; waiting for each other, several devices cost the other cases a tenth
        jax.config.update("jax_num_cpu_devices", 8)  # type: ignore[no-untyped-call]
    if options.json:
        for line in json_lines(measure(options)):  # as they come: a run that is cut short has been worth something
            print(line, flush=True)
    else:
        print(table(list(measure(options))))


def measure(options: Options) -> Iterator[Figure]:
    """All figures, case by case."""
    yield from headline(options)
    yield from depth(options)
    yield from ragged(options)
    yield from head()
    if not options.quick:
        yield from by_rows(options)
        yield from by_length(options)
        yield from by_mesh(options)


def headline(options: Options) -> Iterator[Figure]:
    """The step that is compared, beside Tunix's where it is installed."""
    learner = make_learner(SMALL)
    with stopwatch() as compiling:
        memory = learner.compile_ahead(PackingConfig(row_tokens=(LENGTH,), rows_per_micro_batch=ROWS))
    batch = full_batch(SMALL, num=NUM, length=LENGTH, rows=ROWS)
    steps: dict[str, Callable[[], None]] = {"ours": run_step(learner, batch)}
    if is_installed():
        steps["tunix"] = tunix_step(SMALL, num=NUM, length=LENGTH)
    else:
        print("google-tunix is not installed: measured without it", file=sys.stderr)
    spent, rates = alternate(steps, options.repeats)
    yield from _times(HEADLINE, spent["ours"])
    flops = step_flops(SMALL, num_tokens=NUM * LENGTH, length=LENGTH) / 1e9
    shares = [flops / one.cpu_s / rate for one, rate in zip(spent["ours"], rates, strict=True)]
    yield _figure(HEADLINE, "matmul_frac", shares)
    yield _figure(HEADLINE, "matmul_gflop_per_cpu_s", rates, "GFLOP/s")
    yield _figure(HEADLINE, "compile_cpu_s", [compiling.cpu_s], "s")
    yield _figure(HEADLINE, "temp_gb", [memory.temporary / 1e9], "GB")
    yield _figure(HEADLINE, "peak_gb", [memory.peak / 1e9], "GB")
    if "tunix" in spent:
        yield from _times(f"{HEADLINE}/tunix", spent["tunix"])
        ratios = [mine.cpu_s / theirs.cpu_s for mine, theirs in zip(spent["ours"], spent["tunix"], strict=True)]
        yield _figure(HEADLINE, "cpu_s_over_tunix", ratios)


def depth(options: Options) -> Iterator[Figure]:
    """CPU-seconds to compile 4 and 28 layers."""
    models = {"compile/4-layers": SMALL, "compile/28-layers": replace(SMALL, num_layers=28)}
    spent: dict[str, list[Spent]] = {case: [] for case in models}
    for _ in range(2 if options.quick else 3):
        for case, model in models.items():
            learner = make_learner(model)
            with stopwatch() as compiling:
                learner.compile_ahead(PackingConfig(row_tokens=(LENGTH,), rows_per_micro_batch=1))
            spent[case].append(compiling)
    for case, all_spent in spent.items():
        yield _figure(case, "compile_cpu_s", [one.cpu_s for one in all_spent], "s")
    shallow, deep = spent.values()
    ratios = [one.cpu_s / other.cpu_s for one, other in zip(deep, shallow, strict=True)]
    yield _figure("compile/28-layers", "over_4_layers", ratios)


def ragged(options: Options) -> Iterator[Figure]:
    """Useful tokens of multi-turn episodes per CPU-second, packed and padded."""
    lengths = ragged_lengths(64, LENGTH)
    packing = PackingConfig(row_tokens=(LENGTH,), rows_per_micro_batch=ROWS)
    batches = {
        "ragged/packed": pack_demonstrations(demonstrations(lengths, SMALL.vocab_size), packing),
        "ragged/padded": padded_batch(SMALL, lengths, longest=LENGTH, rows=ROWS),
    }
    learner = make_learner(SMALL)
    spent, _ = alternate({case: run_step(learner, batch) for case, batch in batches.items()}, options.repeats)
    for case, batch in batches.items():
        yield _figure(case, "fill_frac", [batch.efficiency])
        yield _figure(case, "tokens_per_cpu_s", [sum(lengths) / one.cpu_s for one in spent[case]], "1/s")
    packed, padded = spent.values()
    ratios = [other.cpu_s / one.cpu_s for one, other in zip(packed, padded, strict=True)]
    yield _figure("ragged/packed", "over_padded", ratios)


def head() -> Iterator[Figure]:
    """Temporary memory of the head at V = 32,000, in chunks and at once."""
    chunked, whole = head_temp_bytes(chunk_tokens=128), head_temp_bytes(chunk_tokens=4096)
    yield _figure("head-V32k/chunked", "temp_gb", [chunked / 1e9], "GB")
    yield _figure("head-V32k/whole", "temp_gb", [whole / 1e9], "GB")
    yield _figure("head-V32k/chunked", "over_whole", [chunked / whole])


def by_rows(options: Options) -> Iterator[Figure]:
    """The same step in micro-batches of other sizes: what stays in the cache is faster."""
    cases = {f"{HEADLINE}/rows{rows}": ("1", LENGTH, rows) for rows in (1, 2, 4, 8, 32)}
    yield from _steps(cases, options)


def by_length(options: Options) -> Iterator[Figure]:
    """The same number of tokens in rows of other lengths."""
    cases = {f"4L-d128-{NUM * LENGTH // length}x{length}": ("1", length, 1) for length in (256, 1024, 2048)}
    yield from _steps(cases, options)


def by_mesh(options: Options) -> Iterator[Figure]:
    """The same step over several host devices of one CPU."""
    cases = {f"{HEADLINE}/mesh-{mesh}": (mesh, LENGTH, 8) for mesh in ("2", "8", "data=2,fsdp=2,tensor=2")}
    yield from _steps(cases, options)


def _steps(cases: Mapping[str, tuple[str, int, int]], options: Options) -> Iterator[Figure]:
    """Cases of (mesh, row length, rows of a micro-batch) with as many tokens each, alternating."""
    steps, memories, compiling = {}, {}, {}
    for case, (mesh, length, rows) in cases.items():
        learner = make_learner(SMALL, mesh=mesh)
        with stopwatch() as compiling[case]:
            memories[case] = learner.compile_ahead(PackingConfig(row_tokens=(length,), rows_per_micro_batch=rows))
        batch = full_batch(SMALL, num=NUM * LENGTH // length, length=length, rows=rows)
        steps[case] = run_step(learner, batch)
    spent, _ = alternate(steps, options.repeats)
    for case in cases:
        yield from _times(case, spent[case])
        yield _figure(case, "compile_cpu_s", [compiling[case].cpu_s], "s")
        yield _figure(case, "temp_gb", [memories[case].temporary / 1e9], "GB")
        yield _figure(case, "peak_gb", [memories[case].peak / 1e9], "GB")


def alternate(steps: Mapping[str, Callable[[], None]], repeats: int) -> tuple[dict[str, list[Spent]], list[float]]:
    """Run each step once to warm up, then all of them in turn; also the matmul rate of each round."""
    for step in steps.values():
        step()
    spent: dict[str, list[Spent]] = {case: [] for case in steps}
    rates = []
    for _ in range(repeats):
        rates.append(matmul_gflops_per_cpu_s())
        for case, step in steps.items():
            with stopwatch() as one:
                step()
            spent[case].append(one)
    return spent, rates


def _times(case: str, spent: list[Spent]) -> Iterator[Figure]:
    yield _figure(case, "cpu_s_per_step", [one.cpu_s for one in spent], "s")
    yield _figure(case, "step_s", [one.wall_s for one in spent], "s")


def _figure(case: str, metric: str, values: list[float], unit: str = "") -> Figure:
    return summarise(values, benchmark=NAME, case=case, metric=metric, unit=unit)


if __name__ == "__main__":
    main()
