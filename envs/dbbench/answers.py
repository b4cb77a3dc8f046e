"""When an answer is right: AgentBench-FC's comparison without its faults, or with them.

Values are cleaned (spaces and quotes around them, a per cent sign at the end, commas) and compared as numbers, within
TOLERANCE, where both are numbers, else as texts. By default null, NaN, infinity, the empty text and 0 are different
values, every value counts as often as it is given, and order counts where the question ranks. As published, they are
all "0", and lists that are not all numbers are compared as sets.
"""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from envs.dbbench.answer_lists import items_of

TOLERANCE = 1e-2
_NULLS = frozenset(("none", "null", "undefined"))
_NOT_FINITE = frozenset(("nan", "inf", "infinity", "-inf", "-infinity"))
# A value longer than this is no number; nor is what `float` accepts beyond SQL, such as "1_000".
_MAX_NUMBER_CHARS = 64
# Rounding must not decide whether 0.01 is within the tolerance.
_SLACK = 1e-9


class Value(NamedTuple):
    """A cleaned value. number: None if it is none."""

    text: str
    number: float | None = None


def is_right(given: object, label: Sequence[str], *, is_ordered: bool, upstream_compat: bool) -> bool:
    """Whether the argument of `commit_final_answer` is the answer. Never evaluates what it is given."""
    items = items_of(given, upstream_compat=upstream_compat)
    if upstream_compat:
        return _as_published([_published(item) for item in items], [_published(value) for value in label])
    ours, right = [_cleaned(item) for item in items], [_cleaned(value) for value in label]
    if len(ours) != len(right):
        return False
    if is_ordered or len(right) == 1:
        return all(map(_is_same, ours, right))
    return _is_same_multiset(ours, right)


def _is_same(one: Value, other: Value) -> bool:
    if one.number is not None and other.number is not None:
        return abs(one.number - other.number) <= TOLERANCE + _SLACK
    return one.text == other.text


def _is_same_multiset(ours: Sequence[Value], right: Sequence[Value]) -> bool:
    """Sorted neighbours pair up best: with one tolerance for all, no other pairing can succeed where these fail."""
    numbers = [sorted(value.number for value in values if value.number is not None) for values in (ours, right)]
    texts = [Counter(value.text for value in values if value.number is None) for values in (ours, right)]
    if len(numbers[0]) != len(numbers[1]) or texts[0] != texts[1]:
        return False
    return all(abs(a - b) <= TOLERANCE + _SLACK for a, b in zip(*numbers, strict=True))


def _stripped(value: str) -> str:
    text = value.strip().strip("'\"").strip()
    if text.endswith("%"):
        return text[:-1].strip()
    return text if text.startswith("[") or text.endswith("]") else text.replace(",", "")


def _cleaned(item: object) -> Value:
    if item is None:
        return Value("null")
    text = _stripped(str(item))
    lowered = text.lower()
    if lowered in _NULLS:
        return Value("null")
    if lowered in _NOT_FINITE:
        return Value(lowered.replace("infinity", "inf"))
    return Value(text, _number(text))


def _number(text: str) -> float | None:
    if len(text) > _MAX_NUMBER_CHARS or "_" in text:
        return None
    try:
        return float(text)
    except ValueError:
        return None


def _published(item: object) -> Value:
    text = _stripped(str(item))
    if text.lower() in _NULLS | _NOT_FINITE or not text:
        return Value("0", 0.0)
    return Value(text, _number(text))


def _as_published(ours: Sequence[Value], right: Sequence[Value]) -> bool:
    if len(ours) == len(right) == 1:
        return _is_same(ours[0], right[0])
    if all(value.number is not None for value in (*ours, *right)):
        return len(ours) == len(right) and _is_same_multiset(ours, right)
    return {value.text for value in ours} == {value.text for value in right}
