"""What a task is made of: tables, the text that asks something of them, and what is right."""

from dataclasses import dataclass
from pathlib import Path

# The texts that AgentBench-FC puts before each part of a task.
EVIDENCE = "Evidence about the question: "
TABLE_INFORMATION = "Additional table information about the question: "
QUESTION = "Question: "


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table whose columns all hold text. rows: one value per column each."""

    name: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One task.

    text: the user message. tables: what the database holds at the start. file: a SQLite file that is the database
    instead; of its tables, then, those whose columns `tables` names are graded.
    answer: the right values of a question; None if the task is to change the database.
    answer_hash: of the tables after the right change (see `hashing`); None: what `gold` leads to.
    gold: the published solution of a change.
    is_ordered: the order of the answer's values counts.
    steps: statements by which the expert finds the answer, or makes the change.
    """

    text: str
    tables: tuple[Table, ...] = ()
    file: Path | None = None
    answer: tuple[str, ...] | None = None
    answer_hash: str | None = None
    gold: str | None = None
    is_ordered: bool = False
    steps: tuple[str, ...] = ()

    @property
    def is_change(self) -> bool:
        return self.answer is None


def task_text(question: str, *, tables: str = "", evidence: str = "") -> str:
    """The user message, as AgentBench-FC composes it."""
    parts = ((EVIDENCE, evidence), (TABLE_INFORMATION, tables), (QUESTION, question))
    return "".join(f"{label}{text}\n" for label, text in parts if text)


def normalised(question: str) -> str:
    """Equal for questions that differ in case and white space alone."""
    return " ".join(question.lower().split())


def quoted(name: str) -> str:
    """An identifier as MySQL and SQLite read it."""
    return "`" + name.replace("`", "``") + "`"


def literal(value: str) -> str:
    """A text as MySQL reads it, in one line if the value is one."""
    return "'" + value.replace("\\", "\\\\").replace("'", "''") + "'"


def usable_columns(names: tuple[str, ...], *, one_line: bool = False) -> tuple[str, ...]:
    """Column names that a server accepts, the others as they are: not empty, without a space at the end, at most 64
    characters, no two alike but for their case. one_line: with single spaces for any white space."""
    taken: set[str] = set()
    result = []
    for position, name in enumerate(names, start=1):
        base = (" ".join(name.split()) if one_line else name)[:64].rstrip() or f"column_{position}"
        fresh, copies = base, 1
        while fresh.casefold() in taken:
            copies += 1
            fresh = f"{base[:60]}_{copies}"
        taken.add(fresh.casefold())
        result.append(fresh)
    return tuple(result)
