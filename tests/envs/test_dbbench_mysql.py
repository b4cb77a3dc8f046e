"""Sessions on a real MariaDB server: alike with SQLite, apart from each other, bounded, and gone when they are over."""

import ast
import datetime
import gc
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from decimal import Decimal
from pathlib import Path

import pytest

from agentrl_jax.env import FamilyOptions
from agentrl_jax.errors import ConfigError, EnvError
from agentrl_jax.testing.env_contract import check_expert
from envs.dbbench import family
from envs.dbbench.database import TIMED_OUT
from envs.dbbench.hashing import table_hash
from envs.dbbench.problems import Problem, Table
from envs.dbbench.sqlite import SqliteBackend
from envs.dbbench.sweep import published_problems, sweep
from tests.envs.dbbench_world import (
    CHANGES,
    IS_CODE,
    PROBLEM,
    STATEMENTS,
    TABLE,
    TRANSACTIONS,
    mariadb_server,
    missing_mariadb,
)

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.mariadb


@pytest.fixture(scope="module")
def option_file():
    missing = missing_mariadb()
    if missing and not os.environ.get("CI"):  # there it is a failure
        pytest.skip(missing)
    with mariadb_server() as path:
        yield path


@pytest.fixture
def make_backend(option_file):
    """Backends that are closed after the test."""
    from envs.dbbench.mysql import MysqlBackend
    from envs.dbbench.mysql_server import ServerOptions

    made = []

    def make(**options):
        made.append(MysqlBackend(ServerOptions(option_file=option_file, **options)))
        return made[-1]

    yield make
    for backend in made:
        backend.close()


@pytest.fixture
def ask(option_file):
    """The first column of a query's rows, asked by the server's own account."""
    import pymysql

    def asked(query):
        with closing(pymysql.connect(read_default_file=str(option_file))) as connection, connection.cursor() as cursor:
            cursor.execute(query)
            return [row[0] for row in cursor.fetchall()]

    return asked


def traces(ask):
    """What sessions leave on the server: databases, accounts, connections."""
    pattern = "LIKE 'dbbench\\_%'"
    return [
        *ask(f"SELECT schema_name FROM information_schema.schemata WHERE schema_name {pattern}"),
        *ask(f"SELECT user FROM mysql.user WHERE user {pattern}"),
        *ask(f"SELECT user FROM information_schema.processlist WHERE user {pattern}"),
    ]


def plain(value):
    """Values as the two engines have them in common."""
    if isinstance(value, Decimal | int | float):
        return round(float(value), 6)
    return str(value) if isinstance(value, datetime.date | datetime.timedelta) else value


def rows_of(text):
    names = {"Decimal": Decimal, "datetime": datetime}
    return eval(text, {"__builtins__": {}}, names)  # noqa: S307 (what a server of the test has answered)


# Where MariaDB's own answer is not MySQL's: it writes some names and defaults otherwise.
MARIADB_DIFFERS = ("SHOW ", "DESCRIBE", "SELECT table_name, column_name")


def test_statements_and_changes_mean_the_same_on_both_engines(make_backend):
    backend = make_backend()
    for statement, result in STATEMENTS:
        if statement.startswith(MARIADB_DIFFERS):
            continue
        with closing(backend.open(PROBLEM)) as database:
            text = database.execute(statement)
        if IS_CODE.fullmatch(result):
            assert text.startswith(result), (statement, text)
        else:
            expected = [tuple(map(plain, row)) for row in ast.literal_eval(result)]
            assert [tuple(map(plain, row)) for row in rows_of(text)] == expected, statement
    for statement, rows in CHANGES:
        with closing(backend.open(PROBLEM)) as database:
            assert database.execute(statement) == "[]"
            assert database.rows(TABLE.name, TABLE.columns) == rows, statement


def test_every_name_and_value_arrives_as_it_is(make_backend):
    table = Table(name="a'b`%s\\", columns=('x"', "y%"), rows=(("it's \\ %s \n", "\N{SNOWMAN}"), ("", "1")))
    with closing(make_backend().open(Problem(text="?", tables=(table,)))) as database:
        assert database.rows(table.name, table.columns) == list(table.rows)
        assert database.execute("SELECT `y%` FROM `a'b``%s\\` LIMIT 1") == "[('\N{SNOWMAN}',)]"


@pytest.mark.parametrize(
    ("statement", "code"),
    [
        ("CREATE DATABASE other", "1044"),
        ("SELECT * FROM mysql.user", "1142"),
        ("SELECT 'x' INTO OUTFILE '/tmp/dbbench-test'", "1227"),
        ("SET GLOBAL max_connections = 1", "1227"),
        ("SHUTDOWN", "1227"),
        ("GRANT ALL ON *.* TO x", "1045"),
        ("CREATE USER x", "1227"),
        ("SELECT 1; DROP TABLE `t 1`", "1064"),
        ("SELECT '\ud800'", "1105"),
    ],
)
def test_an_account_may_do_nothing_outside_its_database(make_backend, statement, code):
    backend = make_backend()
    with closing(backend.open(PROBLEM)) as other, closing(backend.open(PROBLEM)) as database:
        assert database.execute(statement).startswith(code)
        assert database.execute("SELECT LOAD_FILE('/etc/passwd')") == "[(None,)]"
        assert database.execute(f"SELECT * FROM {other.name}.`t 1`").startswith("1142")
        assert database.execute(f"DROP DATABASE {other.name}").startswith("1044")
        assert f"'{other.name}'" not in database.execute("SHOW DATABASES")
        assert other.rows(TABLE.name, TABLE.columns) == list(TABLE.rows)


def test_a_statement_that_never_ends_is_an_observation(make_backend):
    with closing(make_backend(statement_limit_s=0.3).open(PROBLEM)) as database:
        assert database.execute("SELECT SLEEP(100)") == TIMED_OUT
        assert database.execute("UPDATE `t 1` SET name = 'x' WHERE year = 1999") == "[]"
        assert database.execute("SELECT name FROM `t 1` WHERE score = 12") == "[('x',)]"


def test_the_rest_of_a_long_result_is_not_waited_for(make_backend):
    with closing(make_backend().open(PROBLEM)) as database:
        many = "SELECT a.name FROM `t 1` a, `t 1` b, `t 1` c, `t 1` d, `t 1` e, `t 1` f, `t 1` g, `t 1` h, `t 1` i"
        text = database.execute(f"{many}, `t 1` j, `t 1` k, `t 1` l, `t 1` m, `t 1` n")
        assert text.startswith("[('Ann',), ")
        assert text.endswith("[TRUNCATED]")
        assert database.execute("SELECT 1") == "[(1,)]"


@pytest.mark.parametrize(
    ("statements", "is_kept"),
    [
        (("SET autocommit = 0", "UPDATE `t 1` SET name = 'x'"), True),
        (("START TRANSACTION", "UPDATE `t 1` SET name = 'x'"), True),
        (("UPDATE `t 1` SET name = 'x'", "LOCK TABLES `t 1` WRITE"), True),
        (("SET SQL_SELECT_LIMIT = 1", "UPDATE `t 1` SET name = 'x'"), True),
        (("CREATE TEMPORARY TABLE `t 1` (name TEXT)", "DELETE FROM `t 1`"), False),
    ],
)
def test_no_setting_of_a_session_misleads_the_grading(make_backend, statements, is_kept):
    with closing(make_backend().open(PROBLEM)) as database:
        for statement in statements:
            assert database.execute(statement) == "[]"
        expected = [("x", *row[1:]) for row in TABLE.rows] if is_kept else list(TABLE.rows)
        assert table_hash(database.rows(TABLE.name, TABLE.columns)) == table_hash(expected)


@pytest.mark.parametrize("how", TRANSACTIONS)
def test_transactions_are_the_servers(make_backend, how):
    statements, is_changed = TRANSACTIONS[how]
    with closing(make_backend().open(PROBLEM)) as database:
        for statement in statements:
            database.execute(statement)
        assert ("x" in {row[0] for row in database.rows(TABLE.name, TABLE.columns)}) is is_changed


def test_a_database_that_its_policy_has_dropped_is_graded_as_gone(make_backend, ask):
    with closing(make_backend().open(PROBLEM)) as database:
        assert database.execute(f"DROP DATABASE {database.name}") == "[]"
        assert database.execute("SELECT 1 FROM `t 1`").startswith(("1046", "1146"))
        assert database.rows(TABLE.name, TABLE.columns) is None


def test_sessions_at_once_do_not_meet_and_leave_nothing(make_backend, ask):
    backend = make_backend(max_sessions=4)

    def play(number):
        with closing(backend.open(PROBLEM)) as database:
            database.execute(f"INSERT INTO `t 1` (name) VALUES ('{number}')")
            return database.rows("t 1", ("name",))[4:]

    with ThreadPoolExecutor(12) as pool:
        assert list(pool.map(play, range(36))) == [[(str(number),)] for number in range(36)]
    places = set(traces(ask))
    assert len(places) <= 4  # the accounts of four places, no database and no connection
    assert all(name not in ask("SELECT schema_name FROM information_schema.schemata") for name in places)
    backend.close()
    assert traces(ask) == []


def test_a_place_that_does_not_get_free_is_not_the_policys_fault(make_backend):
    backend = make_backend(max_sessions=1, wait_s=0.05)
    with closing(backend.open(PROBLEM)), pytest.raises(EnvError, match="none of 1 database sessions"):
        backend.open(PROBLEM)
    with closing(backend.open(PROBLEM)) as database:
        assert database.execute("SELECT 1") == "[(1,)]"


def test_a_closed_session_is_killed(make_backend, ask):
    backend = make_backend()
    database = backend.open(PROBLEM)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(database.execute, "SELECT SLEEP(100), 'dbbench test'")
        sleeping = "SELECT id FROM information_schema.processlist WHERE info LIKE 'SELECT SLEEP(100)%'"
        while not ask(sleeping):
            pass
        database.close()
        assert ask(sleeping) == []
        assert running.exception() is not None or IS_CODE.match(running.result())


def test_a_lost_administering_connection_is_made_anew(make_backend, ask):
    backend = make_backend()
    with closing(backend.open(PROBLEM)):
        for connection in ask("SELECT id FROM information_schema.processlist WHERE id <> CONNECTION_ID()"):
            if connection in ask("SELECT id FROM information_schema.processlist WHERE user = 'root'"):
                ask(f"KILL {connection}")
    with closing(backend.open(PROBLEM)) as database:
        assert database.execute("SELECT 1") == "[(1,)]"


CHILD = """
import sys
from pathlib import Path
from envs.dbbench.mysql import backend_of
from tests.envs.dbbench_world import PROBLEM
backend = backend_of(Path(sys.argv[1]))
alive = [backend.open(PROBLEM) for _ in range(4)]
print(*[database.name for database in alive], flush=True)
alive[0].execute("SELECT SLEEP(1000)")
"""


def test_what_a_killed_process_leaves_the_next_one_sweeps(make_backend, option_file, ask):
    """ENV-05, ENV-18: nothing of it is left, and its death keeps nobody from starting."""
    living = make_backend()
    with closing(living.open(PROBLEM)) as ours:
        command = [sys.executable, "-c", CHILD, str(option_file)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as child:
            names = child.stdout.readline().split()
            assert len(set(names)) == 4
            child.send_signal(signal.SIGKILL)
        assert set(names) <= set(traces(ask))
        with closing(make_backend().open(PROBLEM)):
            assert not set(names) & set(traces(ask))
        # What another living process owns is spared.
        assert ours.rows(TABLE.name, TABLE.columns) == list(TABLE.rows)


def test_a_process_that_ends_by_itself_leaves_nothing(option_file, ask):
    before = set(traces(ask))
    code = CHILD.rsplit("\n", 2)[0]
    done = subprocess.run([sys.executable, "-c", code, str(option_file)], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert set(traces(ask)) == before


# pymysql leaves the socket of a connection that failed to the garbage collector.
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_server_that_cannot_be_reached_is_not_the_policys_fault(tmp_path):
    from envs.dbbench.mysql import backend_of

    (tmp_path / "mysql.cnf").write_text(f"[client]\nsocket = {tmp_path}/none\n")
    with pytest.raises(EnvError, match="server failed"):
        backend_of(tmp_path / "mysql.cnf").open(PROBLEM)
    gc.collect()


@pytest.mark.data
def test_a_data_folder_that_names_a_server_uses_it(option_file, data_folder, tmp_path, ask):
    (tmp_path / "dbbench").mkdir()
    for source in (data_folder / "dbbench").iterdir():
        (tmp_path / "dbbench" / source.name).symlink_to(source)
    (tmp_path / "wikitablequestions").symlink_to(data_folder / "wikitablequestions")
    (tmp_path / "dbbench" / "mysql.cnf").write_bytes(option_file.read_bytes())
    dbbench = family(FamilyOptions(data=tmp_path))
    assert dbbench.traits.services == ("mysql",)
    check_expert(lambda: dbbench)
    assert traces(ask)
    with pytest.raises(ConfigError, match="level 1 alone"):
        family(FamilyOptions(data=tmp_path, level=2))


@pytest.mark.data
def test_published_tasks_are_judged_as_they_should_be(make_backend, data_folder):
    tally = sweep(published_problems(data_folder), make_backend())
    assert (tally.right_questions, tally.questions) == (120, 120)
    assert (tally.right_changes, tally.changes) == (239, 240)


def test_tasks_of_sqlite_files_run_beside_the_server(make_backend, tmp_path):
    import sqlite3

    path = tmp_path / "x.sqlite"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE a (b)")
    problem = Problem(text="?", file=path, answer=("x",))
    with closing(make_backend().open(problem)) as ours, closing(SqliteBackend().open(problem)) as theirs:
        assert ours.execute("SELECT * FROM a") == theirs.execute("SELECT * FROM a") == "[]"
