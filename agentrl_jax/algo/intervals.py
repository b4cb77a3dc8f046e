"""95 % confidence intervals of success rates, and of the difference between two of them."""

from math import sqrt

Z95 = 1.959963984540054
"""The 97.5 % quantile of the normal distribution: a two-sided 95 % interval."""


def proportion_interval(num_successes: float, num_trials: float, *, z: float = Z95) -> tuple[float, float]:
    """Wilson's score interval of a proportion; (0, 1) if nothing was tried.

    (p + z²/2n ± z·√(p(1−p)/n + z²/4n²)) / (1 + z²/n) (Wilson 1927). Unlike p ± z·√(p(1−p)/n) it keeps its coverage
    for few trials and near 0 and 1. Numbers need not be whole: trials that are not independent count for fewer.

    >>> [round(bound, 4) for bound in proportion_interval(81, 263)]
    [0.2553, 0.3662]
    """
    if not 0 <= num_successes <= num_trials:
        raise ValueError(f"expected 0 <= successes <= trials, got {num_successes} and {num_trials}")
    if not num_trials:
        return 0.0, 1.0
    p, n = num_successes / num_trials, num_trials
    centre = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z * sqrt(p * (1 - p) / n + z * z / (4 * n * n)) / (1 + z * z / n)
    # At 0 and n successes the bound is exactly 0 and 1; rounding would leave 1e-17.
    low = 0.0 if num_successes == 0 else centre - half
    high = 1.0 if num_successes == num_trials else centre + half
    return low, high


def difference_interval(
    num_successes: int, num_trials: int, other_successes: int, other_trials: int, *, z: float = Z95
) -> tuple[float, float]:
    """Newcombe's hybrid score interval of p − p_other, two independent proportions.

    With Wilson bounds (l, u) of each: p − q − √((p−l_p)² + (u_q−q)²) to p − q + √((u_p−p)² + (q−l_q)²)
    (Newcombe 1998, method 10). (-1, 1) if either was never tried. An interval that contains 0 shows no difference.

    >>> [round(bound, 4) for bound in difference_interval(56, 70, 48, 80)]
    [0.0524, 0.3339]
    """
    low_p, high_p = proportion_interval(num_successes, num_trials, z=z)
    low_q, high_q = proportion_interval(other_successes, other_trials, z=z)
    if not num_trials or not other_trials:
        return -1.0, 1.0
    p, q = num_successes / num_trials, other_successes / other_trials
    low = p - q - sqrt((p - low_p) ** 2 + (high_q - q) ** 2)
    high = p - q + sqrt((high_p - p) ** 2 + (q - low_q) ** 2)
    return max(low, -1.0), min(high, 1.0)
