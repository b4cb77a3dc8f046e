"""Tool-call faults, the environment's side: malformed and made-up calls are answered, never fatal."""

import pytest

from agentrl_jax.env import Action, FamilyOptions, ToolCall
from envs.knowledge_graph import family
from envs.knowledge_graph.calls import answer_call


def live_env(split="train"):
    kg = family(FamilyOptions())
    task = kg.task(split, 0)
    env = kg.make(task)
    env.reset()
    return env, next(iter(kg.problem(task).question.answers))


def test_tlc_03_malformed_json_is_answered_by_a_tool_message_and_the_episode_goes_on():
    env, gold = live_env()
    result = env.step(Action(content='{"a": 1', errors=("not JSON",)))
    assert [(message.role, message.content) for message in result.messages] == [("tool", "not JSON")]
    assert (result.reward, result.end) == (0.0, None)
    assert env.step(Action(calls=(answer_call(gold),))).reward == 1.0


@pytest.mark.parametrize("name", ["search", "Query", "query ", "", "answer()"])
def test_tlc_04_an_unknown_tool_gets_the_same_verdict_in_training_and_evaluation(name):
    action = Action(calls=(ToolCall(name=name, arguments={"entity": "Bob", "relation": "boss"}),))
    results = [live_env(split)[0].step(action) for split in ("train", "eval")]
    assert results[0] == results[1]
    assert results[0].end is None
    assert results[0].messages[0].content == "error: unknown tool, use query or answer"
