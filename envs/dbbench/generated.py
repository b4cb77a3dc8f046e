"""Random tables and what is asked of them; every task has its own.

People (name, city and more) and, from level 2, cities (city and more). Instructions need a lookup, a search by
another column, or a lookup of what a lookup found; or they change a row. A level 3 task names no columns, has a larger
database, and may count, rank, list or change several rows. An instruction's text, hashed, decides its split: no eval
instruction is ever given in training, whatever the tables, the level or the family's seed.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random

from agentrl_jax.errors import ConfigError
from agentrl_jax.seeding import derive_seed
from agentrl_jax.types import Split
from envs.dbbench.hashing import table_hash, tables_hash
from envs.dbbench.problems import Problem, Table, literal, task_text
from envs.dbbench.words import AGES, ATTRIBUTES, CITIES, CITY_ATTRIBUTES, NAMES

# One instruction in EVAL_EVERY belongs to the eval split.
EVAL_EVERY = 8
_MAX_DRAWS = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """kinds: of instructions. num_people, num_cities: rows. num_attributes: columns of people beside name and city.

    num_words: how many of the words for names and values it uses. is_schema_shown: the task tells tables and columns.
    """

    kinds: tuple[str, ...]
    num_people: int
    num_cities: int
    num_attributes: int
    num_words: int
    max_turns: int
    is_schema_shown: bool = True


LEVELS = {
    1: Level(
        kinds=("lookup", "search", "update"),
        num_people=4,
        num_cities=0,
        num_attributes=1,
        num_words=24,
        max_turns=5,
    ),
    2: Level(
        kinds=("lookup", "search", "hop", "update", "insert", "hop"),
        num_people=6,
        num_cities=4,
        num_attributes=2,
        num_words=24,
        max_turns=8,
    ),
    3: Level(
        kinds=("search", "hop", "list", "count", "rank", "update all", "insert", "delete"),
        num_people=12,
        num_cities=6,
        num_attributes=3,
        num_words=36,
        max_turns=12,
        is_schema_shown=False,
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Drawn:
    """An instruction with its solution. changed: the tables as they should be; None for a question."""

    question: str
    steps: tuple[str, ...]
    answer: tuple[str, ...] | None = None
    changed: tuple[Table, ...] | None = None


class GeneratedTables:
    """Problems drawn from seeds."""

    def __init__(self, level: Level) -> None:
        self._level = level

    def problem(self, seed: int, split: Split) -> Problem:
        rng = Random(seed)
        for _ in range(_MAX_DRAWS):
            tables = self._tables(rng)
            drawn = _DRAWN[rng.choice(self._level.kinds)](tables, rng)
            if drawn is not None and split_of(drawn.question) == split:
                return self._made(tables, drawn)
        raise AssertionError(f"no {split} instruction in {_MAX_DRAWS} draws")

    def vocabulary(self) -> tuple[str, ...]:
        level = self._level
        half = max(12, level.num_words // 2)
        words = [*NAMES[: level.num_words], *CITIES[:half], "people", "name", "city"]
        attributes = list(ATTRIBUTES)[: level.num_attributes] if level.is_schema_shown else list(ATTRIBUTES)
        words += [word for name in attributes for word in (name, *ATTRIBUTES[name])]
        if level.num_cities:
            words += ["cities", *(word for name, values in CITY_ATTRIBUTES.items() for word in (name, *values))]
        return tuple(dict.fromkeys(words))

    def _tables(self, rng: Random) -> tuple[Table, ...]:
        level = self._level
        towns = rng.sample(CITIES[: max(12, level.num_words // 2)], max(level.num_cities, 4))
        names = rng.sample(NAMES[: level.num_words], level.num_people)
        attributes = list(ATTRIBUTES)[: level.num_attributes] if level.is_schema_shown else list(ATTRIBUTES)
        attributes = rng.sample(attributes, level.num_attributes)
        values = {name: [rng.choice(ATTRIBUTES[name]) for _ in names] for name in attributes}
        columns = ["name", "city", *attributes]
        rows = [[name, rng.choice(towns), *(values[a][i] for a in attributes)] for i, name in enumerate(names)]
        if not level.is_schema_shown:
            columns.append("age")
            for row, age in zip(rows, rng.sample(AGES, len(rows)), strict=True):
                row.append(age)
        people = Table(name="people", columns=tuple(columns), rows=tuple(map(tuple, rows)))
        if not level.num_cities:
            return (people,)
        known = tuple(CITY_ATTRIBUTES) if level.is_schema_shown else tuple(rng.sample(list(CITY_ATTRIBUTES), 2))
        drawn = {name: rng.sample(CITY_ATTRIBUTES[name], len(towns)) for name in known}
        town_rows = tuple((town, *(drawn[name][i] for name in known)) for i, town in enumerate(towns))
        return people, Table(name="cities", columns=("city", *known), rows=town_rows)

    def _made(self, tables: tuple[Table, ...], drawn: _Drawn) -> Problem:
        shown = "; ".join(f"{table.name} ({', '.join(table.columns)})" for table in tables)
        is_shown = self._level.is_schema_shown
        look = () if is_shown else ("SHOW TABLES", *(f"DESCRIBE {table.name}" for table in tables))
        problem = Problem(
            text=task_text(drawn.question, tables=shown if is_shown else ""),
            tables=tables,
            answer=drawn.answer,
            steps=(*look, *drawn.steps),
        )
        if drawn.changed is None:
            return problem
        digest = tables_hash(table_hash(table.rows) for table in drawn.changed)
        return replace(problem, answer_hash=digest, gold=drawn.steps[-1])


def split_of(question: str) -> Split:
    return "eval" if derive_seed("dbbench split", question) % EVAL_EVERY == 0 else "train"


def level_of(number: int) -> Level:
    """Raises ConfigError for a level that does not exist."""
    if number not in LEVELS:
        raise ConfigError(f"environment dbbench has generated levels {', '.join(map(str, LEVELS))}, got {number}")
    return LEVELS[number]


def _select(column: str, table: str, key: str, value: str) -> str:
    return f"SELECT {column} FROM {table} WHERE {key} = {literal(value)}"


def _others(table: Table) -> list[str]:
    """The columns that describe a row, but for ages: those only rank."""
    return [column for column in table.columns[1:] if column != "age"]


def _values(table: Table, column: str) -> list[str]:
    position = table.columns.index(column)
    return [row[position] for row in table.rows]


def _lookup(tables: tuple[Table, ...], rng: Random) -> _Drawn:
    people = tables[0]
    row, column = rng.choice(people.rows), rng.choice(_others(people))
    return _Drawn(
        question=f"What is the {column} of {row[0]}?",
        steps=(_select(column, "people", "name", row[0]),),
        answer=(row[people.columns.index(column)],),
    )


def _search(tables: tuple[Table, ...], rng: Random) -> _Drawn | None:
    people = tables[0]
    column = rng.choice(_others(people))
    values = _values(people, column)
    index = rng.randrange(len(values))
    if values.count(values[index]) > 1:
        return None
    return _Drawn(
        question=f"Whose {column} is {values[index]}?",
        steps=(_select("name", "people", column, values[index]),),
        answer=(people.rows[index][0],),
    )


def _hop(tables: tuple[Table, ...], rng: Random) -> _Drawn:
    people, cities = tables
    person, column = rng.choice(people.rows), rng.choice(cities.columns[1:])
    town = next(row for row in cities.rows if row[0] == person[1])
    return _Drawn(
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


def _list(tables: tuple[Table, ...], rng: Random) -> _Drawn | None:
    several = _several(tables, rng)
    if several is None:
        return None
    column, value, found = several
    return _Drawn(
        question=f"List everybody whose {column} is {value}.",
        steps=(_select("name", "people", column, value),),
        answer=tuple(tables[0].rows[index][0] for index in found),
    )


def _count(tables: tuple[Table, ...], rng: Random) -> _Drawn | None:
    several = _several(tables, rng)
    if several is None:
        return None
    column, value, found = several
    return _Drawn(
        question=f"How many people are there whose {column} is {value}?",
        steps=(_select("COUNT(*)", "people", column, value),),
        answer=(str(len(found)),),
    )


def _rank(tables: tuple[Table, ...], rng: Random) -> _Drawn | None:
    several = _several(tables, rng)
    if several is None:
        return None
    column, value, found = several
    word, order = rng.choice((("oldest", " DESC"), ("youngest", "")))
    ages = {int(tables[0].rows[index][-1]): tables[0].rows[index][0] for index in found}
    statement = f"{_select('name', 'people', column, value)} ORDER BY age{order} LIMIT 1"
    chosen = max(ages) if word == "oldest" else min(ages)
    return _Drawn(
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


def _update(tables: tuple[Table, ...], rng: Random) -> _Drawn:
    people = tables[0]
    index, column = rng.randrange(len(people.rows)), rng.choice(_others(people))
    row = people.rows[index]
    value = _new_value(column, row[people.columns.index(column)], rng)
    return _Drawn(
        question=f"Set the {column} of {row[0]} to {value}.",
        steps=(f"UPDATE people SET {column} = {literal(value)} WHERE name = {literal(row[0])}",),
        changed=_set(tables, column, value, [index]),
    )


def _update_all(tables: tuple[Table, ...], rng: Random) -> _Drawn | None:
    several = _several(tables, rng)
    if several is None:
        return None
    column, value, found = several
    target = rng.choice([other for other in _others(tables[0]) if other != column])
    new = _new_value(target, "", rng)
    statement = f"UPDATE people SET {target} = {literal(new)} WHERE {column} = {literal(value)}"
    return _Drawn(
        question=f"Set the {target} of everybody whose {column} is {value} to {new}.",
        steps=(statement,),
        changed=_set(tables, target, new, found),
    )


def _insert(tables: tuple[Table, ...], rng: Random) -> _Drawn | None:
    people = tables[0]
    name = rng.choice(NAMES)
    if name in _values(people, "name"):
        return None
    described = [(column, _new_value(column, "", rng)) for column in _others(people)]
    if people.columns[-1] == "age":
        described.append(("age", rng.choice(AGES)))
    row = (name, *(value for _, value in described))
    return _Drawn(
        question=f"Add {name}: " + ", ".join(f"{column} {value}" for column, value in described) + ".",
        steps=(f"INSERT INTO people VALUES ({', '.join(map(literal, row))})",),
        changed=_changed(tables, [*people.rows, row]),
    )


def _delete(tables: tuple[Table, ...], rng: Random) -> _Drawn | None:
    several = _several(tables, rng)
    if several is None:
        return None
    column, value, found = several
    kept = [row for index, row in enumerate(tables[0].rows) if index not in found]
    return _Drawn(
        question=f"Delete everybody whose {column} is {value}.",
        steps=(f"DELETE FROM people WHERE {column} = {literal(value)}",),
        changed=_changed(tables, kept),
    )


_DRAWN: dict[str, Callable[[tuple[Table, ...], Random], _Drawn | None]] = {
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
