"""Which latency makes the synchronous baseline as fast as published, for every tail?

    python -m benchmarks.service_calibration

For every sigma: the median latency at which the colocated synchronous baseline (all GPUs generate, then all train)
makes the first published number of tokens/s, and what it then makes at the other sizes. Prints the [[tail]] tables of
service_model.toml. Nothing asynchronous is run: the model must not know what it is to predict. The published tail is
the sigma whose synchronous figures come closest to the published ones at all sizes (`ServiceModel.published_tail`).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from agentrl_jax.errors import ConfigError
from benchmarks.service_cases import colocated
from benchmarks.service_model import ServiceModel, Tail, load
from benchmarks.service_world import simulate
from launch.config import parse

SIGMAS = (0.3, 0.5, 0.7, 1.0, 1.3, 1.5)
_STEPS = (8, 6, 4)
"""Of each size, the smallest first: larger batches hold more episodes."""
_GUESS_S = (0.05, 5.0)
_NARROW = 1e-5
"""Of the latency's logarithm: throughput may jump over what is wanted, and then nothing comes closer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Print the calibrated tails of the service model."""

    sigmas: tuple[float, ...] = SIGMAS
    """Tails to calibrate"""


def sync_tokens_per_s(model: ServiceModel, tail: Tail, num_gpus: int, num_steps: int) -> float:
    """Of the colocated baseline."""
    return simulate(colocated(num_gpus, num_steps=num_steps), model, tail).tokens_per_s


def calibrate(model: ServiceModel, sigma: float, *, steps: Sequence[int] = _STEPS, tolerance: float = 0.01) -> Tail:
    """The tail of this sigma, by the secant method on logarithms.

    Raises ConfigError if no latency within reason makes the published throughput.
    """
    num_gpus, wanted = model.published.gpus[0], model.published.sync_tokens_per_s[0]

    def excess(log_median: float) -> float:
        tail = Tail(sigma=sigma, latency_median_s=math.exp(log_median))
        return math.log(sync_tokens_per_s(model, tail, num_gpus, steps[0]) / wanted)

    low, high = (math.log(guess) for guess in _GUESS_S)
    above, below = excess(low), excess(high)
    if not above > 0 > below:
        raise ConfigError(f"sigma {sigma}: {wanted} tokens/s lie outside of what latencies of {_GUESS_S} s allow")
    between, found = low, above
    while abs(found) >= tolerance and high - low > _NARROW:
        between = low + (high - low) * above / (above - below)
        found = excess(between)
        # Each end that stays counts less, so that neither stays for long.
        if found > 0:
            low, above, below = between, found, below / 2
        else:
            high, below, above = between, found, above / 2
    tail = Tail(sigma=sigma, latency_median_s=round(math.exp(between), 4))
    speeds = [
        sync_tokens_per_s(model, tail, size, count) for size, count in zip(model.published.gpus, steps, strict=True)
    ]
    return Tail(
        sigma=sigma,
        latency_median_s=tail.latency_median_s,
        sync_tokens_per_s=tuple(float(round(speed)) for speed in speeds),
    )


def table(tail: Tail) -> str:
    """As it stands in service_model.toml."""
    speeds = ", ".join(str(speed) for speed in tail.sync_tokens_per_s)
    return (
        f"[[tail]]\nsigma = {tail.sigma}\nlatency_median_s = {tail.latency_median_s}\nsync_tokens_per_s = [{speeds}]\n"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the tables."""
    options = parse(Options, arguments, program="benchmarks.service_calibration")
    model = load()
    for sigma in options.sigmas:
        print(table(calibrate(model, sigma)), flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
