"""Environment faults, WebShop: shared state, other goals for members of a group, acting on after the end."""

from random import Random

import pytest

from agentrl_jax.env import Action, FamilyOptions, ToolCall
from agentrl_jax.errors import EnvError
from envs.webshop import family
from envs.webshop.calls import click_call, search_call


def started(shop, index=0):
    task = shop.task("train", index)
    env = shop.make(task)
    return env, env.reset()


def test_env_02_only_declared_tools_can_be_called():
    shop = family(FamilyOptions())
    for name in ("close", "reset", "step", "_carry_out", "__init__"):
        env, _ = started(shop)
        result = env.step(Action(calls=(ToolCall(name=name, arguments={}),)))
        assert result.messages[0].content.startswith("error: unknown tool")
        assert result.end is None


def test_env_14_what_one_session_chose_no_other_sees():
    shop = family(FamilyOptions())
    task = shop.task("train", 0)
    calls = [m.tool_calls for m in shop.demonstrate(task, Random(0), noise=0.0) if m.role == "assistant"]
    first, _ = started(shop)
    second, _ = started(shop)
    alone = [first.step(Action(calls=call)) for call in calls]
    third, opening = started(shop)
    assert opening == started(shop)[1]
    for call, result in zip(calls, alone, strict=True):
        assert third.step(Action(calls=call)) == result
    assert second.step(Action(calls=calls[0])) == alone[0]


def test_env_15_nothing_is_bought_twice():
    shop = family(FamilyOptions())
    product = shop.shop(shop.task("train", 0))[1].product
    env, _ = started(shop)
    env.step(Action(calls=(search_call(product.title),)))
    env.step(Action(calls=(click_call(product.asin),)))
    result = env.step(Action(calls=(click_call("buy now"), click_call("buy now"))))
    assert [message.content for message in result.messages] == ["done", "not executed: one action a turn"]
    with pytest.raises(EnvError, match="is over"):
        env.step(Action(calls=(click_call("buy now"),)))


def test_env_16_all_members_of_a_group_are_given_one_goal_and_its_actions():
    for index in range(10):
        openings = {started(family(FamilyOptions(seed=4)), index)[1] for _ in range(8)}
        (opening,) = openings
        assert "'clickables': ['search']" in opening[1].content


def test_env_17_the_golden_episode_earns_its_reward_and_an_idle_one_nothing():
    shop = family(FamilyOptions())
    for index in range(20):
        task = shop.task("eval", index)
        env = shop.make(task)
        env.reset()
        turns = [m.tool_calls for m in shop.demonstrate(task, Random(index), noise=0.0) if m.role == "assistant"]
        assert sum(env.step(Action(calls=calls)).reward for calls in turns) == 1.0
        idle = shop.make(task)
        idle.reset()
        assert all(idle.step(Action(calls=(click_call("buy now"),))).reward == 0.0 for _ in range(8))


@pytest.mark.parametrize("arguments", ['{"keywords": ', "[]"])
def test_tlc_03_malformed_calls_are_answered_and_the_episode_goes_on(arguments):
    env, _ = started(family(FamilyOptions()))
    result = env.step(Action(content=arguments, errors=("not JSON",)))
    assert [(message.role, message.content) for message in result.messages] == [("tool", "not JSON")]
    assert result.end is None
