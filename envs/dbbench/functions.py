"""MySQL's functions for SQLite: registered on a connection under the prefix of `bridge_expressions`.

None is NULL. A function whose name stands in TAKES_NULL sees NULLs; every other is NULL if an argument is.
"""

import sqlite3
from collections.abc import Callable
from functools import wraps

from envs.dbbench.aggregates import AGGREGATES
from envs.dbbench.bridge_expressions import COLLATION, PREFIX
from envs.dbbench.functions_dates import DATES
from envs.dbbench.functions_numbers import NUMBERS
from envs.dbbench.functions_texts import TEXTS
from envs.dbbench.patterns import PATTERNS, like
from envs.dbbench.values import SqlValue, collate, compare

TAKES_NULL = frozenset(
    ("concat_ws", "field", "null_safe_equal", "in_list", "row_key", "compare", "elt", "char", "xor", "nullif")
)


def _null_safe_equal(one: SqlValue, other: SqlValue) -> int:
    return int(one is None and other is None if one is None or other is None else compare(one, other) == 0)


def _in_list(value: SqlValue, *listed: SqlValue) -> int | None:
    """1, 0, or NULL if nothing equals it but something is NULL."""
    if value is None:
        return None
    found = [compare(value, item) for item in listed]
    if 0 in found:
        return 1
    return None if None in found else 0


def _row_key(*values: SqlValue) -> str | None:
    return None if None in values else repr(values).casefold()


def _xor(one: SqlValue, other: SqlValue) -> int | None:
    if one is None or other is None:
        return None
    return int((compare(one, 0) != 0) != (compare(other, 0) != 0))


def _nullif(one: SqlValue, other: SqlValue) -> SqlValue:
    return None if compare(one, other) == 0 else one


_COMPARISONS: dict[str, Callable[..., SqlValue]] = {
    "compare": compare,
    "null_safe_equal": _null_safe_equal,
    "in_list": _in_list,
    "row_key": _row_key,
    "xor": _xor,
    "nullif": _nullif,
}


def _null_in_null_out(function: Callable[..., SqlValue]) -> Callable[..., SqlValue]:
    @wraps(function)
    def guarded(*arguments: SqlValue) -> SqlValue:
        return None if None in arguments else function(*arguments)

    return guarded


_BY_NAME: dict[str, Callable[..., SqlValue]] = {**_COMPARISONS, **NUMBERS, **TEXTS, **PATTERNS, **DATES}
FUNCTIONS = {
    PREFIX + name: function if name in TAKES_NULL else _null_in_null_out(function)
    for name, function in _BY_NAME.items()
}
_AGGREGATES = {PREFIX + name: aggregate for name, aggregate in AGGREGATES.items()}


class MysqlFunctions:
    """MySQL's functions, aggregates and collation on one connection. A function is registered when it is first used:
    most sessions need few, and all of them take longer than a session otherwise does."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._registered: set[str] = set()
        connection.create_collation(COLLATION, collate)

    def require(self, names: frozenset[str]) -> None:
        """Register those of `names` that exist."""
        for name in names - self._registered:
            if name in FUNCTIONS:
                self._connection.create_function(name, -1, FUNCTIONS[name])
            elif name in _AGGREGATES:
                self._connection.create_aggregate(name, -1, _AGGREGATES[name])
        self._registered |= names


def register_sqlite(connection: sqlite3.Connection) -> None:
    """For statements in SQLite's own words: its `LIKE` may take for ever on one pair of texts, ours does not."""
    for num_arguments in (2, 3):
        connection.create_function("like", num_arguments, _sqlite_like, deterministic=True)


def _sqlite_like(pattern: SqlValue, text: SqlValue, escape: SqlValue = "") -> int | None:
    return None if pattern is None or text is None else like(text, pattern, escape)
