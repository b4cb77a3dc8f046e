"""What SQLite answers in MySQL's place, and what no statement may reach or take."""

import sqlite3
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl_jax.errors import EnvError
from envs.dbbench.database import MAX_RESULT_CHARS, MAX_STATEMENT_CHARS, TIMED_OUT, TOO_LONG, TRUNCATED
from envs.dbbench.problems import Problem, Table, quoted
from envs.dbbench.sqlite import OUT_OF_MEMORY, SqliteBackend
from tests.envs.dbbench_world import CHANGES, IS_CODE, PROBLEM, STATEMENTS, TABLE, TRANSACTIONS

PEOPLE = Table(name="people", columns=("name", "age"), rows=tuple((f"n{i}", str(i)) for i in range(100)))


@pytest.fixture
def database():
    opened = SqliteBackend().open(PROBLEM)
    yield opened
    opened.close()


@pytest.fixture
def people():
    opened = SqliteBackend().open(Problem(text="?", tables=(PEOPLE,)))
    yield opened
    opened.close()


@pytest.mark.parametrize(("statement", "result"), STATEMENTS)
def test_statements_mean_what_they_mean_to_mysql(database, statement, result):
    text = database.execute(statement)
    assert (text[: len(result)] if IS_CODE.fullmatch(result) else text) == result


@pytest.mark.parametrize(("statement", "rows"), CHANGES)
def test_changes_are_those_of_mysql_and_stay(database, statement, rows):
    assert database.execute(statement) == "[]"
    assert database.rows(TABLE.name, TABLE.columns) == rows


@pytest.mark.parametrize("how", TRANSACTIONS)
def test_transactions_are_those_of_mysql(database, how):
    statements, is_changed = TRANSACTIONS[how]
    for statement in statements:
        database.execute(statement)
    assert ("x" in {row[0] for row in database.rows(TABLE.name, TABLE.columns)}) is is_changed


def test_there_are_no_savepoints(database):
    assert database.execute("ROLLBACK TO SAVEPOINT a") == "1305 (42000): SAVEPOINT a does not exist"


def test_a_statement_that_fails_changes_nothing(database):
    assert database.execute("INSERT INTO `t 1` VALUES ('a', 'b', 'c', 'd', 'e'), ('x')").startswith("1136")
    assert database.rows(TABLE.name, TABLE.columns) == list(TABLE.rows)


def test_tables_of_the_policy_have_their_types_and_are_gone_with_the_session():
    backend = SqliteBackend()
    first, second = backend.open(PROBLEM), backend.open(PROBLEM)
    for statement in (
        "CREATE TABLE u (id INT AUTO_INCREMENT PRIMARY KEY, label VARCHAR(9) NOT NULL, price DECIMAL(6,2)) ENGINE=x",
        "INSERT INTO u (label, price) VALUES ('A', 1.5), ('b', 2)",
        "CREATE TABLE v AS SELECT name FROM `t 1`",
    ):
        assert first.execute(statement) == "[]"
    assert first.execute("SELECT id, label FROM u WHERE label = 'a' AND id = '1'") == "[(1, 'A')]"
    assert first.execute("SELECT label FROM u WHERE price > '1.9'") == "[('b',)]"
    assert first.execute("SHOW TABLES") == "[('t 1',), ('u',), ('v',)]"
    assert second.execute("SHOW TABLES") == "[('t 1',)]"
    first.close()
    second.close()


@pytest.mark.parametrize(
    "statement",
    ["USE dbbench", "SET @x = 1", "START TRANSACTION", "COMMIT", "ROLLBACK", "SHOW WARNINGS", "SHOW INDEX FROM `t 1`"],
)
def test_what_has_no_effect_here_is_accepted(database, statement):
    assert database.execute(statement) == "[]"


def test_names_of_the_database_are_understood(database):
    assert database.execute("SELECT dbbench.`t 1`.name FROM dbbench.`t 1` LIMIT 1") == "[('Ann',)]"
    assert database.execute("SELECT DATABASE()") == "[('dbbench',)]"
    assert database.execute("SHOW DATABASES") == "[('dbbench',), ('information_schema',)]"
    assert "CREATE TABLE `t 1` (\n  `name` text,\n" in unescaped(database.execute("SHOW CREATE TABLE `t 1`"))
    assert database.execute("SELECT table_name, table_rows FROM information_schema.tables") == "[('t 1', 4)]"


def unescaped(result):
    return result.replace("\\n", "\n")


@pytest.mark.parametrize(
    "statement",
    [
        "ATTACH DATABASE '{folder}/x.db' AS y",
        "PRAGMA table_info(`t 1`)",
        "PRAGMA writable_schema = 1",
        "VACUUM INTO '{folder}/x.db'",
        "SELECT load_extension('{folder}/x')",
        "SELECT LOAD_FILE('/etc/passwd')",
        "SELECT readfile('/etc/passwd')",
        "SELECT writefile('{folder}/x', 'x')",
        "SELECT name FROM `t 1` INTO OUTFILE '{folder}/x'",
        "LOAD DATA INFILE '/etc/passwd' INTO TABLE `t 1`",
        "SELECT * FROM sqlite_master",
        "SELECT * FROM pragma_database_list",
        "SELECT sqlite_version()",
        "SELECT my_number('3')",
        "SELECT zeroblob(1000000000)",
        "SELECT randomblob(1000000000)",
        "SELECT SLEEP(100)",
        "SELECT BENCHMARK(1000000000, 1)",
        "GRANT ALL ON *.* TO x",
        "KILL 1",
        "CREATE TRIGGER t AFTER INSERT ON `t 1` FOR EACH ROW SET @a = 1",
        "SELECT ?",
        "SELECT @@hostname",
        "",
        ";;",
        "-- nothing",
    ],
)
def test_nothing_outside_the_session_can_be_reached(database, statement, tmp_path):
    text = database.execute(statement.format(folder=tmp_path))
    assert IS_CODE.match(text), text
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("second", ["SELECT 1", "DROP TABLE `t 1`", "ATTACH DATABASE ':memory:' AS z"])
def test_of_several_statements_none_is_carried_out(database, second):
    text = database.execute(f"DELETE FROM `t 1`; {second}")
    assert text == "Error: one statement at a time." or text.startswith("1064")
    assert database.rows(TABLE.name, TABLE.columns) == list(TABLE.rows)
    assert database.execute("SELECT 1;") == "[(1,)]"


@pytest.mark.parametrize(
    "statement",
    [
        "WITH RECURSIVE c AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM c) SELECT COUNT(*) FROM c",
        "SELECT COUNT(*) FROM people a, people b, people c, people d, people e",
    ],
)
def test_a_statement_that_never_ends_is_an_observation(people, statement):
    begun_s = time.process_time()
    assert people.execute(statement) == TIMED_OUT
    assert time.process_time() - begun_s < 10.0  # about one
    assert people.execute("SELECT COUNT(*) FROM people") == "[(100,)]"


@pytest.mark.parametrize(
    ("statement", "answers"),
    [
        ("SELECT * FROM people a, people b, people c, people d ORDER BY a.name, d.age", (OUT_OF_MEMORY,)),
        ("CREATE TABLE x AS SELECT a.name FROM people a, people b, people c, people d", ("1114 (HY000)",)),
        (
            "WITH RECURSIVE c AS (SELECT 'x' AS n UNION ALL SELECT CONCAT(n, n) FROM c) SELECT n FROM c WHERE n = ''",
            ("1114 (HY000)", OUT_OF_MEMORY),
        ),
        ("SELECT GROUP_CONCAT(a.name) FROM people a, people b, people c, people d", ("1210 (HY000)",)),
        ("SELECT LENGTH(RPAD('a', 1000000000, 'b')), LENGTH(REPEAT('a', 1000000000))", ("[(None, None)]",)),
        ("SELECT REPLACE(REPEAT('a', 60000), 'a', REPEAT('b', 60000))", ("[(None,)]",)),
        ("SELECT REPEAT('a', 60000) REGEXP '(a|a)*$b'", ("1210 (HY000)", "[(0,)]")),
        ("SELECT REPEAT('a', 60000) LIKE '%a%a%a%a%a%a%a%a%a%a%a%a%b'", ("[(0,)]",)),
        (f"SELECT {'(' * 500}1{')' * 500}", ("1064 (42000)",)),
        (f"SELECT {'+'.join(['1'] * 5000)}", ("1235 (42000)", "1064 (42000)")),
        (f"SELECT {'NOT ' * 4000}1", ("1064 (42000)", "1235 (42000)")),
        ("SELECT '" + "x" * MAX_STATEMENT_CHARS + "'", (TOO_LONG,)),
        ("SELECT '\ud800'", ("1105 (HY000)",)),
        ("SELECT '\0'", ("1105 (HY000)", "1064 (42000)")),
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else "",
)  # fmt: skip
def test_what_would_take_too_much_is_refused_in_little_time(people, statement, answers):
    begun_s = time.process_time()
    assert people.execute(statement).startswith(answers)
    assert time.process_time() - begun_s < 10.0
    assert people.execute("SELECT COUNT(*) FROM people") == "[(100,)]"


def test_a_long_result_is_cut_and_its_rest_not_even_computed(people):
    whole = str([("x" * 50, i) for i in range(1, 2000)])
    endless = "WITH RECURSIVE c AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM c) SELECT REPEAT('x', 50), n FROM c"
    assert people.execute(endless) == whole[:MAX_RESULT_CHARS] + TRUNCATED


def test_rows_are_read_back_only_where_the_graded_columns_are(database):
    assert database.rows("nope", ("a",)) is None
    assert database.rows("T 1", ("NAME",)) is not None
    database.execute("ALTER TABLE `t 1` RENAME COLUMN score TO points")
    assert database.rows(TABLE.name, TABLE.columns) is None


@given(name=st.text(st.characters(exclude_categories=("Cs", "Cc")), min_size=1, max_size=12))
def test_any_name_can_be_a_table_and_a_column(name):
    table = Table(name=f"x{name}", columns=(f"c{name}",), rows=((name,),))
    database = SqliteBackend().open(Problem(text="?", tables=(table,)))
    assert database.execute(f"SELECT {quoted(f'c{name}')} FROM {quoted(f'x{name}')}") == str([(name,)])
    database.close()


@given(statement=st.text(max_size=40) | st.lists(st.sampled_from(
    ["SELECT", "FROM", "`t 1`", "name", "*", "(", ")", "WHERE", "=", "'x'", "1", ",", "UPDATE", "SET", "INSERT INTO",
     "VALUES", "DELETE", "ORDER BY", "LIMIT", "UNION", "NOT", "LIKE", "CASE", "WHEN", "END", "COUNT(*)", "JOIN", "AS",
     "GROUP BY", "IN", "BETWEEN", "AND", "INTERVAL", "CAST(", "OVER", "WITH", "--", "/*", "\"", "\\"]), max_size=12
).map(" ".join))  # fmt: skip
def test_any_text_is_answered(statement):
    database = SqliteBackend().open(PROBLEM)
    assert isinstance(database.execute(statement), str)
    database.close()


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "shop.sqlite"
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE item (name TEXT, price REAL)")
    connection.execute("INSERT INTO item VALUES ('Pen', 1.5), ('Ink', 4.0)")
    connection.commit()
    connection.close()
    return path


def test_a_file_is_queried_in_its_own_words_and_never_changed(file):
    before = file.read_bytes()
    database = SqliteBackend().open(Problem(text="?", file=file, answer=("Pen",)))
    assert database.execute("SELECT \"name\", price FROM item WHERE name LIKE 'p%'") == "[('Pen', 1.5)]"
    assert database.execute("SELECT name FROM item WHERE name = 'pen'") == "[]"
    assert "readonly" in database.execute("DROP TABLE item")
    for statement in (
        "VACUUM INTO '/tmp/x'",
        "ATTACH '/tmp/x' AS y",
        "PRAGMA journal_mode = WAL",
        "SELECT load_extension('x')",
    ):
        assert "authoriz" in database.execute(statement)
    assert database.execute("PRAGMA table_info(item)").startswith("[(0, 'name', 'TEXT'")
    database.close()
    assert file.read_bytes() == before
    assert [path.name for path in file.parent.iterdir()] == [file.name]


def test_a_file_to_be_changed_is_copied_for_each_session(file):
    before = file.read_bytes()
    problem = Problem(text="?", file=file, tables=(Table(name="item", columns=("name",), rows=()),), answer_hash="x")
    first, second = SqliteBackend().open(problem), SqliteBackend().open(problem)
    assert first.execute("DELETE FROM item WHERE price > 2") == "[]"
    assert (first.rows("item", ("name",)), second.rows("item", ("name",))) == ([("Pen",)], [("Pen",), ("Ink",)])
    assert first.execute("DROP TABLE item") == "[]"
    first.close()
    second.close()
    assert file.read_bytes() == before


def test_a_file_that_is_no_database_is_not_the_policys_fault(tmp_path):
    (tmp_path / "x.sqlite").write_text("not a database, but long enough to look like one" * 100)
    for name in ("x.sqlite", "missing.sqlite"):
        with pytest.raises(EnvError, match=name):
            SqliteBackend().open(Problem(text="?", file=tmp_path / name, answer=("x",)))
