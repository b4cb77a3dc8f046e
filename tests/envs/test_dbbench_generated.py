"""Generated tables: levels, disjoint splits, solutions that follow from the tables, demonstrations, vocabulary."""

import re
from collections import Counter
from contextlib import closing
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl_jax.env import Action, FamilyOptions
from agentrl_jax.errors import ConfigError, EnvError
from envs.dbbench import family
from envs.dbbench.calls import commit_call, sql_call
from envs.dbbench.generated import LEVELS
from envs.dbbench.hashing import table_hash, tables_hash
from envs.dbbench.instructions import split_of
from envs.dbbench.words import ATTRIBUTES, CITIES, CITY_ATTRIBUTES, NAMES

NUM_SAMPLED = 150


def made(level=1, **options):
    return family(FamilyOptions(level=level, **options))


def problems(dbbench, split="train", count=NUM_SAMPLED):
    return [dbbench.problem(dbbench.task(split, index)) for index in range(count)]


def question(problem):
    return problem.text.rpartition("Question: ")[2].strip()


def opening(text):
    return " ".join(text.split()[:2])


@pytest.mark.parametrize(
    ("level", "openings"),
    [
        (1, {"What is", "Whose city", "Whose job", "Set the"}),
        (2, {"What is", "Whose city", "Whose job", "Whose pet", "Set the", "Add"}),
        (3, {"What is", "List everybody", "How many", "Who is", "Set the", "Delete everybody", "Add", "Whose city"}),
    ],
)
def test_a_level_asks_for_what_it_says(level, openings):
    found = Counter(opening(question(problem)) for problem in problems(made(level)))
    for expected in openings:
        assert any(text.startswith(expected) for text in found), (expected, found)
    assert all("What is the" in text or opening(text) for text in found)


@pytest.mark.parametrize("level", LEVELS)
def test_tables_have_the_sizes_of_their_level(level):
    sizes = LEVELS[level]
    for problem in problems(made(level), count=30):
        people, *cities = problem.tables
        assert len(people.rows) == sizes.num_people
        assert len({row[0] for row in people.rows}) == sizes.num_people
        assert [len(table.rows) for table in cities] == ([max(4, sizes.num_cities)] if sizes.num_cities else [])
        shown = ", ".join(people.columns) in problem.text
        assert shown is sizes.is_schema_shown


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("seed", [0, 1])
def test_no_eval_instruction_is_given_in_training(level, seed):
    dbbench = made(level, seed=seed)
    asked = {split: {question(p) for p in problems(dbbench, split)} for split in ("train", "eval")}
    assert all(split_of(text) == split for split, texts in asked.items() for text in texts)
    assert not asked["train"] & asked["eval"]
    assert len(asked["eval"]) > 20  # not the same few over and over


def run(rows, columns, condition):
    """What a simple question is about, read off the table."""
    column, value = condition
    return [row for row in rows if row[columns.index(column)] == value]


@pytest.mark.parametrize("level", LEVELS)
def test_answers_are_what_the_tables_say(level):
    """Read off the tables by another way than the generator's, for the wordings that allow it."""
    num_read = 0
    for problem in problems(made(level), count=400):
        people = problem.tables[0]
        text = question(problem)
        if match := re.fullmatch(r"What is the (\w+) of (\w+)\?", text):
            (row,) = run(people.rows, people.columns, ("name", match[2]))
            assert problem.answer == (row[people.columns.index(match[1])],)
        elif match := re.fullmatch(r"What is the (\w+) of the city of (\w+)\?", text):
            (row,) = run(people.rows, people.columns, ("name", match[2]))
            (city,) = run(problem.tables[1].rows, problem.tables[1].columns, ("city", row[1]))
            assert problem.answer == (city[problem.tables[1].columns.index(match[1])],)
        elif match := re.fullmatch(r"(?:Whose|List everybody whose) (\w+) is (\w+)[?.]", text):
            assert problem.answer == tuple(row[0] for row in run(people.rows, people.columns, match.groups()))
        elif match := re.fullmatch(r"How many people are there whose (\w+) is (\w+)\?", text):
            assert problem.answer == (str(len(run(people.rows, people.columns, match.groups()))),)
        elif match := re.fullmatch(r"Who is the (oldest|youngest) of those whose (\w+) is (\w+)\?", text):
            rows = run(people.rows, people.columns, match.groups()[1:])
            ages = sorted(rows, key=lambda row: int(row[-1]))
            assert problem.answer == (ages[-1 if match[1] == "oldest" else 0][0],)
        else:
            assert problem.is_change
            continue
        num_read += 1
    assert num_read > 100


@pytest.mark.parametrize("level", LEVELS)
def test_the_hash_of_a_change_is_that_of_the_changed_tables(level):
    for problem in problems(made(level), count=60):
        if not problem.is_change:
            continue
        untouched = tables_hash(table_hash(table.rows) for table in problem.tables)
        assert problem.answer_hash != untouched, problem.text


@pytest.mark.parametrize("level", LEVELS)
def test_the_expert_solves_every_task_and_nobody_by_doing_nothing(level):
    dbbench = made(level)
    for split in ("train", "eval"):
        for index in range(60):
            task = dbbench.task(split, index)
            turns = [m for m in dbbench.demonstrate(task, Random(0), noise=0.0) if m.role == "assistant"]
            assert len(turns) <= dbbench.max_turns
            with closing(dbbench.make(task)) as env:
                env.reset()
                assert [env.step(Action(calls=turn.tool_calls)).reward for turn in turns][-1] == 1.0
            with closing(dbbench.make(task)) as env:
                env.reset()
                assert env.step(Action(calls=(commit_call(()),))).reward == 0.0


@given(index=st.integers(0, 500), seed=st.integers(0, 3), noise=st.sampled_from([0.2, 0.6, 1.0]))
def test_a_noisy_expert_ends_with_a_commit_within_the_turns(index, seed, noise):
    dbbench = made(2)
    shown = dbbench.demonstrate(dbbench.task("train", index), Random(seed), noise=noise)
    turns = [message for message in shown if message.role == "assistant"]
    assert len(turns) <= dbbench.max_turns
    assert [turn.tool_calls[0].name for turn in turns].index("commit_final_answer") == len(turns) - 1


@pytest.mark.parametrize("level", LEVELS)
def test_the_vocabulary_holds_every_word_of_the_tables(level):
    dbbench = made(level)
    words = set(dbbench.vocabulary())
    for problem in problems(dbbench, count=60):
        for table in problem.tables:
            numberless = {value for row in table.rows for value in row if not value.isdigit()}
            assert numberless <= words
            assert set(table.columns) - {"name", "age"} <= words
    assert "name" not in words  # it stands in every tool call


def test_words_are_single_and_distinct():
    groups = [NAMES, CITIES, *ATTRIBUTES.values(), *CITY_ATTRIBUTES.values(), tuple(ATTRIBUTES), tuple(CITY_ATTRIBUTES)]
    words = [word for group in groups for word in group]
    assert all(re.fullmatch(r"[A-Za-z]+", word) for word in words)
    assert len({word.lower() for word in words}) == len(words)


@pytest.mark.parametrize("noise", [-0.1, 1.1])
def test_bad_noise_is_refused(noise):
    dbbench = made()
    with pytest.raises(ConfigError, match="noise"):
        dbbench.demonstrate(dbbench.task("train", 0), Random(0), noise=noise)


def test_an_unknown_level_is_refused():
    with pytest.raises(ConfigError, match="levels 1, 2, 3, got 4"):
        made(4)


def test_tasks_out_of_range_are_refused():
    with pytest.raises(EnvError, match="train tasks 0 to 19999"):
        made().task("train", 20_000)


def test_one_seed_is_one_set_of_tasks():
    assert problems(made(seed=1), count=5) == problems(made(seed=1), count=5)
    assert problems(made(seed=1), count=5) != problems(made(seed=2), count=5)


def test_a_policy_that_looks_at_everything_can_answer_a_lookup():
    dbbench = made()
    problem, task = next(
        (dbbench.problem(task), task)
        for task in (dbbench.task("eval", index) for index in range(50))
        if not dbbench.problem(task).is_change
    )
    with closing(dbbench.make(task)) as env:
        env.reset()
        (seen,) = env.step(Action(calls=(sql_call("SELECT * FROM people"),))).messages
        assert all(value in seen.content for row in problem.tables[0].rows for value in row)
