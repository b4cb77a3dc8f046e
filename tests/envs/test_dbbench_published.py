"""Published tasks: AgentBench's file formats, WikiTableQuestions with changes of its tables, and the real data."""

import json
import lzma
import sqlite3
from contextlib import closing
from random import Random

import pytest

from agentrl_jax.env import Action, FamilyOptions, traits_of
from agentrl_jax.errors import ConfigError
from envs.dbbench import family
from envs.dbbench.calls import commit_call
from envs.dbbench.changes import insert_problem, update_problem
from envs.dbbench.env import DbbenchEnv, database_hash
from envs.dbbench.hashing import table_hash
from envs.dbbench.problems import Problem, Table, usable_columns
from envs.dbbench.published import PublishedTasks
from envs.dbbench.sqlite import SqliteBackend
from envs.dbbench.sweep import published_problems, sweep

GIVEN = {
    "table_name": "T",
    "table_info": {"columns": [{"name": "a", "type": "TEXT"}, {"name": "b "}], "rows": [["x", 1]]},
}
SET = "UPDATE T SET a = 'y'"
DIGEST = table_hash([("y", "1")])
ENTRIES = [
    {"description": "What is a?", "type": ["other"], "table": GIVEN, "label": ["x"], "add_description": "T has a."},
    {"description": "Rank.", "type": ["ranking"], "table": GIVEN, "label": ["x", "1"], "evidence": "E"},
    {"description": "Set.", "type": ["UPDATE"], "table": GIVEN, "label": [SET], "answer_md5": f"[('{DIGEST}',)]"},
    {"description": "Set 2.", "type": ["UPDATE"], "table": [GIVEN], "answer_md5": "", "sql": {"query": SET}},
]


def write(folder, entries, name="standard.jsonl"):
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    if name.endswith(".json"):
        path.write_text(json.dumps(entries))
    else:
        text = "".join(json.dumps(entry) + "\n" for entry in entries).encode()
        path.write_bytes(lzma.compress(text) if name.endswith(".xz") else text)
    return path


def write_wiki(data, name="train", questions=(("Who is first?", ["Ann"]),)):
    table = {"columns": ["Name", "Place\nheld", ""], "rows": [["Ann", "1", "x"], ["Bob", "2", "y"]]}
    pack = {
        "tables": {"csv/200-csv/7.csv": table},
        "questions": [
            {"id": str(i), "question": text, "table": "csv/200-csv/7.csv", "label": label}
            for i, (text, label) in enumerate(questions)
        ],
    }
    (data / "wikitablequestions").mkdir(parents=True, exist_ok=True)
    (data / "wikitablequestions" / f"{name}.json.xz").write_bytes(lzma.compress(json.dumps(pack).encode()))
    return data


@pytest.mark.parametrize("name", ["standard.jsonl", "standard.jsonl.xz", "standard.json"])
def test_agentbenchs_files_are_read_in_every_form(tmp_path, name):
    tasks = PublishedTasks(write(tmp_path / "dbbench", ENTRIES, name))
    assert len(tasks) == 4
    question, ranking, hashed, solved = map(tasks.problem, range(4))
    table = Table(name="T", columns=("a", "b"), rows=(("x", "1"),))
    assert question.text == "Additional table information about the question: T has a.\nQuestion: What is a?\n"
    assert (question.tables, question.answer, question.is_ordered) == ((table,), ("x",), False)
    assert ranking.text == "Evidence about the question: E\nQuestion: Rank.\n"
    assert ranking.is_ordered
    assert (hashed.answer_hash, hashed.gold) == (DIGEST, "UPDATE T SET a = 'y'")
    assert (solved.answer_hash, solved.gold) == (None, "UPDATE T SET a = 'y'")
    tally = sweep(map(tasks.problem, range(4)), SqliteBackend())
    assert (tally.right_changes, tally.right_questions) == (2, 2)


def test_tasks_of_sqlite_files_lie_beside_their_databases(tmp_path):
    folder = tmp_path / "dbbench" / "db_train" / "shop"
    folder.mkdir(parents=True)
    with closing(sqlite3.connect(folder / "shop.sqlite")) as connection:
        connection.execute("CREATE TABLE T (a TEXT)")
    entry = {
        **{"description": "?", "type": ["other"], "label": ["x"], "user_sqlite": True},
        "create": {"database": "shop", "init": "shop.sqlite"},
    }
    problem = PublishedTasks(write(tmp_path / "dbbench", [entry])).problem(0)
    assert problem.file == folder / "shop.sqlite"
    with closing(SqliteBackend().open(problem)) as database:
        assert database.execute("SELECT COUNT(*) FROM T") == "[(0,)]"


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ([{"description": "?"}], "task 1: expected a dbbench task"),
        ([{**ENTRIES[2], "label": [], "answer_md5": ""}], "neither answer_md5 nor a solution"),
        ([{**ENTRIES[0], "table": {**GIVEN, "table_info": {"columns": [], "rows": [["x"]]}}}], "one value per column"),
    ],
)
def test_a_broken_task_is_named(tmp_path, entries, message):
    tasks = PublishedTasks(write(tmp_path / "dbbench", entries))
    with pytest.raises(ConfigError, match=message):
        tasks.problem(0)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"[1]"])
def test_a_broken_file_is_named(tmp_path, content):
    for name in ("standard.json", "standard.jsonl.xz"):
        path = tmp_path / name
        path.write_bytes(content)
        with pytest.raises(ConfigError, match=name):
            PublishedTasks(path)


def test_what_is_missing_is_said(tmp_path):
    with pytest.raises(ConfigError, match=r"expects standard\.jsonl\.xz"):
        family(FamilyOptions(data=tmp_path))
    write(tmp_path / "dbbench", ENTRIES)
    with pytest.raises(ConfigError, match="tasks to train on"):
        family(FamilyOptions(data=tmp_path))
    write_wiki(tmp_path)
    with pytest.raises(ConfigError, match="known ones are standard"):
        family(FamilyOptions(data=tmp_path, eval_set="dev"))
    with pytest.raises(ConfigError, match="level 1 alone"):
        family(FamilyOptions(data=tmp_path, level=2))
    (tmp_path / "wikitablequestions" / "train.json.xz").write_bytes(b"x")
    with pytest.raises(ConfigError, match=r"train\.json\.xz: expected a pack"):
        family(FamilyOptions(data=tmp_path))


def test_of_three_training_tasks_one_asks_one_inserts_and_one_updates(tmp_path):
    write(tmp_path / "dbbench", ENTRIES)
    dbbench = family(FamilyOptions(data=write_wiki(tmp_path), seed=5))
    assert (dbbench.num_tasks("train"), dbbench.num_tasks("eval"), dbbench.max_turns) == (3, 4, 15)
    asked, inserted, updated = (dbbench.problem(dbbench.task("train", index)) for index in range(3))
    assert asked.answer == ("Ann",)
    assert "table_200_7` has the columns `Name`, `Place held`, `column_3`." in asked.text
    assert "Insert a row into the table table_200_7" in inserted.text
    assert "In the table table_200_7, set " in updated.text
    for index in range(3):
        task = dbbench.task("train", index)
        turns = [m for m in dbbench.demonstrate(task, Random(0), noise=0.0) if m.role == "assistant"]
        with closing(dbbench.make(task)) as env:
            env.reset()
            assert [env.step(Action(calls=turn.tool_calls)).reward for turn in turns][-1] == 1.0


def test_what_is_evaluated_on_is_not_trained_on(tmp_path):
    write(tmp_path / "dbbench", ENTRIES)
    write(tmp_path / "dbbench", [{**ENTRIES[0], "description": "Who IS  last?"}], "dev.json")
    questions = (("Who is first?", ["Ann"]), ("what is A?", ["x"]), ("who is last?", ["Bob"]))
    write_wiki(tmp_path, questions=questions)
    dbbench = family(FamilyOptions(data=tmp_path))
    assert traits_of(dbbench).data_sets == ("standard", "dev")
    assert dbbench.num_tasks("train") == 3
    # AgentBench's own training file goes before WikiTableQuestions, and is cleaned likewise.
    write(tmp_path / "dbbench", [ENTRIES[0], {**ENTRIES[2], "description": "New."}], "db_out_new.jsonl")
    assert family(FamilyOptions(data=tmp_path)).num_tasks("train") == 1


TABLE = Table(name="t", columns=("name", "n"), rows=(("Ann", "1"), ("ann ", "2"), ("Bob", "2"), ("Zoë", "3")))


@pytest.mark.parametrize("make", [insert_problem, update_problem])
def test_drawn_changes_are_what_their_statements_do(make):
    backend = SqliteBackend()
    seen = set()
    for seed in range(40):
        problem = make(TABLE, Random(seed), "")
        if problem is None:
            continue
        seen.add(problem.text)
        with closing(backend.open(problem)) as database:
            assert database_hash(database, problem) != problem.answer_hash
            assert database.execute(problem.gold) == "[]"
            assert database_hash(database, problem) == problem.answer_hash
    assert len(seen) > 5
    assert not any("where name is 'Ann'" in text or "where n is '2'" in text for text in seen)


def test_a_table_that_a_change_does_not_suit_has_none():
    single = Table(name="t", columns=("a",), rows=(("x",), ("x",)))
    assert insert_problem(single, Random(0), "") is None
    assert update_problem(single, Random(0), "") is None
    assert insert_problem(Table(name="t", columns=("a", "b"), rows=()), Random(0), "") is None


def test_columns_get_names_that_a_server_accepts():
    names = ("", "a", "A", "x" * 70, "x" * 70, "tail ", "two\nlines", " ")
    fixed = usable_columns(names, one_line=True)
    assert fixed[:3] == ("column_1", "a", "A_2")
    assert fixed[5:] == ("tail", "two lines", "column_8")
    assert len({name.lower() for name in fixed}) == len(names)
    assert max(map(len, fixed)) <= 64
    assert usable_columns(("two\nlines",)) == ("two\nlines",)


@pytest.mark.data
def test_all_real_tasks_are_judged_as_they_should_be(data_folder):
    tally = sweep(published_problems(data_folder), SqliteBackend())
    assert (tally.right_questions, tally.questions) == (120, 120)
    # The label of one change follows from no statement.
    assert (tally.right_changes, tally.changes) == (239, 240)
    assert tally.session_ms <= 2.0  # it takes about 0.6


@pytest.mark.data
def test_no_real_label_is_taken_by_an_answer_to_another_question(data_folder):
    tasks = [problem for problem in published_problems(data_folder) if not problem.is_change]
    num_right = 0
    for problem, other in zip(tasks, tasks[1:] + tasks[:1], strict=True):
        with closing(DbbenchEnv(problem, SqliteBackend())) as env:
            env.reset()
            num_right += env.step(Action(calls=(commit_call(other.answer),))).reward == 1.0
    assert num_right <= 6  # some ask for the same small number, or for nothing


@pytest.mark.data
def test_real_training_tasks_are_solved_by_their_expert(data_folder):
    dbbench = family(FamilyOptions(data=data_folder))
    assert dbbench.num_tasks("train") == 3 * (12_533 - 26)
    assert traits_of(dbbench).data_sets == ("standard", "dev", "wikitablequestions")
    kinds = set()
    for index in range(0, dbbench.num_tasks("train"), 373):
        task = dbbench.task("train", index)
        problem: Problem = dbbench.problem(task)
        kinds.add((problem.gold or "SELECT").split()[0])
        turns = [m for m in dbbench.demonstrate(task, Random(0), noise=0.0) if m.role == "assistant"]
        with closing(dbbench.make(task)) as env:
            env.reset()
            assert [env.step(Action(calls=turn.tool_calls)).reward for turn in turns][-1] == 1.0, problem.text
    assert kinds == {"SELECT", "INSERT", "UPDATE"}
