"""Values as MySQL takes them: texts as numbers, numbers as texts, and how texts compare."""

import re
import unicodedata
from decimal import ROUND_HALF_UP, Decimal, InvalidOperation
from functools import lru_cache

SqlValue = str | int | float | bytes | None
_LEADING_NUMBER = re.compile(r"\s*([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)")
_LEADING_INTEGER = re.compile(r"\s*([+-]?\d+)")
_MAX_INTEGER, _MIN_INTEGER = 2**63 - 1, -(2**63)
# More digits than that no value of a table has; reading them would take long.
_MAX_DIGITS = 400


def to_number(value: SqlValue) -> int | float | None:
    """A text counts as the number it starts with, or 0.0.

    >>> to_number("12,000"), to_number("abc"), to_number(3)
    (12.0, 0.0, 3)
    """
    if value is None or isinstance(value, int | float):
        return value
    match = _LEADING_NUMBER.match(to_text(value)[:_MAX_DIGITS])
    return float(match[1]) if match else 0.0


def to_integer(value: SqlValue) -> int | None:
    """`CAST(… AS SIGNED)`: a text counts as the integer it starts with; a number is rounded, half away from zero."""
    if value is None:
        return None
    if isinstance(value, int | float):
        return clamped(value)
    match = _LEADING_INTEGER.match(to_text(value)[:_MAX_DIGITS])
    return clamped(int(match[1])) if match else 0


def clamped(value: int | float) -> int:
    """The nearest integer of 64 bits."""
    if isinstance(value, float):
        if value != value:
            return 0
        if abs(value) >= _MAX_INTEGER:
            return _MAX_INTEGER if value > 0 else _MIN_INTEGER
        value = int(rounded(value, 0))
    return max(_MIN_INTEGER, min(_MAX_INTEGER, value))


def rounded(value: float, decimals: int) -> float:
    """Half away from zero, of the number as it is written."""
    step = Decimal(1).scaleb(-max(-30, min(30, decimals)))
    try:
        return float(Decimal(repr(value)).quantize(step, rounding=ROUND_HALF_UP))
    except InvalidOperation:
        return value


def to_text(value: SqlValue) -> str:
    """A float without a fraction is written without one, as MySQL does. None is the empty text."""
    if isinstance(value, str):
        return value
    if value is None:
        return ""
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return str(int(value))
    return str(value)


def folded(text: str) -> str:
    """Texts are equal if this is: case and accents do not count (utf8mb4_0900_ai_ci).

    >>> folded("Émile") == folded("emile")
    True
    """
    return text.lower() if text.isascii() else _folded(text)


@lru_cache(maxsize=4096)
def _folded(text: str) -> str:
    decomposed = unicodedata.normalize("NFKD", text)
    return "".join(letter for letter in decomposed if not unicodedata.combining(letter)).casefold()


# Letters and digits are moved beyond all other characters, which MySQL sorts before them.
_SHIFT = 0x30000
_SHIFTED = {ord(letter): ord(letter) + _SHIFT for letter in "0123456789abcdefghijklmnopqrstuvwxyz"}


def _sort_key(text: str) -> str:
    if text.isascii():
        return text.lower().translate(_SHIFTED)
    return "".join(chr(ord(c) + _SHIFT) if c.isalnum() and ord(c) < _SHIFT else c for c in _folded(text))


def collate(one: str, other: str) -> int:
    """-1, 0 or 1: the order of texts."""
    first, second = _sort_key(one), _sort_key(other)
    return (first > second) - (first < second)


def compare(one: SqlValue, other: SqlValue) -> int | None:
    """-1, 0 or 1, and None if either is NULL: two texts by collation, anything else as numbers.

    >>> compare("10", 9), compare("10", "9"), compare(None, 1)
    (1, -1, None)
    """
    if one is None or other is None:
        return None
    if isinstance(one, str) and isinstance(other, str):
        return collate(one, other)
    first, second = to_number(one), to_number(other)
    assert first is not None
    assert second is not None
    return (first > second) - (first < second)
