"""Random tables and what is asked of them; every task has its own.

People (name, city and more) and, from level 2, cities (city and more). Instructions need a lookup, a search by
another column, or a lookup of what a lookup found; or they change a row. A level 3 task names no columns, has a larger
database, and may count, rank, list or change several rows.
"""

from dataclasses import dataclass, replace
from random import Random

from agentrl_jax.errors import ConfigError
from agentrl_jax.types import Split
from envs.dbbench.hashing import table_hash, tables_hash
from envs.dbbench.instructions import KINDS, Instruction, split_of
from envs.dbbench.problems import Problem, Table, task_text
from envs.dbbench.words import AGES, ATTRIBUTES, CITIES, CITY_ATTRIBUTES, NAMES

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


class GeneratedTables:
    """Problems drawn from seeds."""

    def __init__(self, level: Level) -> None:
        self._level = level

    def problem(self, seed: int, split: Split) -> Problem:
        rng = Random(seed)
        for _ in range(_MAX_DRAWS):
            tables = self._tables(rng)
            drawn = KINDS[rng.choice(self._level.kinds)](tables, rng)
            if drawn is not None and split_of(drawn.question) == split:
                return self._made(tables, drawn)
        raise AssertionError(f"no {split} instruction in {_MAX_DRAWS} draws")

    def vocabulary(self) -> tuple[str, ...]:
        """What may be asked for. The table and the column of names stand in every statement alike, and "name" in every
        tool call besides: they are left to the merges."""
        level = self._level
        half = max(12, level.num_words // 2)
        words = [*NAMES[: level.num_words], *CITIES[:half], "city"]
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

    def _made(self, tables: tuple[Table, ...], drawn: Instruction) -> Problem:
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


def level_of(number: int) -> Level:
    """Raises ConfigError for a level that does not exist."""
    if number not in LEVELS:
        raise ConfigError(f"environment dbbench has generated levels {', '.join(map(str, LEVELS))}, got {number}")
    return LEVELS[number]
