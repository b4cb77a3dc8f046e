"""What an episode needs of a database engine, and how results are shown."""

from collections.abc import Iterable, Sequence
from typing import Protocol

from envs.dbbench.problems import Problem

# AgentBench-FC's limits and texts.
MAX_RESULT_CHARS = 800
TRUNCATED = "[TRUNCATED]"
TIMED_OUT = "Error: SQL execution timed out."
# Longer statements are refused unread.
MAX_STATEMENT_CHARS = 20_000
TOO_LONG = f"Error: a statement may have at most {MAX_STATEMENT_CHARS} characters."


class Database(Protocol):
    """The database of one session. Not thread-safe: its calls come one at a time."""

    def execute(self, statement: str) -> str:
        """Carry out one statement, which is committed by itself unless the policy has begun a transaction; returns what
        it is shown. What is wrong with the statement is part of that text. Raises EnvError if the engine fails."""
        ...

    def rows(self, table: str, columns: Sequence[str]) -> list[tuple[object, ...]] | None:
        """All rows of a table, for grading, as the session sees them; None if there is no such table, or a column of it
        is gone."""
        ...

    def close(self) -> None:
        """Drop the database. A statement that still runs is killed."""
        ...


class Backend(Protocol):
    """A database engine."""

    def open(self, problem: Problem) -> Database:
        """A new database with the tables of `problem`, which no other session sees. Raises EnvError."""
        ...


def result_text(rows: Iterable[Sequence[object]]) -> str:
    """`str` of the list of row tuples, cut after MAX_RESULT_CHARS characters. Reads no more rows than that takes.

    >>> result_text([("a", 1), (None, 2.0)])
    "[('a', 1), (None, 2.0)]"
    """
    parts: list[str] = []
    num_chars = 1
    for row in rows:
        part = repr(tuple(row))
        parts.append(part)
        num_chars += len(part) + 2
        if num_chars > MAX_RESULT_CHARS + 2:
            break
    return shown("[" + ", ".join(parts) + "]")


def shown(text: str) -> str:
    """A result or an error, cut as AgentBench-FC cuts it."""
    return text if len(text) <= MAX_RESULT_CHARS else text[:MAX_RESULT_CHARS] + TRUNCATED
