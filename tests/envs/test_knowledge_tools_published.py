"""AgentBench's questions: gold calls, witness graphs, and the large store."""

import json
import lzma
from random import Random

import pytest

from agentrl_jax.env import Action, EnvRegistry, FamilyOptions
from agentrl_jax.errors import ConfigError
from agentrl_jax.types import EpisodeEnd
from envs import register_all
from envs.kg_tools import family
from envs.kg_tools.endpoint import EndpointSession
from envs.kg_tools.graph import Evaluator
from envs.kg_tools.ontology import load_ontology
from envs.kg_tools.programs import Count, Entity, Extreme, Intersection, Join
from envs.kg_tools.published import parse_gold
from envs.kg_tools.witness import build_witness

GOLD = [
    "get_relations(m.0x)",
    "get_neighbors(m.0x,org.staff)",
    "get_relations(m.0y)",
    "get_neighbors(m.0y, org.staff)",
    "intersection(#0,#1)",
    "get_attributes(#2)",
    "argmax(#2, person.born)",
    "count(#3)",
]
QUESTION = {
    "question": "who works at both?",
    "qid": "1",
    "entities": {"X": "m.0x", "Y": "m.0y"},
    "actions": GOLD[:5],
    "answer": [{"answer_argument": "m.0a"}, {"answer_argument": "m.0b"}],
}
ROLES = [
    "org org.staff person",
    "org org.sites place",
    "person person.employer org",
    "person person.born type.datetime",
    "person person.friends person in addition",
    "org org.founded type.datetime",
]


def test_gold_calls_become_a_program():
    staff = [Join("org.staff", Entity(id_)) for id_ in ("m.0x", "m.0y")]
    both = Intersection(*staff)
    assert parse_gold(GOLD[:2]) == staff[0]
    assert parse_gold(GOLD[:5]) == both
    assert parse_gold(GOLD) == Count(Extreme("argmax", both, "person.born"))


@pytest.mark.parametrize("calls", [[], ["get_relations(m.0x)"], ["count(#0)"], ["x"], ["union(#0,#1)"], ["count(#z)"]])
def test_calls_that_make_nothing_are_refused(calls):
    with pytest.raises(ConfigError, match="gold call"):
        parse_gold(calls)


@pytest.fixture
def small(tmp_path):
    """A data folder with one question in each file, some compressed and some not."""
    folder = tmp_path / "knowledgegraph"
    (folder / "ontology").mkdir(parents=True)
    vocabulary = {
        "relations": ["org.staff", "org.sites", "person.employer", "person.friends"],
        "attributes": ["person.born"],
    }
    (folder / "ontology" / "vocab.json").write_text(json.dumps(vocabulary))
    (folder / "ontology" / "fb_roles").write_text("\n".join(ROLES))
    (folder / "ontology" / "reverse_properties.xz").write_bytes(lzma.compress(b"org.staff\tperson.employer"))
    for name in ("kg_rl_all", "std"):
        (folder / f"{name}.json").write_text(json.dumps([{**QUESTION, "question": name}]))
    (folder / "dev.json.xz").write_bytes(lzma.compress(json.dumps([QUESTION]).encode()))
    return tmp_path


def test_a_witness_graph_yields_the_answers_with_company(small):
    ontology = load_ontology(small)
    for program, answers in [
        (parse_gold(GOLD[:2]), {"m.0a", "m.0b"}),
        (parse_gold(GOLD[:5]), {"m.0a", "m.0b"}),
        (parse_gold(GOLD[:7]), {"m.0a"}),
        (Count(parse_gold(GOLD[:5])), {"7"}),
        (Join("org.staff", Join("person.employer", Entity("m.0z"))), {f"m.0{i}" for i in range(5)}),
    ]:
        graph = build_witness(program, frozenset(answers), ontology, seed=1)
        evaluator = Evaluator(graph)
        assert evaluator.answers(program) == answers
        assert build_witness(program, frozenset(answers), ontology, seed=1).edges == graph.edges
    graph = build_witness(parse_gold(GOLD[:7]), frozenset(("m.0a",)), ontology, seed=1)
    staff = Evaluator(graph).answers(parse_gold(GOLD[:2]))
    assert len(staff) == 1 + 3 + 2  # the answer, the lesser ones, and those that only X knows
    assert graph.edges["m.0a"]["person.employer"] == ("m.0x", "m.0y")
    assert "org.sites" in graph.edges["m.0x"]


def test_a_named_answer_is_the_one_thing_a_witness_cannot_yield(small):
    program = Join("org.staff", Join("person.employer", Entity("m.0z")))
    graph = build_witness(program, frozenset(("m.0z", "m.0a")), load_ontology(small), seed=0)
    assert Evaluator(graph).answers(program) == {"m.0a"}


def test_published_questions_are_played_from_plain_and_compressed_files(small):
    kg = family(FamilyOptions(data=small))
    assert (kg.num_tasks("train"), kg.num_tasks("eval")) == (1, 1)
    task = kg.task("train", 0)
    opening = kg.make(task).reset()
    assert opening[1].content == "kg_rl_all\nEntities: [X, Y]"
    messages = kg.demonstrate(task, Random(0), noise=0.0)
    assert messages[3].content.startswith("Observation: [org.sites, org.staff")
    assert messages[-1].content == "Final Answer: #2"
    registry = EnvRegistry()
    register_all(registry)
    dev = registry.make("knowledgegraph", FamilyOptions(data=small, eval_set="dev"))
    assert dev.problem(dev.task("eval", 0)).question == "who works at both?"
    with pytest.raises(ConfigError, match="known ones are std, dev"):
        registry.make("knowledgegraph", FamilyOptions(data=small, eval_set="test"))


def test_a_question_of_the_eval_set_is_not_trained_on(small):
    other = {**QUESTION, "question": "who else?"}
    (small / "knowledgegraph" / "kg_rl_all.json").write_text(json.dumps([QUESTION, other]))
    for eval_set, asked in (("std", ["who works at both?", "who else?"]), ("dev", ["who else?"])):
        kg = family(FamilyOptions(data=small, eval_set=eval_set))
        assert [kg.problem(kg.task("train", i)).question for i in range(kg.num_tasks("train"))] == asked


def test_as_published_evaluation_begins_with_a_worked_example(small):
    kg = family(FamilyOptions(data=small, upstream_compat=True))
    train, eval_ = (kg.make(kg.task(split, 0)).reset() for split in ("train", "eval"))
    assert len(train) == 2
    assert [message.role for message in eval_[:3]] == ["system", "user", "assistant"]
    assert len(eval_) > 10
    assert eval_[-1].content == "std\nEntities: [X, Y]"


def test_a_folder_may_name_an_endpoint_for_its_questions(small):
    (small / "knowledgegraph" / "endpoint.json").write_text('{"url": "http://127.0.0.1:9/"}')
    kg = family(FamilyOptions(data=small))
    assert isinstance(kg.problem(kg.task("train", 0)).backend(), EndpointSession)


def test_missing_and_broken_data_is_refused_by_name(small, tmp_path):
    with pytest.raises(ConfigError, match=r"vocab.json or vocab.json.xz, which are missing"):
        family(FamilyOptions(data=tmp_path / "nothing"))
    for text in ("[{}]", "[1]", "{}"):
        (small / "knowledgegraph" / "std.json").write_text(text)
        with pytest.raises(ConfigError, match="expected a list of questions"):
            family(FamilyOptions(data=small))
    (small / "knowledgegraph" / "std.json").unlink()
    (small / "knowledgegraph" / "std.json.xz").write_bytes(b"plain")
    with pytest.raises(ConfigError, match="expected text"):
        family(FamilyOptions(data=small))


def sweep(kg, split, indices):
    """How many golds give the gold answers; and each one's reward when the expert plays it."""
    num_right = 0
    for index in indices:
        task = kg.task(split, index)
        problem = kg.problem(task)
        is_right = problem.backend().answers(problem.gold) == problem.answers
        num_right += is_right
        env = kg.make(task)
        env.reset()
        for message in kg.demonstrate(task, Random(index), noise=0.0)[2:]:
            if message.role == "assistant":
                result = env.step(Action(content=message.content, calls=message.tool_calls))
        assert result.end is EpisodeEnd.COMPLETED
        assert result.reward == float(is_right)
    return num_right


@pytest.mark.data
def test_gold_programs_yield_the_gold_answers_in_a_sample(data_folder):
    kg = family(FamilyOptions(data=data_folder))
    assert (kg.num_tasks("train"), kg.num_tasks("eval")) == (1214, 150)
    assert sweep(kg, "eval", range(0, 150, 3)) + sweep(kg, "train", range(0, 1214, 30)) >= 50 + 41 - 3


@pytest.mark.data
@pytest.mark.slow
def test_gold_programs_yield_the_gold_answers_but_for_fifteen(data_folder):
    kg = family(FamilyOptions(data=data_folder))
    dev = family(FamilyOptions(data=data_folder, eval_set="dev"))
    assert dev.num_tasks("train") == 1214 - 13
    assert sweep(kg, "train", range(1214)) + sweep(kg, "eval", range(150)) + sweep(dev, "eval", range(20)) >= 1369


@pytest.mark.data
@pytest.mark.slow
def test_questions_over_the_large_store_are_answered(data_folder):
    from envs.kg_tools.large_store import load_store

    triples, ids = load_store(data_folder.resolve())
    assert len(triples._store) == 517_683
    assert "location.location.contains" in triples.relations(ids["Dominican_Republic"])
    for level in (2, 3, 4):
        kg = family(FamilyOptions(data=data_folder, level=level))
        assert sweep(kg, "eval", range(25)) == 25
    with pytest.raises(ConfigError, match="has levels 1 to 4 with data, got 5"):
        family(FamilyOptions(data=data_folder, level=5))
