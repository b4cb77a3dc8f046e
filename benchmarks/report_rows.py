"""Which figures the README shows: one row each, with what it was hoped to be and the command that measures it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Scale = Literal["plain", "percent", "times"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A figure by its names. bar: what it should be, as text; "" where nothing was asked. flags: of its command."""

    what: str
    benchmark: str
    case: str
    metric: str
    scale: Scale = "plain"
    bar: str = ""
    flags: str = ""

    @property
    def command(self) -> str:
        """What follows `python -m benchmarks.`."""
        return f"{self.benchmark} {self.flags}".rstrip()


_BOUND = "share of what no scheduler could beat, the same simulation, {} GPUs"
_RATIO = "simulated 14B on WebShop, {} GPUs: asynchronous (in_place) over synchronous (all generate, then all train)"
_PUBLISHED: Mapping[int, str] = {16: "1.9", 32: "2.1", 64: "1.9"}

_BESIDE_OTHERS = frozenset({"cpu_s_over_tunix", "ratio_to_best_peer", "cpu_ratio"})

ROWS: tuple[Row, ...] = (
    *(
        row
        for gpus, published in _PUBLISHED.items()
        for row in (
            Row(
                what=_RATIO.format(gpus),
                benchmark="async_vs_sync",
                case=f"gpus={gpus} max_staleness=4 in_place",
                metric="over_colocated",
                scale="times",
                bar=f"published {published}, aim 2.2",
            ),
            Row(
                what=_BOUND.format(gpus),
                benchmark="async_vs_sync",
                case=f"gpus={gpus} max_staleness=4 in_place",
                metric="fraction_of_bound",
                scale="percent",
                bar="≥ 90 %",
            ),
        )
    ),
    Row(
        what="the same, 64 GPUs, publishes that drop the engines' caches (retract, the default)",
        benchmark="async_vs_sync",
        case="gpus=64 max_staleness=4",
        metric="fraction_of_bound",
        scale="percent",
    ),
    Row(
        what="asynchronous over synchronous on the released division, half of 16 GPUs each",
        benchmark="async_vs_sync",
        case="gpus=16 halves",
        metric="over_colocated",
        scale="times",
        bar="published 1.9",
    ),
    Row(
        what="share of the bound for real: embedded engine, learner, slow environments, on two cores",
        benchmark="async_vs_sync",
        case="real kg max_staleness=4",
        metric="fraction_of_bound",
        scale="percent",
        bar="≥ 90 %",
        flags="--mode=real",
    ),
    Row(
        what="share of the bound at 128 simulated GPUs",
        benchmark="scale",
        case="gpus=128",
        metric="fraction_of_bound",
        scale="percent",
    ),
    Row(
        what="the same at 512",
        benchmark="scale",
        case="gpus=512",
        metric="fraction_of_bound",
        scale="percent",
    ),
    Row(
        what="the same at 1,024",
        benchmark="scale",
        case="gpus=1024",
        metric="fraction_of_bound",
        scale="percent",
    ),
    Row(
        what="cores that the controller and the simulated engines need for 1,024 GPUs",
        benchmark="scale",
        case="gpus=1024",
        metric="controller_core_frac",
    ),
    Row(
        what="controller: CPU of a turn with 10,000 live episodes, ms",
        benchmark="controller",
        case="10000-episodes",
        metric="cpu_ms_per_turn",
        bar="≤ 0.5",
    ),
    Row(
        what="controller over one process per episode (mostly an interpreter's start), CPU of a turn",
        benchmark="controller",
        case="process-per-episode",
        metric="cpu_ratio",
        scale="times",
    ),
    Row(
        what="embedded engine over the best of transformers and SGLang on a CPU, 0.6 million weights",
        benchmark="engine",
        case="tiny",
        metric="ratio_to_best_peer",
        scale="times",
        bar="≥ 2",
    ),
    Row(
        what="the same, 135 million weights",
        benchmark="engine",
        case="135M",
        metric="ratio_to_best_peer",
        scale="times",
        bar="≥ 1",
    ),
    Row(
        what="prompt tokens that the engine need not compute",
        benchmark="engine",
        case="savings",
        metric="prefill_saved_frac",
        scale="percent",
        bar="≥ 60 %",
    ),
    Row(
        what="CPU of a learner step over Tunix's, same model and tokens",
        benchmark="train_step",
        case="4L-d128-32x512",
        metric="cpu_s_over_tunix",
        scale="percent",
        bar="≤ 65 %",
    ),
    Row(
        what="useful tokens, packed over padded, rows filled to 35 %",
        benchmark="train_step",
        case="ragged/packed",
        metric="over_padded",
        scale="times",
        bar="≥ 2.3",
    ),
    Row(
        what="ALFWorld steps of one core, 1/s",
        benchmark="envs",
        case="alfworld",
        metric="steps_per_cpu_s",
        bar="≥ 2,500",
    ),
    Row(
        what="WebShop steps of one core, 1/s",
        benchmark="envs",
        case="webshop",
        metric="steps_per_cpu_s",
        bar="≥ 9,000",
    ),
    Row(
        what="pause of a publish, s/GB",
        benchmark="publish",
        case="reader/in_place",
        metric="pause_s_per_gb",
        bar="≤ 1",
    ),
    Row(
        what="HTTP client: CPU of a request, 2,000 under way, ms",
        benchmark="http",
        case="kept",
        metric="cpu_ms_per_request",
        bar="≤ 0.4",
    ),
    Row(
        what="rendering at turn 20 of 8,000 tokens, ms",
        benchmark="rendering",
        case="reply-20",
        metric="cpu_ms",
        bar="≤ 0.5",
    ),
)

PEER_ROWS = tuple(row for row in ROWS if row.metric in _BESIDE_OTHERS)
"""Those that compare with other software."""
