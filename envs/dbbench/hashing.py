"""The hash by which changes of tables are judged, the same on every database engine."""

import hashlib
from collections.abc import Iterable, Sequence

# MySQL's group_concat_max_len: what is beyond is cut, so beyond 170 rows not every row counts. Part of the labels.
MAX_CONCAT_BYTES = 1024
# How the hash of a table without rows is written: MySQL's is NULL, which the published code reads as this.
NO_ROWS = "None"


def row_hash(row: Sequence[object]) -> str:
    """The first five hex digits of the MD5 of the values, joined by commas; NULLs are left out.

    >>> row_hash(("a", None, 1)) == row_hash(("a", "1"))
    True
    """
    text = ",".join(_text(value) for value in row if value is not None)
    return hashlib.md5(text.encode("utf-8", "surrogatepass"), usedforsecurity=False).hexdigest()[:5]


def table_hash(rows: Iterable[Sequence[object]]) -> str:
    """MD5 of the sorted row hashes, joined by commas and cut to MAX_CONCAT_BYTES.

    Source: AgentBench's `md5(group_concat(substring(md5(concat_ws(',', …)), 1, 5) order by …))`.
    """
    hashes = sorted(row_hash(row) for row in rows)
    if not hashes:
        return NO_ROWS
    joined = ",".join(hashes).encode()[:MAX_CONCAT_BYTES]
    return hashlib.md5(joined, usedforsecurity=False).hexdigest()


def tables_hash(hashes: Iterable[str]) -> str:
    """The hash of a database from those of its tables."""
    return "_".join(sorted(hashes))


def _text(value: object) -> str:
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return str(int(value)) if isinstance(value, bool) else str(value)
