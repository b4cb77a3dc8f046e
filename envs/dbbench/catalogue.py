"""What MySQL tells of its tables: SHOW, DESCRIBE, and the tables of `information_schema`, read from SQLite."""

import sqlite3
from typing import NamedTuple

from sqlglot import exp

from envs.dbbench.bridge import DATABASE, SCHEMA
from envs.dbbench.errors import no_such_table, not_supported
from envs.dbbench.patterns import like
from envs.dbbench.problems import quoted

Row = tuple[str | int | None, ...]
_COLUMNS = (
    "table_schema TEXT, table_name TEXT, column_name TEXT, ordinal_position INT, data_type TEXT, column_type TEXT, "
    "is_nullable TEXT, column_key TEXT, column_default TEXT, extra TEXT"
)
_TABLES = "table_schema TEXT, table_name TEXT, table_type TEXT, table_rows INT"
_WITHOUT_ROWS = frozenset(("INDEX", "WARNINGS", "ERRORS", "TRIGGERS", "EVENTS", "GRANTS"))


class _Column(NamedTuple):
    name: str
    kind: str
    is_nullable: str
    key: str
    default: str | None
    extra: str


def shown_rows(connection: sqlite3.Connection, tree: exp.Expression | None) -> list[Row]:
    """The result of a SHOW or DESCRIBE. Raises StatementError for a table that does not exist."""
    if isinstance(tree, exp.Describe):
        return [tuple(column) for column in _columns(connection, tree.this.name)]
    assert isinstance(tree, exp.Show)
    name, target = tree.name.upper(), tree.args.get("target")
    pattern = tree.args.get("like")
    if name == "TABLES":
        rows: list[Row] = [(table,) for table in _tables(connection)]
        if tree.args.get("full"):
            rows = [(*row, "BASE TABLE") for row in rows]
    elif name == "COLUMNS":
        rows = [tuple(column) for column in _columns(connection, _target(target))]
    elif name == "CREATE TABLE":
        rows = [_create_statement(connection, _target(target))]
    elif name == "DATABASES":
        rows = [(DATABASE,), (SCHEMA,)]
    elif name in _WITHOUT_ROWS:
        rows = []
    else:
        raise not_supported()
    return [row for row in rows if pattern is None or like(row[0], pattern.name)]


def fill_schema(connection: sqlite3.Connection) -> None:
    """Bring the two tables of `information_schema` up to date, as temporary tables under their whole names."""
    tables = _tables(connection)
    described = {table: _columns(connection, table) for table in tables}
    for name, definition in (("columns", _COLUMNS), ("tables", _TABLES)):
        connection.execute(f"DROP TABLE IF EXISTS temp.`{SCHEMA}.{name}`")
        connection.execute(f"CREATE TEMP TABLE `{SCHEMA}.{name}` ({definition})".replace("TEXT", "TEXT COLLATE NOCASE"))
    for table, columns in described.items():
        (count,) = connection.execute(f"SELECT count(*) FROM {quoted(table)}").fetchone()
        connection.execute(
            f"INSERT INTO temp.`{SCHEMA}.tables` VALUES (?, ?, 'BASE TABLE', ?)", (DATABASE, table, count)
        )
        for position, column in enumerate(columns, start=1):
            values = (DATABASE, table, column.name, position, column.kind, column.kind, column.is_nullable)
            connection.execute(
                f"INSERT INTO temp.`{SCHEMA}.columns` VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (*values, column.key, column.default, column.extra),
            )


def _target(target: object) -> str:
    return target.name if isinstance(target, exp.Expression) else str(target or "")


def _tables(connection: sqlite3.Connection) -> list[str]:
    found = connection.execute("SELECT name FROM sqlite_master WHERE type IN ('table', 'view') ORDER BY name")
    return [name for (name,) in found if not name.startswith("sqlite_")]


def _columns(connection: sqlite3.Connection, table: str) -> list[_Column]:
    found = connection.execute(f"PRAGMA table_info({quoted(table)})").fetchall()
    if not found:
        raise no_such_table(table)
    return [
        _Column(
            name=name,
            kind=kind.lower() or "text",
            is_nullable="NO" if is_required or is_key else "YES",
            key="PRI" if is_key else "",
            default=default,
            extra="auto_increment" if is_key else "",
        )
        for _, name, kind, is_required, default, is_key in found
    ]


def _create_statement(connection: sqlite3.Connection, table: str) -> Row:
    lines = []
    for column in _columns(connection, table):
        required = " NOT NULL" if column.is_nullable == "NO" else ""
        lines.append(f"  {quoted(column.name)} {column.kind}{required}{' AUTO_INCREMENT' if column.extra else ''}")
    body = ",\n".join(lines)
    engine = "ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_0900_ai_ci"
    return (table, f"CREATE TABLE {quoted(table)} (\n{body}\n) {engine}")
