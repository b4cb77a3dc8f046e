"""Environment faults, the knowledge graph with seven tools: shared lists, unordered lists, a server's hiccups."""

import os
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

from agentrl_jax.env import Action, FamilyOptions, ToolCall
from agentrl_jax.errors import EnvError
from envs.kg_tools import family
from envs.kg_tools.calls import tool_call
from envs.kg_tools.endpoint import Endpoint

ROOT = Path(__file__).resolve().parents[2]


def started(kg, index=0, split="train"):
    env = kg.make(kg.task(split, index))
    return env, env.reset()


def test_env_02_only_declared_tools_can_be_called():
    kg = family(FamilyOptions())
    for name in ("union", "close", "step", "_answer", "carry_out", "final_execute", "__init__"):
        env, _ = started(kg)
        result = env.step(Action(calls=(ToolCall(name=name, arguments={"variable": "#0"}),)))
        assert result.messages[0].content.startswith("Error processing tool call: unknown tool")
        assert result.end is None


def test_env_14_what_one_session_listed_no_other_knows():
    kg = family(FamilyOptions(level=2))
    for index in range(10):
        task = kg.task("train", index)
        calls = [m.tool_calls for m in kg.demonstrate(task, Random(0), noise=0.0) if m.tool_calls]
        (first, _), (second, _), (third, _) = (started(kg, index) for _ in range(3))
        alone = [first.step(Action(calls=made)) for made in calls]
        (refused,) = second.step(Action(calls=calls[1])).messages
        assert "must be one that get_relations listed" in refused.content
        assert [third.step(Action(calls=made)) for made in calls] == alone


def test_env_15_nothing_is_done_after_the_answer():
    kg = family(FamilyOptions())
    env, _ = started(kg)
    name = next(iter(kg.problem(kg.task("train", 0)).world.entities))
    (listed,) = env.step(Action(calls=(tool_call("get_relations", name),))).messages
    relation = listed.content.removeprefix("Observation: [").rstrip("]").split(", ")[0]
    env.step(Action(calls=(tool_call("get_neighbors", name, relation),)))
    env.step(Action(content="Final Answer: #0"))
    for action in (Action(content="Final Answer: #0"), Action(), Action(errors=("x",))):
        with pytest.raises(EnvError, match="is over"):
            env.step(action)


def test_env_16_members_of_a_group_and_processes_see_the_same_lists():
    script = (
        "from random import Random\n"
        "from agentrl_jax.env import FamilyOptions\n"
        "from envs.kg_tools import family\n"
        "kg = family(FamilyOptions(level=3, seed=5))\n"
        "print([m.content for i in range(20) for m in kg.demonstrate(kg.task('eval', i), Random(i), noise=0.0)])\n"
    )
    printed = {
        subprocess.run(
            [sys.executable, "-c", script],
            cwd=ROOT,
            env=os.environ | {"PYTHONHASHSEED": seed},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(printed) == 1
    assert "Observation: [" in printed.pop()


def test_env_17_the_golden_episode_earns_the_reward():
    kg = family(FamilyOptions(level=2))
    for index in range(20):
        env, _ = started(kg, index, "eval")
        messages = kg.demonstrate(kg.task("eval", index), Random(index), noise=0.0)
        turns = [Action(content=m.content, calls=m.tool_calls) for m in messages if m.role == "assistant"]
        assert sum(env.step(turn).reward for turn in turns) == 1.0


def test_an_endpoint_that_is_gone_costs_an_episode_and_no_process():
    with pytest.raises(EnvError, match="does not answer"):
        Endpoint(url="http://127.0.0.1:9/", timeout_s=1.0).session().relations(
            family(FamilyOptions()).problem(family(FamilyOptions()).task("train", 0)).gold
        )


def test_tlc_03_malformed_calls_are_answered_and_the_episode_goes_on():
    env, _ = started(family(FamilyOptions()))
    result = env.step(Action(content='{"a": 1', errors=("not JSON",)))
    assert [(message.role, message.content) for message in result.messages] == [("tool", "not JSON")]
    assert result.end is None


@pytest.mark.parametrize("name", ["GET_RELATIONS", "get_relations ", "union", ""])
def test_tlc_04_an_unknown_tool_gets_the_same_verdict_in_training_and_evaluation(name):
    action = Action(calls=(ToolCall(name=name, arguments={"variable": "Bob"}),))
    kg = family(FamilyOptions())
    results = [started(kg, split=split)[0].step(action) for split in ("train", "eval")]
    assert results[0] == results[1]
    assert results[0].end is None
