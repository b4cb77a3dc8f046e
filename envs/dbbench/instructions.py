"""What generated tasks ask for: each kind of instruction is drawn from the tables, with its solution.

An instruction's text, hashed, decides its split, whatever the tables, the level or the family's seed.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random

from agentrl_jax.seeding import derive_seed
from agentrl_jax.types import Split
from envs.dbbench.problems import Table, literal
from envs.dbbench.words import AGES, ATTRIBUTES, CITIES, NAMES

# One instruction in EVAL_EVERY belongs to the eval split.
EVAL_EVERY = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Instruction:
    """An instruction with its solution. changed: the tables as they should be; None for a question."""

    question: str
    steps: tuple[str, ...]
    answer: tuple[str, ...] | None = None
    changed: tuple[Table, ...] | None = None


def split_of(question: str) -> Split:
    return "eval" if derive_seed("dbbench split", question) % EVAL_EVERY == 0 else "train"


def _select(column: str, table: str, key: str, value: str) -> str:
    return f"SELECT {column} FROM {table} WHERE {key} = {literal(value)}"


def _others(table: Table) -> list[str]:
    """The columns that describe a row, but for ages: those only rank."""
    return [column for column in table.columns[1:] if column != "age"]


def _values(table: Table, column: str) -> list[str]:
    position = table.columns.index(column)
    return [row[position] for row in table.rows]


def _lookup(tables: tuple[Table, ...], rng: Random) -> Instruction:
    people = tables[0]
    row, column = rng.choice(people.rows), rng.choice(_others(people))
    return Instruction(
        question=f"What is the {column} of {row[0]}?",
        steps=(_select(column, "people", "name", row[0]),),
        answer=(row[people.columns.index(column)],),
    )


def _search(tables: tuple[Table, ...], rng: Random) -> Instruction | None:
    people = tables[0]
    column = rng.choice(_others(people))
    values = _values(people, column)
    index = rng.randrange(len(values))
    if values.count(values[index]) > 1:
        return None
    return Instruction(
        question=f"Whose {column} is {values[index]}?",
        steps=(_select("name", "people", column, values[index]),),
        answer=(people.rows[index][0],),
    )


def _hop(tables: tuple[Table, ...], rng: Random) -> Instruction:
    people, cities = tables
    person, column = rng.choice(people.rows), rng.choice(cities.columns[1:])
    town = next(row for row in cities.rows if row[0] == person[1])
    return Instruction(
        question=f"What is the {column} of the city of {person[0]}?",
        steps=(_select("city", "people", "name", person[0]), _select(column, "cities", "city", person[1])),
        answer=(town[cities.columns.index(column)],),
    )


def _several(tables: tuple[Table, ...], rng: Random) -> tuple[str, str, list[int]] | None:
    """A column, a value that two to four people have, and who they are."""
    people = tables[0]
    column = rng.choice(_others(people))
    values = _values(people, column)
    value = rng.choice(values)
    found = [index for index, other in enumerate(values) if other == value]
    return (column, value, found) if 2 <= len(found) <= 4 else None


def _list(tables: tuple[Table, ...], rng: Random) -> Instruction | None:
    several = _several(tables, rng)
    if several is None:
        return None
    column, value, found = several
    return Instruction(
        question=f"List everybody whose {column} is {value}.",
        steps=(_select("name", "people", column, value),),
        answer=tuple(tables[0].rows[index][0] for index in found),
    )


def _count(tables: tuple[Table, ...], rng: Random) -> Instruction | None:
    several = _several(tables, rng)
    if several is None:
        return None
    column, value, found = several
    return Instruction(
        question=f"How many people are there whose {column} is {value}?",
        steps=(_select("COUNT(*)", "people", column, value),),
        answer=(str(len(found)),),
    )


def _rank(tables: tuple[Table, ...], rng: Random) -> Instruction | None:
    several = _several(tables, rng)
    if several is None:
        return None
    column, value, found = several
    word, order = rng.choice((("oldest", " DESC"), ("youngest", "")))
    ages = {int(tables[0].rows[index][-1]): tables[0].rows[index][0] for index in found}
    statement = f"{_select('name', 'people', column, value)} ORDER BY age{order} LIMIT 1"
    chosen = max(ages) if word == "oldest" else min(ages)
    return Instruction(
        question=f"Who is the {word} of those whose {column} is {value}?", steps=(statement,), answer=(ages[chosen],)
    )


def _changed(tables: tuple[Table, ...], rows: list[tuple[str, ...]]) -> tuple[Table, ...]:
    return replace(tables[0], rows=tuple(rows)), *tables[1:]


def _set(tables: tuple[Table, ...], column: str, value: str, found: list[int]) -> tuple[Table, ...]:
    position = tables[0].columns.index(column)
    rows = list(tables[0].rows)
    for index in found:
        rows[index] = (*rows[index][:position], value, *rows[index][position + 1 :])
    return _changed(tables, rows)


def _new_value(column: str, old: str, rng: Random) -> str:
    words = CITIES[:12] if column == "city" else ATTRIBUTES[column]
    return rng.choice([word for word in words if word != old])


def _update(tables: tuple[Table, ...], rng: Random) -> Instruction:
    people = tables[0]
    index, column = rng.randrange(len(people.rows)), rng.choice(_others(people))
    row = people.rows[index]
    value = _new_value(column, row[people.columns.index(column)], rng)
    return Instruction(
        question=f"Set the {column} of {row[0]} to {value}.",
        steps=(f"UPDATE people SET {column} = {literal(value)} WHERE name = {literal(row[0])}",),
        changed=_set(tables, column, value, [index]),
    )


def _update_all(tables: tuple[Table, ...], rng: Random) -> Instruction | None:
    several = _several(tables, rng)
    if several is None:
        return None
    column, value, found = several
    target = rng.choice([other for other in _others(tables[0]) if other != column])
    new = _new_value(target, "", rng)
    statement = f"UPDATE people SET {target} = {literal(new)} WHERE {column} = {literal(value)}"
    return Instruction(
        question=f"Set the {target} of everybody whose {column} is {value} to {new}.",
        steps=(statement,),
        changed=_set(tables, target, new, found),
    )


def _insert(tables: tuple[Table, ...], rng: Random) -> Instruction | None:
    people = tables[0]
    name = rng.choice(NAMES)
    if name in _values(people, "name"):
        return None
    described = [(column, _new_value(column, "", rng)) for column in _others(people)]
    if people.columns[-1] == "age":
        described.append(("age", rng.choice(AGES)))
    row = (name, *(value for _, value in described))
    return Instruction(
        question=f"Add {name}: " + ", ".join(f"{column} {value}" for column, value in described) + ".",
        steps=(f"INSERT INTO people VALUES ({', '.join(map(literal, row))})",),
        changed=_changed(tables, [*people.rows, row]),
    )


def _delete(tables: tuple[Table, ...], rng: Random) -> Instruction | None:
    several = _several(tables, rng)
    if several is None:
        return None
    column, value, found = several
    kept = [row for index, row in enumerate(tables[0].rows) if index not in found]
    return Instruction(
        question=f"Delete everybody whose {column} is {value}.",
        steps=(f"DELETE FROM people WHERE {column} = {literal(value)}",),
        changed=_changed(tables, kept),
    )


KINDS: dict[str, Callable[[tuple[Table, ...], Random], Instruction | None]] = {
    "lookup": _lookup,
    "search": _search,
    "hop": _hop,
    "list": _list,
    "count": _count,
    "rank": _rank,
    "update": _update,
    "update all": _update_all,
    "insert": _insert,
    "delete": _delete,
}
