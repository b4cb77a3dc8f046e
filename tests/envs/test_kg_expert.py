"""Demonstrations: episodes as the env has them, right without noise, and always ended within the turn limit."""

from collections import Counter
from random import Random

import pytest

from agentrl_jax.env import Action, FamilyOptions
from agentrl_jax.errors import ConfigError
from agentrl_jax.types import EpisodeEnd
from envs.knowledge_graph import family
from envs.knowledge_graph.calls import PARAMETERS
from envs.knowledge_graph.questions import HOPS


def replay(kg, task, messages):
    """Step a fresh env through the assistant turns; returns its whole conversation and the last result."""
    env = kg.make(task)
    conversation = list(env.reset())
    result = None
    for message in messages:
        if message.role == "assistant":
            result = env.step(Action(calls=message.tool_calls))
            conversation += [message, *result.messages]
    env.close()
    return tuple(conversation), result


def turns_of(messages):
    return [message for message in messages if message.role == "assistant"]


@pytest.mark.parametrize("noise", [0.0, 0.25, 1.0])
@pytest.mark.parametrize("level", list(HOPS))
def test_a_demonstration_is_exactly_the_episode_of_its_calls(noise, level):
    kg = family(FamilyOptions(level=level))
    for i in range(60):
        task = kg.task("train", i)
        messages = kg.demonstrate(task, Random(i), noise=noise)
        conversation, result = replay(kg, task, messages)
        assert messages == conversation
        assert result.end is EpisodeEnd.COMPLETED
        assert len(turns_of(messages)) <= kg.max_turns
        assert all(len(turn.tool_calls) == 1 for turn in turns_of(messages))


def test_the_expert_alone_takes_one_turn_per_hop_and_one_to_answer():
    kg = family(FamilyOptions())
    for i in range(200):
        task = kg.task("eval", i)
        messages = kg.demonstrate(task, Random(0), noise=0.0)
        assert replay(kg, task, messages)[1].reward == 1.0
        assert len(turns_of(messages)) == len(kg.problem(task).question.relations) + 1


def test_noise_adds_well_formed_calls_that_the_expert_recovers_from():
    kg = family(FamilyOptions())
    rewards, num_extra, names = [], 0, Counter()
    for i in range(400):
        task = kg.task("train", i)
        messages = kg.demonstrate(task, Random(i), noise=0.3)
        turns = turns_of(messages)
        num_extra += len(turns) > len(kg.problem(task).question.relations) + 1
        rewards.append(replay(kg, task, messages)[1].reward)
        for turn in turns:
            (call,) = turn.tool_calls
            assert tuple(call.arguments) == PARAMETERS[call.name]
            names[call.name] += 1
        assert not any(message.content.startswith("error") for message in messages)
    # About 3 % of the turns answer too early.
    assert 0.85 < sum(rewards) / len(rewards) < 1.0
    assert num_extra > 150
    assert names["answer"] == 400


def test_the_share_of_random_turns_is_the_noise():
    kg = family(FamilyOptions())
    is_random = []
    for i in range(600):
        question = kg.problem(kg.task("train", i)).question
        first = turns_of(kg.demonstrate(kg.task("train", i), Random(i), noise=0.25))[0].tool_calls[0]
        is_random.append(first.arguments != {"entity": question.start, "relation": question.relations[0]})
    # A few random calls happen to be the expert's own.
    assert 0.17 < sum(is_random) / len(is_random) < 0.29


def test_the_same_rng_gives_the_same_demonstration():
    kg = family(FamilyOptions())
    task = kg.task("train", 5)
    first, again, other = (kg.demonstrate(task, Random(seed), noise=0.5) for seed in (1, 1, 2))
    assert first == again != other


@pytest.mark.parametrize("noise", [-0.1, 1.1, float("nan")])
def test_noise_out_of_range_is_refused(noise):
    kg = family(FamilyOptions())
    with pytest.raises(ConfigError, match="noise"):
        kg.demonstrate(kg.task("train", 0), Random(0), noise=noise)
