"""LIKE and regular expressions, in bounded time whatever the pattern."""

import re
from collections.abc import Callable
from functools import lru_cache

import regex  # type: ignore[import-untyped]

from envs.dbbench.values import SqlValue, collate, folded, to_integer, to_text

# Of one match. A regular expression that takes longer is an error of the statement.
MATCH_LIMIT_S = 0.2
_MAX_PATTERN_CHARS = 1000
_MAX_TEXT_CHARS = 65_535


def like(text: SqlValue, pattern: SqlValue, escape: SqlValue = "\\") -> int:
    """`%` is any text, `_` any character, `escape` takes the meaning of what follows. Case and accents do not count.

    The texts between the `%` are looked for one after the other, each as early as possible: linear for each of them.
    """
    head, middle, tail = _compiled(folded(to_text(pattern)), folded(to_text(escape)))
    subject = folded(to_text(text))
    if tail is None:
        return int(head.fullmatch(subject) is not None)
    match = head.match(subject)
    if match is None:
        return 0
    position = match.end()
    for part in middle:
        match = part.search(subject, position)
        if match is None:
            return 0
        position = match.end()
    last, length = tail
    start = len(subject) - length
    return int(start >= position and last.match(subject, start) is not None)


Part = re.Pattern[str]


@lru_cache(maxsize=256)
def _compiled(pattern: str, escape: str) -> tuple[Part, tuple[Part, ...], tuple[Part, int] | None]:
    """What the text starts with, what follows in this order, and what it ends with: None if there is no `%`."""
    parts, current, lengths = [], "", [0]
    characters = iter(pattern)
    for character in characters:
        if escape and character == escape:
            character = next(characters, escape)
        elif character == "%":
            parts.append(current)
            current = ""
            lengths.append(0)
            continue
        elif character == "_":
            current += "."
            lengths[-1] += 1
            continue
        current += re.escape(character)
        lengths[-1] += 1
    parts.append(current)
    compiled = [re.compile(part, re.DOTALL) for part in parts]
    if len(compiled) == 1:
        return compiled[0], (), None
    middle = tuple(part for part in compiled[1:-1] if part.pattern)
    return compiled[0], middle, (compiled[-1], lengths[-1])


@lru_cache(maxsize=256)
def _expression(pattern: str) -> "regex.Pattern[str]":
    if len(pattern) > _MAX_PATTERN_CHARS:
        raise ValueError("pattern too long")
    return regex.compile(pattern, regex.IGNORECASE | regex.VERSION0)


def regexp_like(text: SqlValue, pattern: SqlValue, mode: SqlValue = "i") -> int:
    """mode: with "c" case counts."""
    flags = "(?-i:{})" if "c" in to_text(mode) else "{}"
    found = _expression(flags.format(to_text(pattern))).search(to_text(text), timeout=MATCH_LIMIT_S)
    return int(found is not None)


def regexp_substr(text: SqlValue, pattern: SqlValue) -> str | None:
    found = _expression(to_text(pattern)).search(to_text(text), timeout=MATCH_LIMIT_S)
    return None if found is None else str(found[0])


def regexp_instr(text: SqlValue, pattern: SqlValue) -> int:
    found = _expression(to_text(pattern)).search(to_text(text), timeout=MATCH_LIMIT_S)
    return 0 if found is None else int(found.start()) + 1


def regexp_replace(text: SqlValue, pattern: SqlValue, replacement: SqlValue) -> str:
    subject, inserted = to_text(text), re.sub(r"\$(\d)", r"\\\1", to_text(replacement).replace("\\", "\\\\"))
    if (len(subject) + 1) * (len(inserted) + 1) > 16 * _MAX_TEXT_CHARS:
        raise ValueError("result too long")
    return str(_expression(to_text(pattern)).sub(inserted, subject, timeout=MATCH_LIMIT_S))


def strcmp(one: SqlValue, other: SqlValue) -> int:
    return collate(to_text(one), to_text(other))


def find_in_set(text: SqlValue, listed: SqlValue) -> int:
    items = [folded(item) for item in to_text(listed).split(",")]
    wanted = folded(to_text(text))
    return items.index(wanted) + 1 if wanted in items else 0


def locate(wanted: SqlValue, text: SqlValue, position: SqlValue = 1) -> int:
    start = (to_integer(position) or 0) - 1
    return 0 if start < 0 else folded(to_text(text)).find(folded(to_text(wanted)), start) + 1


PATTERNS: dict[str, Callable[..., SqlValue]] = {
    "like": like,
    "regexp_like": regexp_like,
    "regexp_substr": regexp_substr,
    "regexp_instr": regexp_instr,
    "regexp_replace": regexp_replace,
    "strcmp": strcmp,
    "find_in_set": find_in_set,
    "locate": locate,
}
