"""pass@k and the mean success of n samples of each task, with intervals that know which samples share a task."""

from collections.abc import Iterable, Sequence
from fractions import Fraction
from math import comb, nan

from agentrl_jax.algo.intervals import proportion_interval

Counts = Sequence[tuple[int, int]]
"""(samples, successes) of each task."""


def pass_at_k(num_samples: int, num_successes: int, k: int) -> float:
    """1 − C(n − c, k) / C(n, k): the chance that k of the n samples, drawn without replacement, hold a success.

    Unbiased for the chance that k new samples do, where 1 − (1 − c/n)^k is not (Chen et al., arXiv 2107.03374, eq. 1).
    Exact: a ratio of integers, rounded once. Raises ValueError unless 0 <= c <= n and 1 <= k <= n.

    >>> [round(pass_at_k(4, 1, k), 4) for k in (1, 2, 4)]
    [0.25, 0.5, 1.0]
    """
    return float(_pass_at_k(num_samples, num_successes, k))


def mean_pass_at_k(counts: Counts, k: int) -> float:
    """Mean of `pass_at_k` over the tasks with at least k samples; NaN if there is none.

    >>> mean_pass_at_k([(2, 1), (2, 0), (1, 1)], 2)
    0.5
    """
    found = [_pass_at_k(n, c, k) for n, c in counts if n >= k]
    return float(sum(found, Fraction(0)) / len(found)) if found else nan


def curve_ks(num_samples: int) -> tuple[int, ...]:
    """The k of a pass@k curve over n samples: the powers of two up to n, and n itself.

    >>> curve_ks(12)
    (1, 2, 4, 8, 12)
    """
    powers = [1 << power for power in range(num_samples.bit_length())]
    return tuple(sorted({*powers, num_samples})) if num_samples else ()


def clustered_interval(counts: Counts) -> tuple[float, float]:
    """95 % interval of Σc / Σn, where samples of one task resemble each other; (0, 1) if nothing was tried.

    Wilson's interval at the effective number of samples n_eff = p(1 − p) / Var, with the variance of a ratio of sums
    over M tasks, Var = M/(M − 1) · Σ (c_i − p n_i)² / (Σ n)² (Cochran 1977, eq. 6.10; Korn and Graubard 1998). n_eff is
    kept between M (the samples of a task say the same) and Σn (they are independent); where all tasks agree nothing
    can be told from them, and it is M. With one sample of each task this is `proportion_interval`, up to its bound.

    >>> clustered_interval([(1, 1), (1, 0), (1, 1)]) == proportion_interval(2, 3)
    True
    """
    tried = [(n, c) for n, c in counts if n]
    num_samples, num_successes = sum(n for n, _ in tried), sum(c for _, c in tried)
    if not num_samples:
        return 0.0, 1.0
    p = num_successes / num_samples
    spread = sum((c - p * n) ** 2 for n, c in tried)
    effective = float(len(tried))
    if len(tried) > 1 and spread > 0.0:
        variance = len(tried) / (len(tried) - 1) * spread / num_samples**2
        effective = min(max(p * (1 - p) / variance, effective), float(num_samples))
    return proportion_interval(p * effective if num_successes < num_samples else effective, effective)


def difference_of_means(first: Iterable[float], second: Iterable[float]) -> tuple[float, tuple[float, float]]:
    """Mean of first_i − second_i over the tasks that both played, and its 95 % interval by Student's t.

    The tasks are the same, so what makes one hard for both cancels. The interval is (−1, 1) for fewer than two tasks.

    >>> difference_of_means([1.0, 0.5, 1.0], [0.5, 0.5, 0.0])[0]
    0.5
    """
    differences = [a - b for a, b in zip(first, second, strict=True)]
    if not differences:
        return nan, (-1.0, 1.0)
    mean = sum(differences) / len(differences)
    if len(differences) < 2:
        return mean, (-1.0, 1.0)
    variance = sum((value - mean) ** 2 for value in differences) / (len(differences) - 1)
    half = student_t95(len(differences) - 1) * (variance / len(differences)) ** 0.5
    return mean, (max(mean - half, -1.0), min(mean + half, 1.0))


def student_t95(degrees: int) -> float:
    """The 97.5 % quantile of Student's t distribution, by its expansion around the normal quantile.

    z + (z³ + z)/4ν + (5z⁵ + 16z³ + 3z)/96ν² + … (Abramowitz and Stegun 26.7.5); exact for ν = 1 and 2, and within
    0.005 elsewhere.

    >>> [round(student_t95(degrees), 2) for degrees in (1, 2, 3, 10, 1000)]
    [12.71, 4.3, 3.18, 2.23, 1.96]
    """
    if degrees < 3:
        return (12.706204736, 4.302652730)[degrees - 1]
    z = 1.959963984540054
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return float(z + sum(term / degrees**power for power, term in enumerate(terms, 1)))


def _pass_at_k(num_samples: int, num_successes: int, k: int) -> Fraction:
    if not (0 <= num_successes <= num_samples and 1 <= k <= num_samples):
        raise ValueError(f"expected 0 <= c <= n and 1 <= k <= n, got n = {num_samples}, c = {num_successes}, k = {k}")
    return 1 - Fraction(comb(num_samples - num_successes, k), comb(num_samples, k))
