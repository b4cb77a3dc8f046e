"""AgentBench's tasks, in the format of its files: a JSON object a line (`.jsonl`) or a list of them (`.json`), or a
file of lines compressed with xz (`.jsonl.xz`). AgentBench is published under the Apache licence 2.0.

A task has `description`, `type`, `table` (one or a list: `table_name`, `table_info` with `columns` and `rows`),
`label`, and where they apply `add_description`, `evidence`, `answer_md5`, `sql`, and `user_sqlite` with `create` for a
task whose database is the SQLite file `db_train/DATABASE/INIT`.
"""

import json
import lzma
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from agentrl_jax.errors import ConfigError
from envs.dbbench.problems import Problem, Table, literal, normalised, quoted, task_text, usable_columns

FOLDER = "dbbench"
SQLITE_FOLDER = "db_train"
SUFFIXES = (".jsonl.xz", ".jsonl", ".json")
_CHANGES = frozenset(("INSERT", "UPDATE", "DELETE"))
_RANKING = "ranking"


class PublishedTasks:
    """The tasks of one file, in its order, without those that ask what is in `held_out`.

    Raises ConfigError for a file that is missing or broken.
    """

    def __init__(self, path: Path, held_out: Iterable[str] = ()) -> None:
        self._path = path
        excluded = set(map(normalised, held_out))
        self._entries = [e for e in _entries(path) if normalised(str(e.get("description"))) not in excluded]
        self.problem = lru_cache(maxsize=256)(self._problem)

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def questions(self) -> tuple[str, ...]:
        return tuple(str(entry.get("description", "")) for entry in self._entries)

    def _problem(self, index: int) -> Problem:
        try:
            return _problem(self._entries[index], self._path.parent)
        except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
            raise ConfigError(f"{self._path}, task {index + 1}: expected a dbbench task, but {error!r}") from error


def find_tasks(data: Path, *names: str) -> Path | None:
    """The first file of these names that `data` holds."""
    candidates = [data / FOLDER / f"{name}{suffix}" for name in names for suffix in SUFFIXES]
    return next((path for path in candidates if path.is_file()), None)


@lru_cache(maxsize=8)
def _entries(path: Path) -> Sequence[Mapping[str, Any]]:
    opened: Callable[..., Any] = lzma.open if path.suffix == ".xz" else open
    try:
        with opened(path, "rt", encoding="utf-8") as file:
            if ".jsonl" in path.suffixes:
                entries = [json.loads(line) for line in file if line.strip()]
            else:
                entries = json.load(file)
    except (OSError, EOFError, lzma.LZMAError, ValueError) as error:
        raise ConfigError(f"{path}: expected dbbench tasks, but {error}") from error
    if not isinstance(entries, list) or not entries or not all(isinstance(entry, dict) for entry in entries):
        raise ConfigError(f"{path}: expected a list of dbbench tasks")
    return entries


def _problem(entry: Mapping[str, Any], folder: Path) -> Problem:
    kind = entry["type"][0]
    given = entry.get("table") or []
    tables = tuple(map(_table, given if isinstance(given, list) else [given]))
    text = task_text(
        entry["description"], tables=entry.get("add_description") or "", evidence=entry.get("evidence") or ""
    )
    file = None
    if entry.get("user_sqlite"):
        file = folder / SQLITE_FOLDER / entry["create"]["database"] / entry["create"]["init"]
    if kind not in _CHANGES:
        label = entry["label"]
        answer = tuple(map(str, label if isinstance(label, list) else [label]))
        steps = (showing(tables[0], answer),) if tables and file is None else ()
        return Problem(text=text, tables=tables, file=file, answer=answer, is_ordered=kind == _RANKING, steps=steps)
    solutions = [statement for statement in entry.get("label") or () if isinstance(statement, str)]
    gold = (entry.get("sql") or {}).get("query") or (solutions[0] if solutions else "")
    digest = _digest(entry.get("answer_md5") or "")
    if not (gold or digest):
        raise ValueError("neither answer_md5 nor a solution")
    return Problem(text=text, tables=tables, file=file, answer_hash=digest or None, gold=gold, steps=(gold,))


def _digest(text: str) -> str:
    """The published files hold the raw result of MySQL: `[('DIGEST',)]`."""
    return text.strip("[]()").split(",")[0].strip().strip("'")


def _table(given: Mapping[str, Any]) -> Table:
    info = given["table_info"]
    columns = usable_columns(tuple(str(column["name"]) for column in info["columns"]))
    rows = tuple(tuple(map(str, row)) for row in info.get("rows") or ())
    if any(len(row) != len(columns) for row in rows):
        raise ValueError(f"rows of {given['table_name']!r} have not one value per column")
    return Table(name=str(given["table_name"]), columns=columns, rows=rows)


def showing(table: Table, answer: Sequence[str]) -> str:
    """A statement whose result shows the answer, if a cell of the table is it; else one that shows the table."""
    wanted = {value.strip().lower() for value in answer}
    for row in table.rows:
        for position, value in enumerate(row):
            if value.strip().lower() in wanted:
                key = 1 if position == 0 and len(row) > 1 else 0
                condition = f"{quoted(table.columns[key])} = {literal(row[key])}"
                return f"SELECT {quoted(table.columns[position])} FROM {quoted(table.name)} WHERE {condition}"
    return f"SELECT * FROM {quoted(table.name)} LIMIT 5"
