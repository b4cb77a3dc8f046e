"""Sessions on SQLite: in memory, in MySQL's words; or on a copy of a SQLite file, in SQLite's own.

A statement can reach nothing but its own database: other files, extensions, pragmas that change anything and SQLite's
own scalar functions under MySQL are refused by an authorizer and by limits of the connection. What it may take is
bounded in instructions, time, memory and size; where a bound is met, the policy is told so.
"""

import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from functools import lru_cache
from pathlib import Path

from agentrl_jax.errors import EnvError
from envs.dbbench.bridge import translate
from envs.dbbench.bridge_expressions import COLLATION
from envs.dbbench.catalogue import fill_schema, shown_rows
from envs.dbbench.database import MAX_STATEMENT_CHARS, TIMED_OUT, TOO_LONG, Database, result_text, shown
from envs.dbbench.errors import StatementError, like_mysql, no_such_table
from envs.dbbench.functions import MysqlFunctions, register_sqlite
from envs.dbbench.problems import Problem, Table, quoted
from envs.dbbench.sqlite_memory import memory_used

# A statement on published tables needs a thousandth of it; the same on any machine.
MAX_INSTRUCTIONS = 50_000_000
# Of processor time, for instructions that take long. AgentBench-FC's limit on a server is 60 s.
STATEMENT_LIMIT_S = 10.0
MAX_MEMORY_BYTES = 128 * 2**20
# How far a database may grow beyond its size at the start, and how long a value may be.
MAX_GROWTH_BYTES = 32 * 2**20
MAX_VALUE_BYTES = 2**18
OUT_OF_MEMORY = "Error: SQL execution needs too much memory."
# The bounds are looked at every so many instructions.
_INTERVAL = 2_000
_READ_PRAGMAS = frozenset(("table_info", "table_xinfo", "table_list", "index_list", "index_info", "foreign_key_list"))
_DENIED = frozenset((sqlite3.SQLITE_ATTACH, sqlite3.SQLITE_DETACH))
_DENIED_FUNCTIONS = frozenset(("load_extension", "fts3_tokenizer", "glob", "sqlite_compileoption_get"))


class SqliteBackend:
    """Implements `envs.dbbench.database.Backend`, within this process."""

    def open(self, problem: Problem) -> Database:
        """Raises EnvError for a file that is missing or no database."""
        if problem.file is not None:
            return SqliteFile(problem.file, is_written=problem.is_change)
        return SqliteTables(problem.tables)


class _Sqlite:
    """What both kinds share: limits, running, reading back."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        (pages,) = connection.execute("PRAGMA page_count").fetchone()
        (page_bytes,) = connection.execute("PRAGMA page_size").fetchone()
        connection.execute(f"PRAGMA max_page_count = {pages + MAX_GROWTH_BYTES // page_bytes}")
        # What is sorted stays in memory, where it is counted, and fills no disk.
        connection.execute("PRAGMA temp_store = MEMORY")
        connection.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_VALUE_BYTES)
        connection.set_authorizer(_authorized)

    def execute(self, statement: str) -> str:
        if len(statement) > MAX_STATEMENT_CHARS:
            return TOO_LONG
        try:
            return self._carried_out(statement)
        except StatementError as error:
            return shown(str(error))
        except (sqlite3.Error, sqlite3.Warning, UnicodeError) as error:
            return shown(str(self._explained(error)))
        except MemoryError:
            return OUT_OF_MEMORY

    def rows(self, table: str, columns: Sequence[str]) -> list[tuple[object, ...]] | None:
        names = ", ".join(map(quoted, columns))
        try:
            return self._connection.execute(f"SELECT {names} FROM {quoted(table)}").fetchall()
        except sqlite3.Error:
            return None

    def close(self) -> None:
        self._connection.interrupt()
        self._connection.close()

    def _carried_out(self, statement: str) -> str:
        raise NotImplementedError

    def _explained(self, error: Exception) -> StatementError:
        raise NotImplementedError

    def _run(self, sql: str) -> str:
        """Run one statement within the bounds."""
        bounds = _Bounds()
        self._connection.set_progress_handler(bounds.is_met, _INTERVAL)
        try:
            with closing(self._connection.execute(sql)) as cursor:
                return result_text(cursor)
        except sqlite3.OperationalError:
            if bounds.met:
                raise StatementError(bounds.met) from None
            raise
        finally:
            self._connection.set_progress_handler(None, 0)

    @contextmanager
    def _trusted(self) -> Iterator[sqlite3.Connection]:
        """For statements of ours."""
        self._connection.set_authorizer(None)
        try:
            yield self._connection
        finally:
            self._connection.set_authorizer(_authorized)


class _Bounds:
    """met: what the policy is told of the bound that a statement has met; empty while there is none."""

    def __init__(self) -> None:
        self.met = ""
        self._num_instructions = 0
        self._deadline_s = time.thread_time() + STATEMENT_LIMIT_S
        self._memory_bytes = memory_used()

    def is_met(self) -> int:
        self._num_instructions += _INTERVAL
        if self._num_instructions > MAX_INSTRUCTIONS or time.thread_time() > self._deadline_s:
            self.met = TIMED_OUT
        elif memory_used() - self._memory_bytes > MAX_MEMORY_BYTES:
            self.met = OUT_OF_MEMORY
        return int(bool(self.met))


class SqliteTables(_Sqlite):
    """A database in memory that reads MySQL."""

    def __init__(self, tables: tuple[Table, ...]) -> None:
        connection = _connect(":memory:")
        connection.deserialize(image_of(tables))
        self._functions = MysqlFunctions(connection)
        super().__init__(connection)

    def _carried_out(self, statement: str) -> str:
        translation = translate(statement)
        if translation.kind == "nothing":
            return "[]"
        if translation.kind == "transaction":
            self._change_transaction(translation.sql)
            return "[]"
        if translation.kind == "show":
            with self._trusted() as connection:
                return result_text(shown_rows(connection, translation.tree))
        self._check_case(translation.tables)
        if translation.needs_schema:
            with self._trusted() as connection:
                fill_schema(connection)
        self._functions.require(translation.functions)
        if translation.kind == "definition":
            self._change_transaction("COMMIT")
        return self._run(translation.sql)

    def _change_transaction(self, word: str) -> None:
        """As MySQL does: one that is begun ends another, and without one there is nothing to end."""
        if self._connection.in_transaction:
            self._connection.execute("ROLLBACK" if word == "ROLLBACK" else "COMMIT")
        if word == "BEGIN":
            self._connection.execute(word)

    def _check_case(self, names: frozenset[str]) -> None:
        """The case of table names counts in MySQL."""
        found = {name for (name,) in self._connection.execute("SELECT name FROM sqlite_master")}
        known = {name.lower() for name in found}
        for name in names - found:
            if name.lower() in known:
                raise no_such_table(name)

    def _explained(self, error: Exception) -> StatementError:
        return like_mysql(str(error))


class SqliteFile(_Sqlite):
    """A SQLite file: the file itself, which nothing can change, or a copy in memory if the task is to change it."""

    def __init__(self, path: Path, *, is_written: bool) -> None:
        try:
            source = _connect(f"{path.resolve().as_uri()}?mode=ro&immutable=1", uri=True)
            source.execute("SELECT count(*) FROM sqlite_master").fetchone()
        except sqlite3.Error as error:
            raise EnvError(f"{path}: expected a SQLite database, but {error}") from error
        if is_written:
            copy = _connect(":memory:")
            with closing(source):
                source.backup(copy)
            source = copy
        register_sqlite(source)
        super().__init__(source)

    def _carried_out(self, statement: str) -> str:
        return self._run(statement)

    def _explained(self, error: Exception) -> StatementError:
        return StatementError(f"SQLite execution error: {error}")


def _connect(name: str, *, uri: bool = False) -> sqlite3.Connection:
    # A statement is committed by itself unless the policy begins a transaction. The session's calls come from whichever
    # thread is free.
    return sqlite3.connect(name, uri=uri, isolation_level=None, check_same_thread=False, cached_statements=0)


@lru_cache(maxsize=64)
def image_of(tables: tuple[Table, ...]) -> bytes:
    """The database of these tables as bytes; the members of a group ask for the same one."""
    with closing(_connect(":memory:")) as connection:
        # SQLite cannot write out a database in which nothing has ever been written.
        connection.execute("PRAGMA user_version = 1")
        connection.create_collation(COLLATION, lambda one, other: (one > other) - (one < other))
        for table in tables:
            columns = ", ".join(f"{quoted(name)} TEXT COLLATE {COLLATION}" for name in table.columns)
            connection.execute(f"CREATE TABLE IF NOT EXISTS {quoted(table.name)} ({columns})")
            marks = ", ".join("?" * len(table.columns))
            connection.executemany(f"INSERT INTO {quoted(table.name)} VALUES ({marks})", table.rows)
        return connection.serialize()


def _authorized(action: int, first: str | None, second: str | None, database: str | None, source: str | None) -> int:
    if action in _DENIED:
        return sqlite3.SQLITE_DENY
    if action == sqlite3.SQLITE_PRAGMA and (first or "").lower() not in _READ_PRAGMAS:
        return sqlite3.SQLITE_DENY
    if action == sqlite3.SQLITE_FUNCTION and (second or "").lower() in _DENIED_FUNCTIONS:
        return sqlite3.SQLITE_DENY
    return sqlite3.SQLITE_OK
