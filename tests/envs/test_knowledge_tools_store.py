"""The large store on a tiny slice."""

from envs.kg_tools.graph import Evaluator
from envs.kg_tools.large_store import StoreTriples, fill_store, freebase_id, load_store, relation_parts
from envs.kg_tools.programs import Entity, Join
from envs.knowledge_graph.freebase import load


def test_names_become_freebases():
    assert freebase_id("/m/0a") == "m.0a"
    assert relation_parts("/place/mayor") == ["place.mayor"]
    assert relation_parts("/film/cast./film/cast/actor") == ["film.cast", "film.cast.actor"]


def test_relations_of_two_parts_lead_through_a_node_of_their_own(write_data, tmp_path):
    data = write_data(
        tmp_path,
        relations=["/person/born_in", "/film/cast./cast/actor"],
        triples={"train": ["4 0 1", "4 5 1", "0 1 0"], "valid": [], "test": []},
    )
    triples = StoreTriples(fill_store(load(data)))
    cast = Join("film.cast", Entity("m.0c"))
    evaluator = Evaluator(triples)
    assert len(evaluator.answers(cast)) == 2
    assert evaluator.relations(cast) == {"cast.actor"}
    assert evaluator.answers(Join("cast.actor", cast)) == {"m.0a", "m.0d"}
    assert evaluator.answers(Join("person.born_in", Entity("m.0a"))) == {"m.0b"}


def test_a_store_is_made_once_and_names_lead_to_ids(tiny_data):
    first, ids = load_store(tiny_data)
    again, _ = load_store(tiny_data)
    assert first is again
    assert ids["Anna"] == "m.0a"
    assert ids["Georgia(/m/0g1)"] == "m.0g1"
