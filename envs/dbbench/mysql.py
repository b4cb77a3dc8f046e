"""Sessions on a real server: MySQL, or MariaDB set to behave as MySQL does. One database and one account each."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

import pymysql
from pymysql.cursors import SSCursor

from agentrl_jax.errors import EnvError
from envs.dbbench.database import MAX_STATEMENT_CHARS, TIMED_OUT, TOO_LONG, Database, result_text, shown
from envs.dbbench.mysql_server import IS_LOST, Server, ServerOptions, is_timeout
from envs.dbbench.problems import Problem, Table, quoted
from envs.dbbench.sqlite import SqliteBackend

# A table that has grown beyond this is not the right one; reading it all could take any memory.
MAX_ROWS = 100_000


class MysqlBackend:
    """Implements `envs.dbbench.database.Backend`. Tasks of SQLite files run in this process, as published."""

    def __init__(self, options: ServerOptions) -> None:
        self._server = Server(options)

    def open(self, problem: Problem) -> Database:
        """Waits for a place on the server. Raises EnvError if there is none in time, or the server fails."""
        if problem.file is not None:
            return SqliteBackend().open(problem)
        return MysqlDatabase(self._server, problem.tables)

    def close(self) -> None:
        """Drop what is left on the server of this process."""
        self._server.close()


class MysqlDatabase:
    """One database, reached through an account that may do nothing outside it."""

    def __init__(self, server: Server, tables: tuple[Table, ...]) -> None:
        self._server = server
        self._place = server.take_place()
        self._connection: Any = None
        try:
            with _blamed():
                self._connect()
                for table in tables:
                    self._load(table)
        except BaseException:
            self.close()
            raise

    @property
    def name(self) -> str:
        return self._place.name

    def execute(self, statement: str) -> str:
        if len(statement) > MAX_STATEMENT_CHARS:
            return TOO_LONG
        deadline_s = time.monotonic() + self._server.options.statement_limit_s
        try:
            with self._connection.cursor(SSCursor) as cursor:
                cursor.execute(statement)
                text = self._read(cursor, deadline_s)
        except (pymysql.Error, UnicodeError, OSError) as error:
            return self._explained(error)
        return text

    def rows(self, table: str, columns: Sequence[str]) -> list[tuple[object, ...]] | None:
        # Neither a lock nor a transaction that the policy has begun must keep the grading waiting.
        with suppress(pymysql.Error), self._connection.cursor() as cursor:
            cursor.execute("UNLOCK TABLES")
            cursor.execute("COMMIT")
        names = ", ".join(map(quoted, columns))
        query = f"SELECT {names} FROM {quoted(self.name)}.{quoted(table)} LIMIT {MAX_ROWS + 1}"
        rows = self._server.rows_or_none(query)
        return None if rows is None or len(rows) > MAX_ROWS else rows

    def close(self) -> None:
        """Kill what the session still runs, drop its database and give its place back."""
        connection, self._connection = self._connection, None
        with _blamed():
            self._server.give_back(self._place, None if connection is None else connection.thread_id())
        if connection is not None:
            _forget(connection)

    def _connect(self) -> None:
        self._connection = self._server.connect(self._place)

    def _load(self, table: Table) -> None:
        columns = ", ".join(f"{quoted(name)} TEXT" for name in table.columns)
        with self._connection.cursor() as cursor:
            cursor.execute(f"CREATE TABLE IF NOT EXISTS {quoted(table.name)} ({columns})")
            if table.rows:
                escape = self._connection.escape
                rows = ", ".join("(" + ", ".join(map(escape, row)) + ")" for row in table.rows)
                cursor.execute(f"INSERT INTO {quoted(table.name)} VALUES {rows}")

    def _read(self, cursor: Any, deadline_s: float) -> str:
        """What is shown of the result. The rest of it is not read: the statement is killed."""
        if cursor.description is None:
            return "[]"
        rows = _Rows(cursor, deadline_s)
        text = result_text(rows)
        if not rows.is_complete:
            self._server.kill(self._connection.thread_id(), only_statement=True)
            with suppress(pymysql.Error):
                while cursor.fetchmany(1000):
                    pass
        return TIMED_OUT if rows.is_late else text

    def _explained(self, error: Exception) -> str:
        """What the policy is shown. Raises EnvError if the server, not the statement, is to blame."""
        if isinstance(error, UnicodeError):
            return shown(f"1105 (HY000): {error}")
        if is_timeout(error):
            return self._start_over()
        code = error.args[0] if error.args else None
        if code in IS_LOST or isinstance(error, OSError) or not isinstance(error, pymysql.Error):
            raise EnvError(f"dbbench: {error}") from error
        state = getattr(error, "sqlstate", None)
        return shown(f"{code} ({state}): {error.args[-1]}" if state else f"{code}: {error.args[-1]}")

    def _start_over(self) -> str:
        """End a statement that runs too long, and its connection with it; the database stays."""
        with _blamed():
            self._server.kill(self._connection.thread_id())
            _forget(self._connection)
            self._connect()
        return TIMED_OUT


class _Rows:
    """The rows of an unbuffered result. is_complete: all are read. is_late: they took too long."""

    def __init__(self, cursor: Any, deadline_s: float) -> None:
        self._cursor = cursor
        self._deadline_s = deadline_s
        self.is_complete = False
        self.is_late = False

    def __iter__(self) -> Iterator[tuple[object, ...]]:
        while True:
            row = self._cursor.fetchone()
            if row is None:
                self.is_complete = True
                return
            if time.monotonic() > self._deadline_s:
                self.is_late = True
                return
            yield row


def _forget(connection: Any) -> None:
    """Close the socket without a farewell: the server has killed its side, or will."""
    with suppress(pymysql.Error, OSError):
        connection._force_close()


@contextmanager
def _blamed() -> Iterator[None]:
    try:
        yield
    except (pymysql.Error, OSError) as error:
        raise EnvError(f"dbbench: the database server failed: {error}") from error


@lru_cache(maxsize=8)
def backend_of(option_file: Path) -> MysqlBackend:
    """The server that a MySQL option file names, with the limits of AgentBench-FC."""
    return MysqlBackend(ServerOptions(option_file=option_file))
