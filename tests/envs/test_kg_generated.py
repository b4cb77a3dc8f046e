"""Generated graphs and their questions: what is random, what is fixed, and what train and eval never share."""

from collections import Counter

import pytest

from agentrl_jax.env import EnvFamily, FamilyOptions
from agentrl_jax.errors import ConfigError, EnvError
from agentrl_jax.types import Task
from envs.knowledge_graph import family
from envs.knowledge_graph.generated import SIZES, GeneratedGraph
from envs.knowledge_graph.questions import HOPS, sample_question, split_of
from envs.knowledge_graph.words import ENTITIES, RELATIONS


def keys(kg, split, num_tasks=None):
    problems = (kg.problem(kg.task(split, i)) for i in range(num_tasks or kg.num_tasks(split)))
    return Counter((problem.question.start, problem.question.relations) for problem in problems)


def test_the_family_offers_what_the_protocol_asks_for():
    kg = family(FamilyOptions())
    assert isinstance(kg, EnvFamily)
    assert (kg.name, kg.max_turns, kg.num_tasks("train"), kg.num_tasks("eval")) == ("kg", 6, 20_000, 2_000)


def test_a_task_stays_the_same_over_releases():
    # Recorded runs name tasks by seed: changing what a seed means would silently change their problems.
    question = family(FamilyOptions(seed=0)).problem(Task(env="kg", split="train", index=0, seed=7)).question
    assert (question.text, question.answers) == (
        "Who is the rival of the lawyer of the doctor of Yara?",
        frozenset({"Laura"}),
    )


def test_following_the_relations_gives_the_answer_by_distinct_entities():
    for level in HOPS:
        kg = family(FamilyOptions(level=level))
        num_hops = Counter()
        for i in range(200):
            problem = kg.problem(kg.task("train", i))
            question = problem.question
            chain = [question.start]
            for relation in question.relations:
                (found,) = problem.graph.objects(chain[-1], relation)
                chain.append(found)
            assert question.answers == {chain[-1]}
            assert len(set(chain)) == len(chain)
            assert len(set(question.relations)) == len(question.relations)
            num_hops[len(question.relations)] += 1
        assert set(num_hops) == set(range(HOPS[level][0], HOPS[level][1] + 1))
        assert min(num_hops.values()) > 50


def test_a_relation_leads_to_every_other_entity_equally_often_and_never_back_to_its_own():
    found = Counter()
    for seed in range(300):
        graph = GeneratedGraph(seed=seed, entities=ENTITIES[:10], relations=RELATIONS[:2])
        found.update(graph.object(entity, "boss") for entity in graph.entities)
        assert all(graph.object(entity, "boss") != entity for entity in graph.entities)
    # 3,000 draws over 10 entities: 300 each with a deviation of about 16.
    assert set(found) == set(ENTITIES[:10])
    assert all(220 < num < 380 for num in found.values())


def test_graphs_differ_between_tasks():
    kg = family(FamilyOptions())
    edges = {kg.problem(kg.task("train", i)).graph.objects("Bob", "boss") for i in range(30)}
    assert len(edges) > 10


def test_no_eval_question_is_ever_asked_in_training():
    train, held_out = keys(family(FamilyOptions()), "train"), keys(family(FamilyOptions()), "eval")
    assert sum(train.values()) == 20_000
    assert not set(train) & set(held_out)
    # Both splits are varied, and neither is a sliver of the other's kind of question.
    assert len(train) > 8_000
    assert len(held_out) > 900


def test_the_split_of_a_question_holds_whatever_the_seed():
    train = keys(family(FamilyOptions(seed=1)), "train", 2_000)
    held_out = keys(family(FamilyOptions(seed=2)), "eval", 500)
    assert not set(train) & set(held_out)
    assert all(split_of(*key) == "train" for key in train)
    assert all(split_of(*key) == "eval" for key in held_out)


def test_a_tenth_of_all_keys_is_held_out():
    held_out = [split_of(a, (r, s)) == "eval" for a in ENTITIES for r in RELATIONS for s in RELATIONS]
    assert 0.08 < sum(held_out) / len(held_out) < 0.12


def test_another_family_seed_gives_other_questions_and_the_same_seed_the_same():
    options = [FamilyOptions(seed=3), FamilyOptions(seed=3), FamilyOptions(seed=4)]
    texts = [[kg.problem(kg.task("train", i)).question.text for i in range(20)] for kg in map(family, options)]
    assert texts[0] == texts[1]
    assert texts[0] != texts[2]


def test_words_are_distinct_and_enough_for_every_level():
    assert len(set(ENTITIES + RELATIONS)) == len(ENTITIES) + len(RELATIONS)
    assert all(word.isalpha() and word.isascii() for word in ENTITIES + RELATIONS)
    assert max(SIZES.values()) <= (len(ENTITIES), len(RELATIONS))
    assert set(SIZES) == set(HOPS)


def test_the_vocabulary_holds_every_word_that_a_question_or_an_answer_uses():
    kg = family(FamilyOptions(level=2))
    vocabulary = set(kg.vocabulary())
    for i in range(100):
        question = kg.problem(kg.task("train", i)).question
        assert {question.start, *question.relations, *question.answers} <= vocabulary


@pytest.mark.parametrize("level", [0, 4])
def test_an_unknown_level_is_a_config_error(level):
    with pytest.raises(ConfigError, match="levels 1, 2, 3"):
        family(FamilyOptions(level=level))


@pytest.mark.parametrize("index", [-1, 2_000])
def test_an_index_out_of_range_is_refused(index):
    with pytest.raises(EnvError, match="eval tasks 0 to 1999"):
        family(FamilyOptions()).task("eval", index)


def test_another_familys_task_is_refused():
    with pytest.raises(EnvError, match="webshop/train/0/1"):
        family(FamilyOptions()).make(Task(env="webshop", split="train", index=0, seed=1))


def test_a_source_without_any_question_gives_up_with_an_error():
    class Nothing:
        def draw(self, rng):
            return None

    with pytest.raises(EnvError, match="no train question"):
        sample_question(Nothing(), 0, "train")
