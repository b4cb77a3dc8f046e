"""WikiTableQuestions (CC BY-SA 4.0): questions about tables of Wikipedia, and changes of the same tables.

A pack is `FOLDER/wikitablequestions/NAME.json.xz`: `tables`, each with `columns` and `rows`, by their paths, and
`questions`, each with `question`, `table` and `label`. Of three tasks one is a question; the other two are an insert
and an update of its table, drawn from the task's seed: the proportions of the published tasks.
"""

import json
import lzma
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property, lru_cache
from pathlib import Path
from random import Random
from typing import Any

from agentrl_jax.errors import ConfigError
from envs.dbbench.changes import insert_problem, update_problem
from envs.dbbench.problems import Problem, Table, normalised, quoted, task_text, usable_columns
from envs.dbbench.published import showing

FOLDER = "wikitablequestions"
TRAIN_PACK, UNSEEN_PACK = "train", "test_unseen_tables"
_PATH = re.compile(r"csv/(\d+)-csv/(\d+)\.csv")
_CHANGES = (insert_problem, update_problem)
_MAX_DRAWS = 20


class WikiTables:
    """The tasks of one pack without the questions in `held_out`. Raises ConfigError for a pack that is broken."""

    def __init__(self, path: Path, held_out: Iterable[str] = ()) -> None:
        self._path = path
        self._tables, questions = _pack(path)
        excluded = set(map(normalised, held_out))
        self._questions = [question for question in questions if normalised(question["question"]) not in excluded]
        self._table = lru_cache(maxsize=512)(self._read_table)

    def __len__(self) -> int:
        return 3 * len(self._questions)

    @cached_property
    def questions(self) -> tuple[str, ...]:
        return tuple(question["question"] for question in self._questions)

    def problem(self, index: int, seed: int) -> Problem:
        question = self._questions[index // 3]
        try:
            table = self._table(question["table"])
            if index % 3:
                changed = self._change(table, index % 3 - 1, seed)
                if changed is not None:
                    return changed
            answer = tuple(map(str, question["label"]))
        except (KeyError, TypeError) as error:
            raise ConfigError(f"{self._path}, question {index // 3 + 1}: {error!r}") from error
        return Problem(
            text=task_text(question["question"], tables=information(table)),
            tables=(table,),
            answer=answer,
            steps=(showing(table, answer),),
        )

    def _change(self, table: Table, kind: int, seed: int) -> Problem | None:
        """A table that one kind of change does not suit gets the other; one that neither suits, none."""
        rng = Random(seed)
        for draw in range(_MAX_DRAWS):
            change = _CHANGES[kind if draw < _MAX_DRAWS // 2 else 1 - kind]
            problem = change(table, rng, information(table))
            if problem is not None:
                return problem
        return None

    def _read_table(self, path: str) -> Table:
        given = self._tables[path]
        columns = usable_columns(tuple(given["columns"]), one_line=True)
        match = _PATH.fullmatch(path)
        name = f"table_{match[1]}_{match[2]}" if match else path
        return Table(name=name, columns=columns, rows=tuple(map(tuple, given["rows"])))


@lru_cache(maxsize=4)
def _pack(path: Path) -> tuple[Mapping[str, Any], Sequence[Mapping[str, Any]]]:
    """The tables by their paths, and the questions."""
    try:
        with lzma.open(path, "rt", encoding="utf-8") as file:
            pack = json.load(file)
        tables, questions = pack["tables"], pack["questions"]
        if not all(isinstance(question["question"], str) for question in questions):
            raise ValueError("a question is no text")
    except (OSError, EOFError, lzma.LZMAError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{path}: expected a pack of WikiTableQuestions, but {error!r}") from error
    return tables, questions


def information(table: Table) -> str:
    """What a task says of its table."""
    return f"The table {quoted(table.name)} has the columns {', '.join(map(quoted, table.columns))}."


def find_pack(data: Path, name: str) -> Path | None:
    path = data / FOLDER / f"{name}.json.xz"
    return path if path.is_file() else None
