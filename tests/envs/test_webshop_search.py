"""Search: words, stored lengths and scores against hand-computed ones and Lucene's own definitions."""

import threading
from math import log1p

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envs.webshop.text_index import TextIndex, stem, stored_length, words_of


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("The Running Shoes", ["run", "shoe"]),
        ("women's tops, tees & blouses", ["women", "top", "tee", "blous"]),
        ("x-large 3.5oz 1,000 wi-fi", ["x", "larg", "3.5oz", "1,000", "wi", "fi"]),
        ("a.b. it\u2019s U.S.A", ["a.b", "u.s.a"]),
        ("rock'n'roll 3,5; red,blue", ["rock'n'rol", "3,5", "red", "blue"]),
        ("relational conditional generically", ["relat", "condit", "gener"]),
        ("", []),
    ],
)
def test_text_is_split_at_word_boundaries_stopped_and_stemmed(text, words):
    assert words_of(text) == words


def lucene_stored_length(length):
    """SmallFloat.byte4ToInt(intToByte4(length)), written out step by step."""

    def to_int4(number):
        if number.bit_length() < 4:
            return number
        shift = number.bit_length() - 4
        return (number >> shift) & 0x07 | (shift + 1) << 3

    def from_int4(code):
        bits, shift = code & 0x07, (code >> 3) - 1
        return bits if shift == -1 else (bits | 0x08) << shift

    num_free = 255 - to_int4(2**31 - 1)
    assert num_free == 24
    return length if length < num_free else num_free + from_int4(to_int4(length - num_free))


@given(st.integers(0, 10_000))
def test_a_length_is_stored_as_lucene_stores_it(length):
    assert stored_length(length) == lucene_stored_length(length)


def test_scores_follow_the_formula():
    # Lengths 1, 2, 3: mean 2. "lamp" stands in all three, "red" in one.
    index = TextIndex(["lamp", "red lamp", "lamp lamp mug"])

    def weight(num_docs_with, count, length):
        idf = log1p((3 - num_docs_with + 0.5) / (num_docs_with + 0.5))
        return idf * count / (count + 0.9 * (1 - 0.4 + 0.4 * length / 2))

    lamps = {0: weight(3, 1, 1), 1: weight(3, 1, 2), 2: weight(3, 2, 3)}
    assert index.search("lamp", 10) == tuple(sorted(lamps, key=lambda doc: -lamps[doc])) == (2, 0, 1)
    both = {**lamps, 1: lamps[1] + weight(1, 1, 2)}
    assert index.search("red lamps", 10) == tuple(sorted(both, key=lambda doc: -both[doc]))
    assert index.search("red", 10) == (1,)
    assert index.search("lamp", 2) == (2, 0)


def test_a_word_counts_as_often_as_the_query_has_it():
    index = TextIndex(["red red mug", "blue mug"])
    assert index.search("red blue", 10) == (0, 1)
    assert index.search("red blue blue blue", 10) == (1, 0)


@pytest.mark.parametrize("query", ["", "the of", "unknown", "\ud800", "[]()"])
def test_a_query_without_known_words_finds_nothing(query):
    assert TextIndex(["lamp", "mug"]).search(query, 10) == ()


def test_documents_of_one_score_keep_their_order():
    assert TextIndex(["mug red", "red mug", "mug red"]).search("mug", 10) == (0, 1, 2)


def test_an_index_of_empty_documents_finds_nothing():
    assert TextIndex(["", "the"]).search("lamp", 10) == ()


def test_threads_may_stem_at_the_same_time():
    words = [f"national{ending}{i}izations" for i in range(300) for ending in ("", "ly", "ity")]
    expected = [stem.__wrapped__(word) for word in words]
    found = {}

    def run(name):
        found[name] = [stem.__wrapped__(word) for word in words]

    threads = [threading.Thread(target=run, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(stems == expected for stems in found.values())
