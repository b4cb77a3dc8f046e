"""When answers are right, how lists spelled as texts are read, and the hash of tables."""

import hashlib
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envs.dbbench.answer_lists import items_of
from envs.dbbench.answers import is_right
from envs.dbbench.hashing import row_hash, table_hash, tables_hash


def right(given, *label, is_ordered=False, upstream_compat=False):
    return is_right(given, label, is_ordered=is_ordered, upstream_compat=upstream_compat)


@pytest.mark.parametrize(
    ("given", "label", "verdict"),
    [
        (["Oslo"], ["Oslo"], True),
        (["oslo"], ["Oslo"], False),
        ([" 'Oslo' "], ["Oslo"], True),
        (["7"], ["7.0"], True),
        (["7.01"], ["7"], True),
        (["7.02"], ["7"], False),
        (["12,000"], ["12000"], True),
        (["99.8%"], ["99.8"], True),
        (["Bangkok, Thailand"], ["Bangkok Thailand"], True),
        ([7], ["7"], True),
        (7, ["7"], True),
        ("7", ["7"], True),
        (["inf"], ["Infinity"], True),
        (["inf"], ["-inf"], False),
        ([], ["none"], False),
        (["a"], ["a", "b"], False),
        (["b", "a"], ["a", "b"], True),
        (["a", "a", "b"], ["a", "b"], False),
        (["a", "b", "b"], ["a", "a", "b"], False),
        (["2.0", "1"], ["1", "2"], True),
        (["1", "1"], ["1", "2"], False),
        (["a", "5.0"], ["5", "a"], True),
        # Each is within the tolerance of one, but only one pairing serves both.
        (["1.01", "1.00"], ["1.00", "1.02"], True),
        ({"x": 1}, ["x"], False),
        ([["a"]], ["a"], False),
    ],
)
def test_answers_are_compared_as_values(given, label, verdict):
    assert right(given, *label) is verdict


NOTHINGS = ["none", "nan", "", "0", "inf", "-inf"]


def test_kinds_of_nothing_are_different_values():
    for label in NOTHINGS:
        for value in NOTHINGS:
            assert right([value], label) is (value == label), (value, label)
    assert right([None], "none")
    assert right(["NULL"], "none")
    assert right([float("nan")], "nan")


def test_order_counts_where_the_question_ranks():
    assert right(["a", "b"], "a", "b", is_ordered=True)
    assert not right(["b", "a"], "a", "b", is_ordered=True)
    assert right(["1.0", "2"], "1", "2", is_ordered=True)


def test_as_published_kinds_of_nothing_are_equal_and_lists_are_sets():
    """Fault 12 of the published environment, reproduced on request."""
    for label in NOTHINGS:
        for value in NOTHINGS:
            assert right([value], label, upstream_compat=True)
    assert right(["a", "a", "b"], "b", "a", upstream_compat=True)
    assert right(["b", "a"], "a", "b", is_ordered=True, upstream_compat=True)
    assert not right(["1", "1"], "1", "2", upstream_compat=True)
    assert not right(["a", "5.0"], "a", "5", upstream_compat=True)
    assert not right(["1"], "1", "1", upstream_compat=True)


@pytest.mark.parametrize(
    ("text", "items"),
    [
        ("[('Oslo',), ('Rome',)]", ["Oslo", "Rome"]),
        ("[(None,)]", [None]),
        ("[(293.0,)]", ["293.0"]),
        ("[(Decimal('3.50'),)]", ["3.50"]),
        ("[('a', 1), ('b', 2)]", ["a", "1", "b", "2"]),
        ('["it\'s", "b"]', ["it's", "b"]),
        ("['it\\'s']", ["it's"]),
        ("[Oslo (Norway), Rome]", ["Oslo (Norway)", "Rome"]),
        ("[1, 2.5, null]", ["1", "2.5", None]),
        ("['a, b', 'c']", ["a, b", "c"]),
        ("[]", []),
        ("['']", [""]),
        ("[it's]", ["it's"]),
        ("Oslo", ["Oslo"]),
        ("[open", ["[open"]),
    ],
)
def test_lists_spelled_as_texts_are_read(text, items):
    assert items_of(text, upstream_compat=False) == items


def test_as_published_a_row_of_several_values_counts_as_none():
    assert items_of("[('a', 1), ('b',)]", upstream_compat=True) == ["b"]


@given(values=st.lists(st.tuples(st.text(max_size=8) | st.integers() | st.none()), max_size=4))
def test_what_python_writes_is_read_back(values):
    read = items_of(str(values), upstream_compat=False)
    expected = [value if value is None or isinstance(value, str) else str(value) for (value,) in values]
    if all(not isinstance(value, str) or value.isprintable() for value in expected):
        assert read == expected


@given(given=st.recursive(st.none() | st.text() | st.floats() | st.booleans(), st.lists, max_leaves=6))
def test_any_argument_has_a_verdict(given):
    for upstream_compat in (False, True):
        assert right(given, "x", "0", upstream_compat=upstream_compat) in (False, True)


def test_a_hostile_text_is_read_in_little_time():
    begun_s = time.process_time()
    for text in (
        "[" + "('" * 4_900 + "]",
        "[" + "'\\" * 4_900 + "]",
        "[" * 50_000 + "]" * 50_000,
        "[" + "('" * 50_000 + "]",
        "[" + "-" * 100_000 + "1]",
        "[" + "'\\" * 50_000 + "]",
    ):
        right(text, "x")
    assert time.process_time() - begun_s < 5.0


def md5(text):
    return hashlib.md5(text.encode()).hexdigest()


def test_a_row_is_hashed_without_its_nulls():
    assert row_hash(("a", None, "b")) == md5("a,b")[:5]
    assert row_hash((None,)) == md5("")[:5]
    assert row_hash((1, 2.5, b"x", True)) == md5("1,2.5,x,1")[:5]
    assert row_hash(("é",)) == md5("é")[:5]


def test_a_table_is_hashed_in_any_order_of_rows():
    rows = [("a", "1"), ("b", "2"), ("a", "1")]
    expected = md5(",".join(sorted(md5(f"{x},{y}")[:5] for x, y in rows)))
    assert table_hash(rows) == table_hash(rows[::-1]) == expected
    assert table_hash([]) == "None"


def test_the_hash_of_a_long_table_is_that_of_its_first_1024_bytes():
    rows = [(str(i),) for i in range(400)]
    hashes = sorted(md5(str(i))[:5] for i in range(400))
    assert table_hash(rows) == md5(",".join(hashes)[:1024])
    # 171 rows take 1,025 bytes: what differs behind them does not count.
    last = max(range(400), key=lambda i: md5(str(i))[:5])
    assert table_hash([row for row in rows if row != (str(last),)]) == table_hash(rows)


def test_a_database_is_hashed_in_any_order_of_tables():
    assert tables_hash(["b", "a"]) == tables_hash(["a", "b"]) == "a_b"
