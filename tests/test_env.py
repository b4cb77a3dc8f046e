"""The function-call interface: records that refuse what an env must not say, and the registry."""

import math

import pytest

from agentrl_jax.env import EnvRegistry, FamilyOptions, Message, StepResult, Tool, ToolCall
from agentrl_jax.errors import ConfigError, EnvError, RecordError
from agentrl_jax.types import EpisodeEnd


def test_tool_to_json_is_an_openai_function():
    parameters = {"type": "object", "properties": {"x": {"type": "string"}}, "required": ["x"]}
    tool = Tool(name="look", description="Look.", parameters=parameters)
    assert tool.to_json() == {
        "type": "function",
        "function": {"name": "look", "description": "Look.", "parameters": parameters},
    }


@pytest.mark.parametrize("role", ["system", "user", "tool"])
def test_only_an_assistant_message_carries_tool_calls(role):
    call = ToolCall(name="look", arguments={})
    assert Message(role="assistant", tool_calls=(call,)).tool_calls == (call,)
    with pytest.raises(RecordError, match=role):
        Message(role=role, tool_calls=(call,))


@pytest.mark.parametrize("end", list(EpisodeEnd))
def test_an_env_ends_its_episode_only_by_reasons_of_the_policy(end):
    if end.is_infrastructure:
        with pytest.raises(RecordError, match=end.value):
            StepResult(messages=(), end=end)
    else:
        assert StepResult(messages=(), end=end).end is end


@pytest.mark.parametrize("reward", [math.nan, math.inf, -math.inf])
def test_a_reward_that_is_not_finite_is_the_envs_fault(reward):
    with pytest.raises(EnvError, match="finite"):
        StepResult(messages=(), reward=reward)


def test_registry_knows_the_shipped_families_and_names_them_when_asked_for_another():
    from envs import register_all

    registry = EnvRegistry()
    register_all(registry)
    assert registry.make("kg", FamilyOptions()).name == "kg"
    with pytest.raises(ConfigError, match=r"'kgg'.*kg"):
        registry.make("kgg", FamilyOptions())
    with pytest.raises(ConfigError, match="registered twice"):
        register_all(registry)


def test_registry_imports_a_family_only_when_it_is_made():
    registry = EnvRegistry()
    registry.register("absent", "no.such.module:family")
    with pytest.raises(ModuleNotFoundError):
        registry.make("absent", FamilyOptions())


def test_an_empty_registry_says_so():
    with pytest.raises(ConfigError, match="none"):
        EnvRegistry().make("kg", FamilyOptions())
