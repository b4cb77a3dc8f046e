"""Changes of given tables as tasks: one row more, or one value of one row that another takes the place of.

What is right is known without a database: the hash of the rows after the change.
"""

from collections import Counter
from random import Random

from envs.dbbench.hashing import table_hash, tables_hash
from envs.dbbench.problems import Problem, Table, literal, quoted, task_text
from envs.dbbench.values import folded

# Values longer than that make a task of copying, not of changing.
_MAX_VALUE_CHARS = 60


def insert_problem(table: Table, rng: Random, information: str) -> Problem | None:
    """A new row whose values stand in their columns already, not all in one row."""
    rows = _short_rows(table)
    if len(rows) < 2:
        return None
    row = tuple(rng.choice(rows)[position] for position in range(len(table.columns)))
    if row in table.rows:
        return None
    named = ", ".join(f"{column} {literal(value)}" for column, value in zip(table.columns, row, strict=True))
    names = ", ".join(map(quoted, table.columns))
    values = ", ".join(map(literal, row))
    return _problem(
        f"Insert a row into the table {table.name}: {named}.",
        f"INSERT INTO {quoted(table.name)} ({names}) VALUES ({values})",
        information,
        table,
        (*table.rows, row),
    )


def update_problem(table: Table, rng: Random, information: str) -> Problem | None:
    """One value of a row, which a value of another column names, becomes one from another row."""
    keys = [position for position in range(len(table.columns)) if _unique_rows(table, position)]
    if not keys or len(table.columns) < 2:
        return None
    key = rng.choice(keys)
    index = rng.choice(_unique_rows(table, key))
    target = rng.choice([position for position in range(len(table.columns)) if position != key])
    row = table.rows[index]
    values = sorted({r[target] for r in _short_rows(table) if folded(r[target]) != folded(row[target])})
    if not values:
        return None
    value = rng.choice(values)
    changed = (*row[:target], value, *row[target + 1 :])
    names = table.columns[target], table.columns[key]
    return _problem(
        f"In the table {table.name}, set {names[0]} to {literal(value)} where {names[1]} is {literal(row[key])}.",
        f"UPDATE {quoted(table.name)} SET {quoted(names[0])} = {literal(value)} "
        f"WHERE {quoted(names[1])} = {literal(row[key])}",
        information,
        table,
        (*table.rows[:index], changed, *table.rows[index + 1 :]),
    )


def _problem(
    question: str, statement: str, information: str, table: Table, rows: tuple[tuple[str, ...], ...]
) -> Problem:
    return Problem(
        text=task_text(question, tables=information),
        tables=(table,),
        answer_hash=tables_hash((table_hash(rows),)),
        gold=statement,
        steps=(statement,),
    )


def _short_rows(table: Table) -> list[tuple[str, ...]]:
    return [row for row in table.rows if all(len(value) <= _MAX_VALUE_CHARS and "\n" not in value for value in row)]


def _unique_rows(table: Table, position: int) -> list[int]:
    """The rows that this column names: no other has an equal value, in any collation of the engines."""
    values = [folded(row[position].strip()) for row in table.rows]
    counts = Counter(values)
    return [
        index
        for index, (value, row) in enumerate(zip(values, table.rows, strict=True))
        if value and counts[value] == 1 and row[position] == row[position].strip()
        and len(value) <= _MAX_VALUE_CHARS and "\n" not in value
    ]  # fmt: skip
