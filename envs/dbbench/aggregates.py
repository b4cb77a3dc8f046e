"""MySQL's aggregates that SQLite lacks."""

import math
from functools import cmp_to_key
from typing import Any

from envs.dbbench.hashing import MAX_CONCAT_BYTES
from envs.dbbench.values import SqlValue, compare, folded, to_number, to_text

# Of the values of one group together, with what keeping one takes; more are an error of the statement.
_MAX_BYTES = 32_000_000
_VALUE_BYTES = 200


class GroupConcat:
    """`group_concat(flags, separator, value, keys…)`, cut to MySQL's default length.

    flags: "U" if equal values count once, then "A" or "D" for each key: ascending or descending.
    """

    def __init__(self) -> None:
        self._flags = ""
        self._separator = ","
        self._rows: list[tuple[str, tuple[SqlValue, ...]]] = []
        self._num_bytes = 0

    def step(self, flags: str, separator: SqlValue, value: SqlValue, *keys: SqlValue) -> None:
        self._flags, self._separator = flags, to_text(separator)
        if value is None:
            return
        text = to_text(value)
        self._num_bytes += _VALUE_BYTES + len(text) + sum(len(to_text(key)) for key in keys)
        if self._num_bytes > _MAX_BYTES:
            raise ValueError("too many values")
        self._rows.append((text, keys))

    def finalize(self) -> str | None:
        if not self._rows:
            return None
        rows = self._rows
        if self._flags.startswith("U"):
            rows = list({folded(text): (text, keys) for text, keys in reversed(rows)}.values())[::-1]
        for index, direction in reversed(list(enumerate(self._flags.removeprefix("U")))):
            rows.sort(key=cmp_to_key(_by_key(index)), reverse=direction == "D")
        joined = self._separator.join(text for text, _ in rows).encode("utf-8", "replace")
        return joined[:MAX_CONCAT_BYTES].decode("utf-8", "ignore")


def _by_key(index: int) -> Any:
    def compared(one: tuple[str, tuple[SqlValue, ...]], other: tuple[str, tuple[SqlValue, ...]]) -> int:
        first, second = one[1][index], other[1][index]
        if first is None or second is None:
            return (first is not None) - (second is not None)
        return compare(first, second) or 0

    return compared


class _Spread:
    """Variances by Welford's method."""

    is_sample = False
    is_root = False

    def __init__(self) -> None:
        self._count, self._mean, self._total = 0, 0.0, 0.0

    def step(self, value: SqlValue) -> None:
        number = to_number(value)
        if number is None:
            return
        self._count += 1
        delta = number - self._mean
        self._mean += delta / self._count
        self._total += delta * (number - self._mean)

    def finalize(self) -> float | None:
        divisor = self._count - self.is_sample
        if divisor <= 0:
            return None
        variance = self._total / divisor
        return math.sqrt(variance) if self.is_root else variance


class _VarSamp(_Spread):
    is_sample = True


class _StddevPop(_Spread):
    is_root = True


class _StddevSamp(_Spread):
    is_sample = True
    is_root = True


AGGREGATES: dict[str, Any] = {
    "group_concat": GroupConcat,
    "var_pop": _Spread,
    "var_samp": _VarSamp,
    "stddev_pop": _StddevPop,
    "stddev_samp": _StddevSamp,
}
