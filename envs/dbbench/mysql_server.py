"""A database server as this process uses it: places for sessions, and what must not be left behind.

A place is a database and an account that may do nothing outside it; both are named after the process that owns them,
by a random mark, and a place is used by one session after the other. As long as the process lives, its administering
connection holds a lock of the server under that mark. Whoever starts drops every database and account whose mark
nobody holds: what a killed process has left.
"""

import atexit
import re
import secrets
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pymysql

from agentrl_jax.errors import EnvError
from envs.dbbench.hashing import MAX_CONCAT_BYTES

T = TypeVar("T")
PREFIX = "dbbench_"
_NAME = re.compile(rf"{PREFIX}([0-9a-f]{{12}})_\d+")
# Error codes of a connection that is gone: it could not be made, was lost, or was killed.
IS_LOST = frozenset((0, 1053, 1927, 2002, 2003, 2006, 2013, 2014, 2055, 4031))
_NO_SUCH = frozenset((1046, 1049, 1054, 1142, 1146))
# MySQL 8's modes but for strictness: MariaDB in strict mode refuses changes that MySQL 8 carries out, among them
# those of published solutions.
_MARIADB_MODES = "ONLY_FULL_GROUP_BY,NO_ZERO_IN_DATE,NO_ZERO_DATE,ERROR_FOR_DIVISION_BY_ZERO,NO_ENGINE_SUBSTITUTION"
# MySQL 8's collation, or the one of MariaDB that orders as it does, or one that every server has.
_COLLATIONS = ("utf8mb4_0900_ai_ci", "utf8mb4_uca1400_nopad_ai_ci", "utf8mb4_general_nopad_ci", "utf8mb4_general_ci")
_ADMINISTERING_LIMIT_S = 120


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """option_file: what `[client]` of a MySQL option file says: socket or host and port, user, password. The account
    must be allowed to create databases and accounts, to grant, and to kill connections.

    max_sessions: at once, from this process. statement_limit_s: AgentBench-FC's. wait_s: for a place.
    """

    option_file: Path
    max_sessions: int = 64
    statement_limit_s: float = 60.0
    wait_s: float = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """name: of the database and of its account."""

    name: str
    password: str


class Server:
    """Thread-safe. Nothing is connected before the first session."""

    def __init__(self, options: ServerOptions) -> None:
        self.options = options
        self._mark = secrets.token_hex(6)
        self._lock = threading.Lock()
        self._free: list[Place] = []
        self._num_places = 0
        self._permits = threading.Semaphore(options.max_sessions)
        self._admin: Any = None
        self._is_mariadb = False
        self._collation = ""

    def take_place(self) -> Place:
        """An empty database and its account. Raises EnvError if none gets free in time, or the server fails."""
        if not self._permits.acquire(timeout=self.options.wait_s):
            limit = self.options.max_sessions
            raise EnvError(f"dbbench: none of {limit} database sessions ended within {self.options.wait_s:g} s")
        try:
            return self._administered(self._prepared_place)
        except BaseException as error:
            self._permits.release()
            if isinstance(error, pymysql.Error | OSError):
                raise EnvError(f"dbbench: the database server failed: {error}") from error
            raise

    def give_back(self, place: Place, connection_id: int | None) -> None:
        """Kill the session's connection and drop its database."""

        def dropped(cursor: Any) -> None:
            if connection_id is not None:
                _kill(cursor, connection_id)
            cursor.execute(f"DROP DATABASE IF EXISTS `{place.name}`")

        try:
            self._administered(dropped)
        finally:
            self._free.append(place)
            self._permits.release()

    def connect(self, place: Place) -> Any:
        """A connection of a place's own account."""
        return self._connected(user=place.name, password=place.password, database=place.name)

    def kill(self, connection_id: int, *, only_statement: bool = False) -> None:
        self._administered(lambda cursor: _kill(cursor, connection_id, "QUERY" if only_statement else "CONNECTION"))

    def rows_or_none(self, query: str) -> list[tuple[object, ...]] | None:
        """The rows of a query of ours; None if its table or a column of it does not exist. Raises EnvError."""

        def read(cursor: Any) -> list[tuple[object, ...]] | None:
            try:
                cursor.execute(query)
            except pymysql.Error as error:
                if error.args and error.args[0] in _NO_SUCH:
                    return None
                raise
            return list(cursor.fetchall())

        try:
            return self._administered(read)
        except (pymysql.Error, OSError) as error:
            raise EnvError(f"dbbench: the database server failed: {error}") from error

    def close(self) -> None:
        """Drop everything of this process and disconnect. For the end of the process; errors leave it to others."""
        atexit.unregister(self.close)
        with self._lock:
            admin, self._admin = self._admin, None
            if admin is not None:
                with closing(admin), suppress(pymysql.Error, OSError), admin.cursor() as cursor:
                    _drop_all_of(cursor, self._mark)

    def _prepared_place(self, cursor: Any) -> Place:
        place = self._free.pop() if self._free else self._new_place(cursor)
        cursor.execute(f"DROP DATABASE IF EXISTS `{place.name}`")
        cursor.execute(f"CREATE DATABASE `{place.name}` CHARACTER SET utf8mb4 COLLATE {self._collation}")
        return place

    def _new_place(self, cursor: Any) -> Place:
        place = Place(name=f"{PREFIX}{self._mark}_{self._num_places}", password=secrets.token_hex(16))
        self._num_places += 1
        pattern = place.name.replace("_", "\\_")
        # Also at localhost: an anonymous account there would go before one at any host.
        for host in ("%", "localhost"):
            cursor.execute(f"CREATE USER '{place.name}'@'{host}' IDENTIFIED BY '{place.password}'")
            cursor.execute(f"GRANT ALL ON `{pattern}`.* TO '{place.name}'@'{host}'")
        return place

    def _administered(self, work: Callable[[Any], T]) -> T:
        """Run `work` on the administering connection; once more on a new one if that is lost."""
        with self._lock:
            for is_last in (False, True):
                try:
                    if self._admin is None:
                        self._admin = self._administering()
                    with self._admin.cursor() as cursor:
                        return work(cursor)
                except (pymysql.Error, OSError) as error:
                    is_lost = isinstance(error, OSError) or (error.args and error.args[0] in IS_LOST)
                    if is_lost and self._admin is not None:
                        with suppress(pymysql.Error, OSError):
                            self._admin.close()
                        self._admin = None
                        if not is_last:
                            continue
                    raise
        raise AssertionError

    def _administering(self) -> Any:
        connection = self._connected(read_default_file=str(self.options.option_file), limit_s=_ADMINISTERING_LIMIT_S)
        try:
            with connection.cursor() as cursor:
                self._take_charge(cursor)
        except BaseException:
            connection.close()
            raise
        atexit.register(self.close)
        return connection

    def _take_charge(self, cursor: Any) -> None:
        cursor.execute("SET SESSION wait_timeout = 31536000")
        cursor.execute("SELECT VERSION()")
        self._is_mariadb = "mariadb" in cursor.fetchone()[0].lower()
        cursor.execute("SHOW COLLATION WHERE charset = 'utf8mb4' OR charset IS NULL")
        listed = {row[0] for row in cursor.fetchall()}
        # MariaDB lists its newer collations without the character set.
        known = listed | {f"utf8mb4_{name}" for name in listed}
        self._collation = next(name for name in _COLLATIONS if name in known)
        cursor.execute("SELECT GET_LOCK(%s, 0)", (PREFIX + self._mark,))
        _sweep(cursor)

    def _connected(self, limit_s: float | None = None, **where: Any) -> Any:
        # Texts in statements compare as those in tables do.
        modes = f"collation_connection = {self._collation}, " if self._collation else ""
        if self._is_mariadb:
            modes += f"sql_mode = '{_MARIADB_MODES}', "
        if "read_default_file" not in where:
            where |= self._address()
        return pymysql.connect(
            **where,
            charset="utf8mb4",
            autocommit=True,
            connect_timeout=10,
            read_timeout=limit_s or self.options.statement_limit_s,
            init_command=f"SET SESSION {modes}group_concat_max_len = {MAX_CONCAT_BYTES}",
        )

    def _address(self) -> dict[str, Any]:
        """Where the administering connection has found the server. Its TLS context serves all: making one takes long,
        and a socket of this machine needs none."""
        admin = self._admin
        if admin.unix_socket:
            return {"unix_socket": admin.unix_socket, "ssl_disabled": True}
        security = {"ssl": admin.ctx} if admin.ssl else {"ssl_disabled": True}
        return {"host": admin.host, "port": admin.port, **security}


def is_timeout(error: Exception) -> bool:
    """Whether the server did not answer in time."""
    return isinstance(error, pymysql.OperationalError) and "timed out" in str(error)


def _kill(cursor: Any, connection_id: int, what: str = "CONNECTION") -> None:
    with _unless_gone():
        cursor.execute(f"KILL {what} {connection_id:d}")


@contextmanager
def _unless_gone() -> Iterator[None]:
    """No such connection: it has ended by itself."""
    try:
        yield
    except pymysql.Error as error:
        if not error.args or error.args[0] != 1094:
            raise


def _sweep(cursor: Any) -> None:
    """Drop what processes have left whose lock nobody holds."""
    cursor.execute("SELECT schema_name FROM information_schema.schemata")
    names = {name for (name,) in cursor.fetchall()}
    cursor.execute("SELECT user FROM mysql.user")
    names |= {name for (name,) in cursor.fetchall()}
    for mark in sorted({match[1] for name in names if (match := _NAME.fullmatch(name))}):
        cursor.execute("SELECT IS_FREE_LOCK(%s)", (PREFIX + mark,))
        if cursor.fetchone() == (1,):
            _drop_all_of(cursor, mark)


def _drop_all_of(cursor: Any, mark: str) -> None:
    """The connections, databases and accounts of the process with this mark."""
    pattern = f"{PREFIX}{mark}_%".replace("_", "\\_")
    cursor.execute("SELECT id FROM information_schema.processlist WHERE user LIKE %s", (pattern,))
    for (connection_id,) in cursor.fetchall():
        _kill(cursor, connection_id)
    cursor.execute("SELECT schema_name FROM information_schema.schemata WHERE schema_name LIKE %s", (pattern,))
    for (name,) in cursor.fetchall():
        cursor.execute(f"DROP DATABASE IF EXISTS `{name}`")
    cursor.execute("SELECT user, host FROM mysql.user WHERE user LIKE %s", (pattern,))
    for user, host in cursor.fetchall():
        cursor.execute(f"DROP USER IF EXISTS '{user}'@'{host}'")
