"""What an episode of dbbench answers to every kind of turn, when it ends, and what it earns."""

import sqlite3

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl_jax.env import Action, ToolCall
from agentrl_jax.errors import EnvError
from agentrl_jax.types import EpisodeEnd
from envs.dbbench.calls import TOOLS, commit_call, sql_call
from envs.dbbench.env import DbbenchEnv
from envs.dbbench.hashing import table_hash
from envs.dbbench.problems import Problem, Table, task_text
from envs.dbbench.sqlite import SqliteBackend

TABLE = Table(name="people", columns=("name", "city"), rows=(("Ann", "Oslo"), ("Bob", "Rome")))
QUESTION = Problem(text=task_text("Where does Ann live?"), tables=(TABLE,), answer=("Oslo",))
CHANGED = (("Ann", "Oslo"), ("Bob", "Lima"))
CHANGE = Problem(text=task_text("Move Bob to Lima."), tables=(TABLE,), answer_hash=table_hash(CHANGED), gold="-")
UPDATE = "UPDATE people SET city = 'Lima' WHERE name = 'Bob'"


def live_env(problem=QUESTION, *, upstream_compat=False):
    env = DbbenchEnv(problem, SqliteBackend(), upstream_compat=upstream_compat)
    env.reset()
    return env


def act(env, *calls, errors=()):
    return env.step(Action(calls=calls, errors=errors))


def contents(result):
    return [(message.role, message.content) for message in result.messages]


def test_the_first_messages_are_those_of_agentbench():
    text = task_text("Who?", tables="The table t.", evidence="E.")
    system, user = DbbenchEnv(Problem(text=text, answer=("x",)), SqliteBackend()).reset()
    assert (system.role, user.role) == ("system", "user")
    assert user.content == (
        "Evidence about the question: E.\n"
        "Additional table information about the question: The table t.\n"
        "Question: Who?\n"
    )


def test_a_whole_episode():
    env = live_env()
    result = act(env, sql_call("SELECT city FROM people WHERE name = 'Ann'"))
    assert (contents(result), result.reward, result.end) == ([("tool", "[('Oslo',)]")], 0.0, None)
    result = act(env, commit_call(("Oslo",)))
    assert (contents(result), result.reward, result.end) == ([("tool", "done")], 1.0, EpisodeEnd.COMPLETED)


def test_every_call_of_a_turn_is_carried_out_in_order():
    calls = (sql_call(UPDATE), sql_call("SELECT city FROM people"), commit_call(()), sql_call("SELECT 1"))
    result = act(live_env(CHANGE), *calls, errors=("not JSON",))
    assert contents(result) == [
        ("tool", "[]"),
        ("tool", "[('Oslo',), ('Lima',)]"),
        ("tool", "done"),
        ("tool", "not executed: already committed"),
        ("tool", "not JSON"),
    ]
    assert (result.reward, result.end) == (1.0, EpisodeEnd.COMPLETED)


@pytest.mark.parametrize(
    ("statements", "reward"),
    [
        ((UPDATE,), 1.0),
        ((), 0.0),
        ((UPDATE, "UPDATE people SET city = 'x'"), 0.0),
        (("DELETE FROM people", "INSERT INTO people VALUES ('Bob', 'Lima'), ('Ann', 'Oslo')"), 1.0),
        (("DROP TABLE people",), 0.0),
        (("ALTER TABLE people RENAME COLUMN city TO town", "UPDATE people SET town = 'Lima' WHERE name = 'Bob'"), 0.0),
        ((UPDATE, "ALTER TABLE people ADD COLUMN extra TEXT", "CREATE TABLE other (a INT)"), 1.0),
    ],
)
def test_a_change_is_judged_by_the_rows_of_its_tables(statements, reward):
    env = live_env(CHANGE)
    for statement in statements:
        act(env, sql_call(statement))
    assert act(env, commit_call(("anything",))).reward == reward


def test_where_the_hash_is_not_given_the_solution_is_carried_out():
    problem = Problem(text="?", tables=(TABLE,), gold=UPDATE)
    env = live_env(problem)
    act(env, sql_call(UPDATE))
    assert act(env, commit_call(())).reward == 1.0
    assert act(live_env(problem), commit_call(())).reward == 0.0


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (ToolCall(name="drop", arguments={}), "Invalid function call. Please call a tool instead."),
        (ToolCall(name="execute_sql", arguments={}), "Error executing query: execute_sql needs the string query"),
        (
            ToolCall(name="execute_sql", arguments={"query": 1}),
            "Error executing query: execute_sql needs the string query",
        ),
        (ToolCall(name="commit_final_answer", arguments={}), "Error: commit_final_answer needs the list answers"),
        (sql_call("SELECT nope FROM people"), "1054 (42S22): Unknown column 'nope' in 'field list'"),
    ],
)
def test_a_bad_call_is_answered_and_costs_the_turn_alone(call, text):
    env = live_env()
    result = act(env, call)
    assert (contents(result), result.reward, result.end) == ([("tool", text)], 0.0, None)
    assert act(env, commit_call(("Oslo",))).reward == 1.0


def test_arguments_of_other_names_are_taken_in_the_order_given():
    env = live_env()
    assert contents(act(env, ToolCall(name="execute_sql", arguments={"sql": "SELECT 1"}))) == [("tool", "[(1,)]")]
    assert act(env, ToolCall(name="commit_final_answer", arguments={"answer": ["Oslo"], "x": 1})).reward == 1.0


def test_a_turn_without_a_call_is_answered_by_a_user_message():
    result = live_env().step(Action(content="Oslo"))
    assert contents(result) == [("user", "Call execute_sql or commit_final_answer.")]
    assert result.end is None


def test_an_env_is_used_once_and_in_order():
    env = DbbenchEnv(QUESTION, SqliteBackend())
    with pytest.raises(EnvError, match="is new"):
        act(env, sql_call("SELECT 1"))
    env.reset()
    with pytest.raises(EnvError, match="is live"):
        env.reset()
    act(env, commit_call(()))
    with pytest.raises(EnvError, match="is over"):
        act(env, commit_call(("Oslo",)))
    env.close()
    with pytest.raises(EnvError, match="is closed"):
        act(env, sql_call("SELECT 1"))


def test_the_declared_tools_are_agentbenchs():
    assert {tool.name: dict(tool.parameters["properties"]) for tool in TOOLS} == {
        "execute_sql": {"query": {"type": "string"}},
        "commit_final_answer": {"answers": {"type": "array", "items": {"type": "string"}}},
    }
    for tool in TOOLS:
        assert tool.parameters["required"] == list(tool.parameters["properties"])
        assert tool.parameters["additionalProperties"] is False


@pytest.fixture
def file_problem(tmp_path):
    path = tmp_path / "shop.sqlite"
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE people (name TEXT, city TEXT)")
    connection.executemany("INSERT INTO people VALUES (?, ?)", TABLE.rows)
    connection.commit()
    connection.close()
    graded = Table(name="people", columns=TABLE.columns, rows=())
    return Problem(text="?", file=path, tables=(graded,), gold=UPDATE)


def test_changes_of_a_sqlite_file_can_be_solved(file_problem):
    env = live_env(file_problem)
    act(env, sql_call(UPDATE))
    assert contents(act(env, sql_call("SELECT city FROM people"))) == [("tool", "[('Oslo',), ('Lima',)]")]
    assert act(env, commit_call(())).reward == 1.0
    env.close()
    assert act(live_env(file_problem), commit_call(())).reward == 0.0


def test_as_published_changes_of_a_sqlite_file_are_lost_and_never_right(file_problem):
    """Fault 12 of the published environment, reproduced on request; the file itself is spared."""
    before = file_problem.file.read_bytes()
    env = live_env(file_problem, upstream_compat=True)
    assert contents(act(env, sql_call(UPDATE))) == [("tool", "[]")]
    assert contents(act(env, sql_call("SELECT city FROM people"))) == [("tool", "[('Oslo',), ('Rome',)]")]
    assert act(env, commit_call(())).reward == 0.0
    env.close()
    assert file_problem.file.read_bytes() == before


def test_as_published_changes_of_tables_are_kept():
    env = live_env(CHANGE, upstream_compat=True)
    act(env, sql_call(UPDATE))
    assert act(env, commit_call(())).reward == 1.0


ANY_CALL = st.builds(
    ToolCall,
    name=st.sampled_from(["execute_sql", "commit_final_answer", "close", ""]),
    arguments=st.dictionaries(
        st.sampled_from(["query", "answers", "x"]),
        st.sampled_from([UPDATE, "SELECT 1", "SELEC", "", None, 3, ["Oslo"], "[('Oslo',)]", {"a": 1}]),
        max_size=2,
    ),
)


@given(
    turns=st.lists(
        st.tuples(st.lists(ANY_CALL, max_size=3), st.lists(st.just("not JSON"), max_size=2)), min_size=1, max_size=8
    )
)
def test_any_turn_gets_one_message_per_call_until_the_end(turns):
    env = live_env()
    for calls, errors in turns:
        result = act(env, *calls, errors=tuple(errors))
        roles = [message.role for message in result.messages]
        assert roles == ["tool"] * (len(calls) + len(errors)) or (not calls and not errors and roles == ["user"])
        assert result.reward == 0.0 or result.end is EpisodeEnd.COMPLETED
        if result.end is not None:
            with pytest.raises(EnvError):
                env.step(Action())
            break
    env.close()
