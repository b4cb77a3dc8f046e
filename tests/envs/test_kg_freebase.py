"""The Freebase slice: how it is read and indexed, which questions are asked of it, and what broken data says."""

import lzma
import re
import shutil
import time
from collections import Counter, defaultdict
from random import Random

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from agentrl_jax.env import Action, FamilyOptions
from agentrl_jax.errors import ConfigError, EnvError
from envs.knowledge_graph import family, freebase_questions
from envs.knowledge_graph.calls import answer_call, query_call
from envs.knowledge_graph.freebase import load
from envs.knowledge_graph.freebase_questions import (
    MAX_FAN,
    MAX_NAME_CHARS,
    MAX_OBJECT_FRAC,
    MAX_RELATION_CHARS,
    telling_relations,
    usable_pairs,
)
from envs.knowledge_graph.questions import split_of


def test_the_index_of_a_tiny_slice_by_hand(tiny_data):
    graph = load(tiny_data)
    # Keys are entity * 3 + relation; the repeated triple counts once.
    assert graph.pairs.tolist() == [0, 1, 5, 11, 12, 15]
    assert graph.starts.tolist() == [0, 1, 3, 4, 5, 6, 7]
    assert graph.targets.tolist() == [1, 4, 5, 4, 5, 2, 1]
    assert graph.objects("Anna", "/person/knows") == ("Carl", "Dora")
    assert graph.objects("Anna", "/place/mayor") == ()
    assert graph.objects("Anna", "/place/river") is None


def test_entities_of_one_name_are_told_apart_by_mid(tiny_data):
    graph = load(tiny_data)
    assert graph.entities == ("Anna", "Berlin", "Georgia(/m/0g1)", "Georgia(/m/0g2)", "Carl", "Dora")
    assert graph.resolve("Georgia") == ("Georgia(/m/0g1)", "Georgia(/m/0g2)")
    assert graph.resolve("Georgia(/m/0g2)") == graph.resolve("/m/0g2") == ("Georgia(/m/0g2)",)
    assert graph.resolve("/m/0a") == graph.resolve("Anna") == ("Anna",)
    assert graph.resolve("anna") == graph.resolve("") == ()
    assert graph.objects("Georgia(/m/0g1)", "/place/mayor") == ()
    assert graph.objects("Georgia(/m/0g2)", "/place/mayor") == ("Dora",)


def test_usable_pairs_by_hand(tiny_data, monkeypatch):
    graph = load(tiny_data)
    # Not: a Georgia as head, and Carl, who was born in one.
    assert usable_pairs(graph).tolist() == [True, True, True, False, False, True]
    monkeypatch.setattr(freebase_questions, "MAX_FAN", 1)
    assert usable_pairs(graph).tolist() == [True, False, True, False, False, True]
    # Berlin, Carl and Dora are each the object of two triples.
    monkeypatch.setattr(freebase_questions, "MAX_MENTIONS", 1)
    assert not usable_pairs(graph).any()


def test_telling_relations_by_hand(tiny_data, monkeypatch):
    graph = load(tiny_data)
    assert telling_relations(graph) == [False, False, False]
    # Two of three were born in Berlin; Carl and Dora are each mayor of one of two places.
    monkeypatch.setattr(freebase_questions, "MAX_OBJECT_FRAC", 0.5)
    assert telling_relations(graph) == [False, False, True]


def test_a_slice_without_questions_says_so(tiny_data, monkeypatch):
    monkeypatch.setattr("envs.knowledge_graph.questions.MAX_DRAWS", 50)
    kg = family(FamilyOptions(data=tiny_data))
    with pytest.raises(EnvError, match="no train question in 50 draws"):
        kg.make(kg.task("train", 0))


def test_a_slice_is_read_once_per_process(tiny_data):
    assert load(tiny_data) is load(tiny_data / ".." / tiny_data.name)


def test_missing_data_names_the_folder_and_what_it_should_hold(tmp_path, tiny_data):
    with pytest.raises(ConfigError, match=re.escape(str(tmp_path / "none" / "fb15k237")) + r".*entities\.tsv\.xz"):
        family(FamilyOptions(data=tmp_path / "none"))
    (tiny_data / "fb15k237" / "valid_h_t_r.txt.xz").unlink()
    with pytest.raises(ConfigError, match=r"missing: valid_h_t_r\.txt\.xz$"):
        family(FamilyOptions(data=tiny_data))


@pytest.mark.parametrize(
    ("part", "message"),
    [
        ({"entities": ["/m/0a Anna"]}, r"entities\.tsv\.xz: expected a MID"),
        ({"triples": {"train": ["0 1"], "valid": [], "test": []}}, r"train_h_t_r\.txt\.xz: expected three ids"),
        ({"triples": {"train": ["0 x 1"], "valid": [], "test": []}}, r"train_h_t_r\.txt\.xz: expected three ids"),
        ({"triples": {"train": ["0 1 0"], "valid": ["0 1 3"], "test": []}}, r"valid_h_t_r.*below \(6, 6, 3\)"),
        ({"triples": {"train": ["0 1 0"], "valid": ["6 1 0"], "test": []}}, r"valid_h_t_r.*below \(6, 6, 3\)"),
        ({"triples": {"train": ["0 1 0"], "valid": ["0 -1 0"], "test": []}}, r"valid_h_t_r.*below \(6, 6, 3\)"),
    ],
)
def test_broken_lines_are_config_errors_that_name_the_file(write_data, tmp_path, part, message):
    with pytest.raises(ConfigError, match=message):
        load(write_data(tmp_path / "broken", **part))


@pytest.mark.parametrize("content", [b"plain text", lzma.compress(b"\xff\xfe")], ids=["not xz", "not UTF-8"])
def test_a_file_that_cannot_be_decoded_is_a_config_error(tiny_data, content):
    (tiny_data / "fb15k237" / "relations.txt.xz").write_bytes(content)
    with pytest.raises(ConfigError, match=r"relations\.txt\.xz: expected UTF-8 text compressed with xz"):
        load(tiny_data)


@pytest.fixture(scope="module")
def raw_slice(real_data):
    """The files read a second way: MIDs, names, relations, and objects by (head, relation) as plain sets."""

    def lines(name):
        return lzma.open(real_data / "fb15k237" / name, "rt", encoding="utf-8").read().splitlines()

    mids, names = zip(*(line.split("\t") for line in lines("entities.tsv.xz")), strict=True)
    relations = lines("relations.txt.xz")
    objects = defaultdict(set)
    for part in ("train", "valid", "test"):
        for line in lines(f"{part}_h_t_r.txt.xz"):
            head, tail, relation = map(int, line.split())
            objects[head, relation].add(tail)
    return mids, names, relations, objects


@pytest.mark.data
def test_the_real_slice_is_read_completely(real_data, raw_slice):
    mids, names, relations, objects = raw_slice
    graph = load(real_data)
    assert (len(graph.entities), len(graph.relations), len(graph.targets)) == (14_541, 237, 310_116)
    assert graph.mids == mids
    assert len(set(graph.entities)) == 14_541
    assert not any(" " in name for name in graph.entities)
    assert graph.is_ambiguous.tolist() == [names.count(name) > 1 for name in names]
    assert int(graph.is_ambiguous.sum()) == 499
    assert len(graph.pairs) == len(objects)
    for head, relation in Random(0).sample(list(objects), 2_000):
        found = graph.objects(graph.entities[head], relations[relation])
        assert found == tuple(graph.entities[i] for i in sorted(objects[head, relation]))


@pytest.mark.data
@pytest.mark.parametrize("level", [1, 2, 3])
def test_the_gold_answers_are_what_following_the_relations_gives(real_data, raw_slice, level):
    _, names, relations, objects = raw_slice
    kg = family(FamilyOptions(data=real_data, level=level))
    for i in range(150 if level == 1 else 30):
        split = ("train", "eval")[i % 2]
        question = kg.problem(kg.task(split, i)).question
        assert split_of(question.start, question.relations) == split
        reached, visited = {names.index(question.start)}, set()
        for name in question.relations:
            branches = [objects[entity, relations.index(name)] for entity in reached]
            visited |= reached
            assert all(1 <= len(branch) <= MAX_FAN for branch in branches)
            reached = set().union(*branches)
            assert not reached & visited
            assert len(reached) <= MAX_FAN
            assert all(names.count(names[i]) == 1 and len(names[i]) <= MAX_NAME_CHARS for i in reached)
            assert len(name) <= MAX_RELATION_CHARS
        assert question.answers == {names[i] for i in reached}
        asked = relations.index(question.relations[-1])
        times = Counter(i for (_, relation), found in objects.items() if relation == asked for i in found)
        num_heads = sum(relation == asked for _, relation in objects)
        assert max(times.values()) <= MAX_OBJECT_FRAC * num_heads


@pytest.mark.data
def test_every_branch_of_a_real_question_is_right_and_no_answer_is_a_safe_guess(real_data):
    kg = family(FamilyOptions(data=real_data))
    graph = load(real_data)
    answers, compound = Counter(), 0
    for i in range(400):
        task = kg.task("train", i)
        question = kg.problem(task).question
        answers.update(question.answers)
        compound += any("." in relation for relation in question.relations)
        entity = question.start
        env = kg.make(task)
        env.reset()
        for relation in question.relations:
            (message,) = env.step(Action(calls=(query_call(entity, relation),))).messages
            entity = Random(i).choice(message.content.split(", "))
        value = graph.mids[graph.entities.index(entity)] if i % 2 else entity
        assert env.step(Action(calls=(answer_call(value),))).reward == 1.0
    assert answers.most_common(1)[0][1] / 400 < 0.02
    assert compound > 100


@pytest.mark.data
def test_train_and_eval_of_the_real_slice_share_no_question(real_data):
    kg = family(FamilyOptions(data=real_data))
    seen = {
        split: {
            (question.start, question.relations)
            for question in (kg.problem(kg.task(split, i)).question for i in range(num_tasks))
        }
        for split, num_tasks in (("train", 4_000), ("eval", 400))
    }
    assert not seen["train"] & seen["eval"]
    assert len(seen["train"]) > 3_000
    assert len(seen["eval"]) > 300


@pytest.mark.data
def test_the_expert_answers_every_real_question(real_data):
    kg = family(FamilyOptions(data=real_data))
    for i in range(200):
        task = kg.task("train", i)
        env = kg.make(task)
        env.reset()
        calls = [message.tool_calls for message in kg.demonstrate(task, Random(i), noise=0.0) if message.tool_calls]
        assert [env.step(Action(calls=call)).reward for call in calls][-1] == 1.0


@pytest.mark.data
def test_the_vocabulary_of_the_real_slice_is_the_relations_that_are_asked_for(real_data):
    kg = family(FamilyOptions(data=real_data))
    vocabulary = kg.vocabulary()
    assert len(set(vocabulary)) == len(vocabulary)
    asked = {r for i in range(300) for r in kg.problem(kg.task("train", i)).question.relations}
    assert asked <= set(vocabulary)


@pytest.mark.data
def test_the_real_slice_loads_within_two_seconds(real_data, tmp_path):
    # A copy has a path of its own, so that it is not served from the cache.
    shutil.copytree(real_data / "fb15k237", tmp_path / "fb15k237")
    started_s = time.process_time()
    graph = load(tmp_path)
    assert time.process_time() - started_s < 2.0
    assert np.array_equal(graph.pairs, load(real_data).pairs)


@pytest.mark.data
def test_a_real_episode_stays_short_with_a_small_tokenizer(real_data):
    kg = family(FamilyOptions(data=real_data))

    def text_of(split, i):
        messages = kg.demonstrate(kg.task(split, i), Random(i), noise=0.2)
        return "\n".join(f"<{m.role}>\n{m.content}{[dict(call.arguments) for call in m.tool_calls]}" for m in messages)

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    trainer = trainers.BpeTrainer(
        vocab_size=800, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator([text_of("train", i) for i in range(800)], trainer)
    num_tokens = [len(tokenizer.encode(text_of("eval", i)).ids) for i in range(200)]
    assert max(num_tokens) < 500
    assert sum(num_tokens) / len(num_tokens) < 200
