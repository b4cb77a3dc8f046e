"""The values in the argument of `commit_final_answer`: a list, one value, or a text that spells a list.

A text such as `[('Oslo',), ('Rome',)]`, the raw result of a query, is read by a scanner of our own:
nothing of it is ever evaluated.
"""

import re
from collections.abc import Iterator

# A quoted text, a bare word, or a mark. A quote that is never closed is part of a bare word.
_TOKEN = re.compile(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|[()\[\],]|[^()\[\],'\"]+|['\"]", re.DOTALL)
# A longer text is one value: no label is near it, and quotes that are never closed would take long to look for.
_MAX_CHARS = 10_000
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)
# How Python writes a MySQL DECIMAL: `Decimal('1.5')`.
_DECIMAL = "Decimal"
_PLAIN = {"n": "\n", "t": "\t", "r": "\r"}


def items_of(given: object, *, upstream_compat: bool) -> list[object]:
    """The values that are given. upstream_compat: a row of several values, spelled in a text, counts as none."""
    if isinstance(given, str):
        text = given.strip()
        if text.startswith("[") and text.endswith("]") and len(text) <= _MAX_CHARS:
            rows = list(_rows(text[1:-1]))
            if upstream_compat and any(len(row) > 1 for row in rows):
                rows = [row for row in rows if len(row) == 1]
            return [value for row in rows for value in row]
        return [text]
    if isinstance(given, list | tuple):
        return list(given)
    return [given]


def _rows(text: str) -> Iterator[list[object]]:
    """The entries of a list: a tuple is a row, anything else a row of one value."""
    row: list[object] = []
    value: str | None = None
    is_quoted = False
    depth = num_inner = 0
    for token in _TOKEN.findall(text):
        if value is not None and not is_quoted and (num_inner or token == "(") and value.strip() != _DECIMAL:
            # Brackets within a bare value, such as `Oslo (Norway)`.
            num_inner += (token == "(") - (token == ")")
            value += token
        elif token in ("(", "["):
            depth, value = depth + 1, None
        elif token in (")", "]", ","):
            if value is not None:
                row.append(value if is_quoted else _bare(value))
            value, is_quoted, num_inner = None, False, 0
            depth -= token != ","
            if depth <= 0 and row:
                yield row
                row = []
        elif token[0] in "'\"" and len(token) > 1:
            value, is_quoted = (value or "").strip() + _unescaped(token[1:-1]), True
        elif token.strip():
            value = (value or "") + token
    if value is not None:
        row.append(value if is_quoted else _bare(value))
    if row:
        yield row


def _bare(word: str) -> object:
    return None if word.strip() in ("None", "null", "NULL") else word.strip()


def _unescaped(text: str) -> str:
    return _ESCAPED.sub(lambda match: _PLAIN.get(match[1], match[1]), text)
