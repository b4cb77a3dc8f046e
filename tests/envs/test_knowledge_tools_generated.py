"""Generated graphs and questions: answerable, disjoint between splits, and shown by an expert."""

from collections import Counter
from random import Random

import pytest

from agentrl_jax.env import Action, FamilyOptions
from agentrl_jax.errors import ConfigError, EnvError
from agentrl_jax.types import EpisodeEnd, Task
from envs.kg_tools import family
from envs.kg_tools.calls import tool_call
from envs.kg_tools.generated import LEVELS, split_of
from envs.kg_tools.graph import Evaluator
from envs.kg_tools.programs import Count, Extreme, Intersection, Join


def replayed(kg, task, messages):
    env = kg.make(task)
    num_opening = len(env.reset())
    turns = [m for m in messages[num_opening:] if m.role == "assistant"]
    return [env.step(Action(content=turn.content, calls=turn.tool_calls)) for turn in turns]


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("split", ["train", "eval"])
def test_the_expert_earns_the_reward_within_the_turns(level, split):
    kg = family(FamilyOptions(level=level, seed=2))
    for index in range(25):
        task = kg.task(split, index)
        messages = kg.demonstrate(task, Random(index), noise=0.0)
        results = replayed(kg, task, messages)
        assert len(results) <= kg.max_turns
        assert [result.reward for result in results] == [0.0] * (len(results) - 1) + [1.0]
        assert results[-1].metrics == {"f1": 1.0}
        assert [m for m in messages if m.role == "tool"] == [m for result in results for m in result.messages]


@pytest.mark.parametrize("level", LEVELS)
def test_a_noisy_expert_still_answers_right(level):
    kg = family(FamilyOptions(level=level))
    num_turns = []
    for index in range(30):
        task = kg.task("train", index)
        results = replayed(kg, task, kg.demonstrate(task, Random(index), noise=0.5))
        assert (results[-1].reward, results[-1].end) == (1.0, EpisodeEnd.COMPLETED)
        assert not any("Error" in m.content for result in results for m in result.messages)
        num_turns.append(len(results))
    assert max(num_turns) > 7


def test_levels_ask_for_more():
    shapes = {}
    for level in LEVELS:
        kg = family(FamilyOptions(level=level))
        golds = [kg.problem(kg.task("train", i)).gold for i in range(60)]
        shapes[level] = {type(gold) for gold in golds}
    assert shapes == {1: {Join}, 2: {Join, Intersection}, 3: {Join, Intersection, Count, Extreme}}


def test_the_last_step_of_a_question_leaves_somebody_out_and_kinds_are_as_frequent():
    kg = family(FamilyOptions(level=3))
    kinds = Counter()
    for index in range(200):
        problem = kg.problem(kg.task("train", index))
        gold, backend = problem.gold, problem.backend()
        kinds[type(gold)] += 1
        if isinstance(gold, Intersection):
            assert problem.answers < backend.answers(gold.first)
            assert problem.answers < backend.answers(gold.second)
        elif isinstance(gold, Extreme):
            assert problem.answers < backend.answers(gold.source)
    assert min(kinds[kind] for kind in (Join, Intersection, Count, Extreme)) > 25


def test_a_question_names_its_entities_and_is_answered_by_its_graph():
    kg = family(FamilyOptions(level=3))
    for index in range(40):
        problem = kg.problem(kg.task("eval", index))
        assert problem.answers == problem.backend().answers(problem.gold) != frozenset()
        assert all(name in problem.question for name in problem.world.entities)


def test_no_eval_question_is_ever_asked_in_training_at_any_level_or_seed():
    seen = {"train": set(), "eval": set()}
    for level in LEVELS:
        for seed in (0, 1):
            kg = family(FamilyOptions(level=level, seed=seed))
            for split, questions in seen.items():
                questions |= {kg.problem(kg.task(split, i)).question for i in range(40)}
    assert not seen["train"] & seen["eval"]
    assert all(split_of(question) == split for split, questions in seen.items() for question in questions)


def test_a_guess_earns_little():
    kg = family(FamilyOptions(level=2))
    rewards = []
    for index in range(100):
        task = kg.task("train", index)
        problem, rng = kg.problem(task), Random(index)
        name = rng.choice(sorted(problem.world.entities))
        relations = sorted(Evaluator(problem.backend.args[0]).relations(problem.gold))
        env = kg.make(task)
        env.reset()
        env.step(Action(calls=(tool_call("get_relations", name),)))
        env.step(Action(calls=(tool_call("get_neighbors", name, rng.choice(relations)),)))
        rewards.append(env.step(Action(content="Final Answer: #0")).reward)
    assert sum(rewards) / 100 < 0.2


def test_words_of_a_graph_are_known():
    for level in LEVELS:
        kg = family(FamilyOptions(level=level))
        problem = kg.problem(kg.task("train", 0))
        edges = problem.backend.args[0].edges
        assert {"#0", "#1"} <= set(kg.vocabulary())
        assert edges.keys() | {r for own in edges.values() for r in own} <= set(kg.vocabulary())


def test_a_level_1_episode_is_short():
    kg = family(FamilyOptions())
    messages = kg.demonstrate(kg.task("train", 1), Random(0), noise=0.0)
    assert sum(len(message.content) for message in messages) < 700


def test_what_is_refused():
    kg = family(FamilyOptions())
    with pytest.raises(EnvError, match="eval tasks 0 to 1999, asked for 2000"):
        kg.task("eval", 2000)
    with pytest.raises(EnvError, match="cannot make an env"):
        kg.make(Task(env="kg", split="train", index=0, seed=0))
    with pytest.raises(ConfigError, match="noise must be between 0 and 1"):
        kg.demonstrate(kg.task("train", 0), Random(0), noise=-0.1)
