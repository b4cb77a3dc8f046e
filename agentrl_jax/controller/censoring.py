"""How much more often long episodes are lost than short ones: what a broken infrastructure hides from training."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from math import ceil, exp, inf, log, sqrt


@dataclass(frozen=True, slots=True, kw_only=True)
class Censoring:
    """Of the episodes that get past `short_turns` and would take `long_turns`, the share `lost_frac` is lost to the
    infrastructure by then; with 97.5 % confidence at least `lost_frac_low` is."""

    short_turns: int
    long_turns: int
    lost_frac: float
    lost_frac_low: float


def estimate_censoring(episodes: Iterable[tuple[int, bool]]) -> Censoring | None:
    """Estimate it from (turns, is_lost) of episodes; None if no episode is valid.

    Kaplan and Meier (1958), with the loss as the event and a valid end as the end of observation: h(n) = episodes lost
    at n turns / episodes that took n turns or more, and

        lost_frac = 1 − Π over short < n ≤ long of (1 − h(n))

    short and long are the 10th and the 90th percentile of the turns of valid episodes. The bound is Greenwood's
    (1926), on the logarithm, with at least half a survivor a turn. Losses at or before `short` turns, such as failing
    resets, hit long and short episodes alike and do not count.

    >>> estimate_censoring([(1, False)] * 8 + [(3, False)] * 6 + [(2, True)] * 2)
    Censoring(short_turns=1, long_turns=3, lost_frac=0.25, lost_frac_low=0.0)
    """
    lost: Counter[int] = Counter()
    valid: Counter[int] = Counter()
    for turns, is_lost in episodes:
        (lost if is_lost else valid)[turns] += 1
    if not valid:
        return None
    short, long = _percentile(valid, 0.1), _percentile(valid, 0.9)
    log_kept, variance = 0.0, 0.0
    for turns in range(short + 1, long + 1):
        at_risk = sum(count for n, count in (*lost.items(), *valid.items()) if n >= turns)
        survivors = max(at_risk - lost[turns], 0.5)
        if lost[turns]:
            log_kept += log(survivors / at_risk) if at_risk > lost[turns] else -inf
            variance += lost[turns] / (at_risk * survivors)
    low = 1.0 - exp(min(0.0, log_kept + 1.96 * sqrt(variance)))
    return Censoring(short_turns=short, long_turns=long, lost_frac=1.0 - exp(log_kept), lost_frac_low=low)


def _percentile(counts: Counter[int], share: float) -> int:
    """The smallest value that at least `share` of the counted ones do not exceed."""
    wanted, seen = ceil(share * counts.total()), 0
    for value in sorted(counts):
        seen += counts[value]
        if seen >= wanted:
            return value
    raise ValueError("nothing was counted")
