"""What programs answer: by hand, and against the SPARQL queries they stand for."""

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyoxigraph import Literal, NamedNode, Quad, Store

from envs.kg_tools.graph import DictTriples, Evaluator, QueryError, value_of
from envs.kg_tools.programs import Count, Entity, Extreme, Intersection, Join, entities_of, parts_of
from envs.kg_tools.sparql import NAMESPACE, answers_query, plain_value, relations_query

# anna and bob know each other; both work at x; carl works at x and y.
EDGES = {
    "anna": {"knows": ("bob", "carl"), "works_at": ("x",), "age": ("30",)},
    "bob": {"knows": ("anna", "carl"), "works_at": ("x",), "age": ("40",)},
    "carl": {"works_at": ("x", "y"), "age": ("9",)},
    "x": {"employs": ("anna", "bob", "carl"), "founded": ("1990-05-01",)},
    "y": {"employs": ("carl", "dora"), "founded": ("2001-01-01", "1970-01-01")},
    "dora": {"age": ("40", "8")},
}
X, Y, ANNA = Entity("x"), Entity("y"), Entity("anna")
STAFF_X, STAFF_Y = Join("employs", X), Join("employs", Y)


@pytest.mark.parametrize(
    ("program", "answers"),
    [
        (STAFF_X, {"anna", "bob", "carl"}),
        (Intersection(STAFF_X, STAFF_Y), {"carl"}),
        (Intersection(STAFF_X, Join("knows", Entity("bob"))), {"anna", "carl"}),
        # Those whom anna knows know anna and carl; anna is named, hence no answer.
        (Join("knows", Join("knows", ANNA)), {"carl"}),
        (Join("works_at", STAFF_Y), {"x"}),
        (Extreme("argmax", STAFF_X, "age"), {"bob"}),
        # 9 is less than 30 as a number.
        (Extreme("argmin", STAFF_X, "age"), {"carl"}),
        (Extreme("argmin", STAFF_Y, "age"), {"dora"}),
        (Extreme("argmax", Intersection(STAFF_X, STAFF_Y), "age"), {"carl"}),
        (Extreme("argmax", Join("works_at", Entity("carl")), "founded"), {"y"}),
        (Extreme("argmin", Join("works_at", Entity("carl")), "founded"), {"y"}),
        (Extreme("argmax", STAFF_X, "height"), set()),
        # bob has the greatest age of those, but bob is named: anna's sets the mark.
        (Extreme("argmax", Intersection(STAFF_X, Join("knows", Join("knows", Entity("bob")))), "age"), {"carl"}),
        (Count(STAFF_X), {"3"}),
        (Count(Join("knows", Join("knows", ANNA))), {"1"}),
        (Count(Join("nothing", X)), {"0"}),
        (Join("nothing", X), set()),
    ],
)
def test_answers_by_hand(program, answers):
    assert Evaluator(DictTriples(EDGES)).answers(program) == answers


def test_named_entities_take_part_but_set_no_mark():
    # Of bob, anna and carl, bob is the oldest; as he is named, anna's age is the mark, and bob does not have it.
    program = Extreme("argmax", Join("employs", Join("works_at", Entity("bob"))), "age")
    assert Evaluator(DictTriples(EDGES)).answers(program) == {"anna"}


def test_relations_are_those_of_all_answers():
    evaluator = Evaluator(DictTriples(EDGES))
    assert evaluator.relations(X) == {"employs", "founded"}
    assert evaluator.relations(STAFF_Y) == {"works_at", "age"}
    assert evaluator.relations(Join("employs", Join("works_at", Entity("bob")))) == {"knows", "works_at", "age"}
    assert evaluator.relations(Entity("nobody")) == frozenset()


def test_a_program_that_yields_too_much_is_not_answered():
    evaluator = Evaluator(DictTriples(EDGES), max_members=2)
    assert evaluator.answers(STAFF_Y) == {"carl", "dora"}
    with pytest.raises(QueryError, match="too many answers"):
        evaluator.answers(Count(STAFF_X))


def test_values_compare_as_numbers_or_as_text():
    assert sorted(["10", "9.5", "2001-01-01", "-3", "b", "1999"], key=value_of) == [
        "-3",
        "9.5",
        "10",
        "1999",
        "2001-01-01",
        "b",
    ]


def test_parts_and_entities_of_a_program():
    program = Count(Intersection(STAFF_X, Join("knows", ANNA)))
    assert next(iter(parts_of(program))) == X
    assert list(parts_of(program))[-1] == program
    assert entities_of(program) == {"x", "anna"}


def iri(name):
    return NamedNode(NAMESPACE + name)


def as_store(edges):
    store = Store()
    for subject, relations in edges.items():
        for relation, objects in relations.items():
            for object_ in objects:
                node = Literal(int(object_)) if relation == "age" else iri(object_)
                store.add(Quad(iri(subject), iri(relation), node))
    return store


def asked(store, query):
    return {plain_value(solution[0].value, "standard") for solution in store.query(query)}


NAMES, RELATIONS = [f"n{i}" for i in range(7)], ["r", "s", "t"]


@st.composite
def graphs(draw):
    rng = Random(draw(st.integers(0, 10_000)))
    return {
        name: {
            **{relation: tuple(rng.sample(NAMES, rng.randint(0, 4))) for relation in RELATIONS},
            "age": (str(rng.randint(1, 5)),) if rng.random() < 0.8 else (),
        }
        for name in NAMES
    }


def programs():
    joins = st.builds(Join, st.sampled_from(RELATIONS), st.builds(Entity, st.sampled_from(NAMES)))
    inner = st.recursive(
        joins,
        lambda smaller: st.one_of(
            st.builds(Join, st.sampled_from(RELATIONS), smaller),
            st.builds(Intersection, smaller, smaller),
            st.builds(Extreme, st.sampled_from(["argmax", "argmin"]), smaller, st.just("age")),
        ),
        max_leaves=4,
    )
    return st.one_of(inner, st.builds(Count, inner))


@settings(max_examples=150, deadline=None)
@given(edges=graphs(), program=programs())
def test_sets_and_sparql_agree(edges, program):
    store, evaluator = as_store(edges), Evaluator(DictTriples(edges))
    assert asked(store, answers_query(program, "standard")) == evaluator.answers(program)
    if not isinstance(program, Count):
        listed = {relation for relation in asked(store, relations_query(program)) if relation}
        present = DictTriples({s: {r: o for r, o in rs.items() if o} for s, rs in edges.items()})
        assert listed == Evaluator(present).relations(program)


def test_relations_of_an_entity_in_sparql():
    assert asked(as_store(EDGES), relations_query(X)) == {"employs", "founded"}


def test_the_virtuoso_dialect_counts_in_its_own_way_and_drops_its_time_zone():
    assert answers_query(Count(STAFF_X), "virtuoso").startswith("SELECT COUNT DISTINCT ?x WHERE {")
    assert answers_query(Count(STAFF_X), "standard").startswith("SELECT (COUNT(DISTINCT ?x) AS ?n) WHERE {")
    assert answers_query(STAFF_X, "virtuoso") == answers_query(STAFF_X, "standard")
    assert plain_value("2001-01-01-08:00", "virtuoso") == "2001-01-01"
    assert plain_value("2001-01-01-08:00", "standard") == "2001-01-01-08:00"
    assert plain_value(f"{NAMESPACE}m.01", "standard") == "m.01"
