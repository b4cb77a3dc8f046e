"""Errors of statements, worded as MySQL words them."""

import re
from collections.abc import Callable

_MAX_NEAR_CHARS = 80


class StatementError(Exception):
    """A statement that cannot be carried out; the text is what the policy is shown."""


def syntax_error(near: str) -> StatementError:
    return StatementError(
        "1064 (42000): You have an error in your SQL syntax; check the manual that corresponds to your MySQL server "
        f"version for the right syntax to use near '{near[:_MAX_NEAR_CHARS]}' at line 1"
    )


def no_such_function(name: str) -> StatementError:
    return StatementError(f"1305 (42000): FUNCTION dbbench.{name.upper()} does not exist")


def no_such_table(name: str) -> StatementError:
    return StatementError(f"1146 (42S02): Table 'dbbench.{name}' doesn't exist")


def no_such_savepoint(name: str) -> StatementError:
    return StatementError(f"1305 (42000): SAVEPOINT {name} does not exist")


def not_supported() -> StatementError:
    return StatementError("1235 (42000): This version of MySQL doesn't yet support this statement")


def denied() -> StatementError:
    return StatementError("1142 (42000): command denied to user 'dbbench'@'localhost'")


_PATTERNS: tuple[tuple[re.Pattern[str], Callable[[re.Match[str]], StatementError]], ...] = (
    (re.compile(r"no such table: (?:main\.|temp\.)?(.*)", re.DOTALL), lambda match: no_such_table(match[1])),
    (re.compile(r"no such function: my_(.*)", re.DOTALL), lambda match: no_such_function(match[1])),
    (
        re.compile(
            r"no such column: (.*)|table .* has no column named (.*)|cannot .*no such column: \"(.*)\"", re.DOTALL
        ),
        lambda match: StatementError(
            f"1054 (42S22): Unknown column '{match[1] or match[2] or match[3]}' in 'field list'"
        ),
    ),
    (
        re.compile(r"ambiguous column name: (.*)", re.DOTALL),
        lambda match: StatementError(f"1052 (23000): Column '{match[1]}' in field list is ambiguous"),
    ),
    (
        re.compile(
            r"table .* has \d+ columns but \d+ values were supplied|\d+ values for \d+ columns"
            r"|all VALUES must have the same number of terms"
        ),
        lambda _: StatementError("1136 (21S01): Column count doesn't match value count at row 1"),
    ),
    (
        re.compile(r"table (.*) already exists", re.DOTALL),
        lambda match: StatementError(f"1050 (42S01): Table '{match[1].strip('`')}' already exists"),
    ),
    (
        re.compile(r"duplicate column name: (.*)", re.DOTALL),
        lambda match: StatementError(f"1060 (42S21): Duplicate column name '{match[1]}'"),
    ),
    (
        re.compile(r"misuse of (?:aggregate|window)"),
        lambda _: StatementError("1111 (HY000): Invalid use of group function"),
    ),
    (re.compile(r"not authorized|prohibited|too many attached"), lambda _: denied()),
    (re.compile(r"Expression tree is too large|parser stack overflow|too many"), lambda _: not_supported()),
    (re.compile(r"user-defined \w+"), lambda _: StatementError("1210 (HY000): Incorrect arguments to a function")),
    (re.compile(r"string or blob too big|full"), lambda _: StatementError("1114 (HY000): The table is full")),
    (
        re.compile(r"near \"(.*)\": syntax error|incomplete input", re.DOTALL),
        lambda match: syntax_error(match[1] or ""),
    ),
)


def like_mysql(message: str) -> StatementError:
    """An error of SQLite in the words of MySQL; one that is not known keeps its own."""
    for pattern, made in _PATTERNS:
        if match := pattern.search(message):
            return made(match)
    return StatementError(f"1105 (HY000): {message}")
