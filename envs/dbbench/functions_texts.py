"""MySQL's functions of texts. Positions start at 1. A result longer than a text may be is NULL."""

import hashlib
import uuid
from collections.abc import Callable

from envs.dbbench.values import SqlValue, compare, folded, to_integer, to_text

MAX_TEXT_CHARS = 65_535


def _int(value: SqlValue) -> int:
    return to_integer(value) or 0


def concat(*values: SqlValue) -> str:
    return "".join(map(to_text, values))


def concat_ws(separator: SqlValue, *values: SqlValue) -> str | None:
    """NULLs among the values are left out."""
    if separator is None:
        return None
    return to_text(separator).join(to_text(value) for value in values if value is not None)


def left(text: SqlValue, length: SqlValue) -> str:
    return to_text(text)[: max(0, _int(length))]


def right(text: SqlValue, length: SqlValue) -> str:
    count = _int(length)
    return to_text(text)[-count:] if count > 0 else ""


def substring(text: SqlValue, start: SqlValue, length: SqlValue = MAX_TEXT_CHARS) -> str:
    whole, first, count = to_text(text), _int(start), _int(length)
    if first == 0 or count <= 0 or -first > len(whole):
        return ""
    begin = first - 1 if first > 0 else len(whole) + first
    return whole[begin : begin + count]


def substring_index(text: SqlValue, delimiter: SqlValue, count: SqlValue) -> str:
    whole, mark, number = to_text(text), to_text(delimiter), _int(count)
    if not mark or number == 0:
        return ""
    parts = whole.split(mark)
    return mark.join(parts[:number] if number > 0 else parts[number:])


def insert(text: SqlValue, start: SqlValue, length: SqlValue, inserted: SqlValue) -> str:
    whole, first, count = to_text(text), _int(start), _int(length)
    if not 1 <= first <= len(whole):
        return whole
    end = len(whole) if count < 0 else first - 1 + count
    return whole[: first - 1] + to_text(inserted) + whole[end:]


def replace(text: SqlValue, old: SqlValue, new: SqlValue) -> str | None:
    whole, wanted, inserted = to_text(text), to_text(old), to_text(new)
    if not wanted:
        return whole
    if whole.count(wanted) * max(0, len(inserted) - len(wanted)) + len(whole) > MAX_TEXT_CHARS:
        return None
    return whole.replace(wanted, inserted)


def repeat(text: SqlValue, times: SqlValue) -> str | None:
    whole, count = to_text(text), max(0, _int(times))
    return None if len(whole) * count > MAX_TEXT_CHARS else whole * count


def _pad(text: SqlValue, length: SqlValue, fill: SqlValue) -> tuple[str, str] | None:
    whole, size, filling = to_text(text), _int(length), to_text(fill)
    if not 0 <= size <= MAX_TEXT_CHARS:
        return None
    missing = size - len(whole)
    if missing <= 0:
        return whole[:size], ""
    return whole, (filling * (missing // len(filling) + 1))[:missing] if filling else ""


def lpad(text: SqlValue, length: SqlValue, fill: SqlValue) -> str | None:
    padded = _pad(text, length, fill)
    return None if padded is None else padded[1] + padded[0]


def rpad(text: SqlValue, length: SqlValue, fill: SqlValue) -> str | None:
    padded = _pad(text, length, fill)
    return None if padded is None else padded[0] + padded[1]


def trim(text: SqlValue, removed: SqlValue, position: SqlValue) -> str:
    whole, part, where = to_text(text), to_text(removed), to_text(position)
    start, end = 0, len(whole)
    if part and where != "TRAILING":
        while whole.startswith(part, start, end):
            start += len(part)
    if part and where != "LEADING":
        while whole.endswith(part, start, end):
            end -= len(part)
    return whole[start:end]


def elt(index: SqlValue, *values: SqlValue) -> SqlValue:
    position = _int(index)
    return values[position - 1] if index is not None and 1 <= position <= len(values) else None


def field(wanted: SqlValue, *values: SqlValue) -> int:
    """The position of the first value that equals `wanted`, or 0."""
    return next((position for position, value in enumerate(values, 1) if compare(wanted, value) == 0), 0)


def char(*codes: SqlValue) -> str:
    return "".join(chr(_int(code)) for code in codes if code is not None and 0 < _int(code) < 0xD800)


def _digest(name: str) -> Callable[[SqlValue], str]:
    return lambda text: hashlib.new(name, to_text(text).encode("utf-8", "replace"), usedforsecurity=False).hexdigest()


def sha2(text: SqlValue, length: SqlValue) -> str | None:
    bits = _int(length) or 256
    return _digest(f"sha{bits}")(text) if bits in (224, 256, 384, 512) else None


def hex_(value: SqlValue) -> str:
    if isinstance(value, int):
        return f"{value & (2**64 - 1):X}"
    return to_text(value).encode("utf-8", "replace").hex().upper()


def _soundex(text: SqlValue) -> str:
    letters = [letter for letter in folded(to_text(text)).upper() if "A" <= letter <= "Z"]
    codes = dict(zip("BFPVCGJKQSXZDTLMNR", "111122222222334556", strict=True))
    result, last = "", ""
    for position, letter in enumerate(letters):
        code = codes.get(letter, "")
        if position == 0:
            result = letter
        elif code and code != last:
            result += code
        last = code if letter not in "HW" else last
    return result.ljust(4, "0") if result else ""


TEXTS: dict[str, Callable[..., SqlValue]] = {
    "text": to_text,
    "concat": concat,
    "concat_ws": concat_ws,
    "left": left,
    "right": right,
    "substring": substring,
    "mid": substring,
    "substring_index": substring_index,
    "insert": insert,
    "replace": replace,
    "repeat": repeat,
    "lpad": lpad,
    "rpad": rpad,
    "trim": trim,
    "elt": elt,
    "field": field,
    "char": char,
    "upper": lambda text: to_text(text).upper(),
    "lower": lambda text: to_text(text).lower(),
    "reverse": lambda text: to_text(text)[::-1],
    "length": lambda text: len(to_text(text).encode("utf-8", "replace")),
    "char_length": lambda text: len(to_text(text)),
    "ascii": lambda text: (to_text(text).encode("utf-8", "replace") or b"\0")[0],
    "ord": lambda text: (to_text(text).encode("utf-8", "replace") or b"\0")[0],
    "hex": hex_,
    "md5": _digest("md5"),
    "sha1": _digest("sha1"),
    "sha2": sha2,
    "soundex": _soundex,
    "uuid": lambda: str(uuid.uuid4()),
}
