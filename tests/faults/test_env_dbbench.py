"""Environment faults in dbbench: shared state, leaks, acting on after the end, members that solve different tasks."""

import math
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from random import Random

import pytest

from agentrl_jax.env import Action, FamilyOptions, ToolCall
from agentrl_jax.errors import EnvError
from envs.dbbench import family
from envs.dbbench.calls import commit_call, sql_call


def started(dbbench, index=0):
    env = dbbench.make(dbbench.task("train", index))
    return env, env.reset()


def test_env_02_only_declared_tools_can_be_called():
    dbbench = family(FamilyOptions())
    assert [tool.name for tool in dbbench.tools] == ["execute_sql", "commit_final_answer"]
    for name in ("close", "reset", "step", "rows", "execute", "__init__", "_is_solved"):
        env, _ = started(dbbench)
        result = env.step(Action(calls=(ToolCall(name=name, arguments={"query": "SELECT 1"}),)))
        assert result.messages[0].content == "Invalid function call. Please call a tool instead."
        assert (result.reward, result.end) == (0.0, None)


@pytest.mark.parametrize("answers", [{"reward": 1.0}, math.nan, "[__import__('os')]", [["Oslo"]], {"answers": []}])
def test_env_09_arguments_that_pose_as_a_score_earn_nothing(answers):
    env, _ = started(family(FamilyOptions()))
    result = env.step(Action(calls=(ToolCall(name="commit_final_answer", arguments={"answers": answers}),)))
    assert result.reward == 0.0


def test_env_11_sessions_in_parallel_behave_as_one_after_the_other():
    dbbench = family(FamilyOptions(level=3))

    def play(index):
        return dbbench.demonstrate(dbbench.task("train", index), Random(index), noise=0.5)

    serial = list(map(play, range(48)))
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(play, range(48))) == serial


def test_env_14_what_one_session_changes_no_other_sees():
    dbbench = family(FamilyOptions())
    writers = [started(dbbench)[0] for _ in range(2)]
    for number, env in enumerate(writers):
        env.step(Action(calls=(sql_call(f"UPDATE people SET city = 'x{number}'"),)))
        env.step(Action(calls=(sql_call("CREATE TABLE extra (a INT)"),)))
    third, _ = started(dbbench)
    seen = third.step(Action(calls=(sql_call("SHOW TABLES"), sql_call("SELECT city FROM people"))))
    assert seen.messages[0].content == "[('people',)]"
    assert "x0" not in seen.messages[1].content
    for number, env in enumerate(writers):
        (own,) = env.step(Action(calls=(sql_call("SELECT DISTINCT city FROM people"),))).messages
        assert own.content == f"[('x{number}',)]"
        env.close()


def test_env_15_nothing_is_carried_out_after_the_commit():
    dbbench = family(FamilyOptions())
    index = next(i for i in range(50) if dbbench.problem(dbbench.task("train", i)).is_change)
    gold = dbbench.problem(dbbench.task("train", index)).gold
    env, _ = started(dbbench, index)
    result = env.step(Action(calls=(commit_call(()), sql_call(gold), commit_call(()))))
    assert result.reward == 0.0
    with pytest.raises(EnvError, match="is over"):
        env.step(Action(calls=(sql_call(gold),)))


@pytest.mark.parametrize("level", [1, 2, 3])
def test_env_16_members_of_a_group_begin_alike(level):
    dbbenches = [family(FamilyOptions(level=level)) for _ in range(2)]
    for index in range(5):
        openings, tables = set(), set()
        for dbbench in dbbenches * 4:
            env, messages = started(dbbench, index)
            openings.add(messages)
            tables.add(env.step(Action(calls=(sql_call("SELECT * FROM people"),))).messages)
            env.close()
        assert len(openings) == len(tables) == 1


def test_env_17_the_expert_earns_the_reward_and_a_random_policy_does_not():
    dbbench = family(FamilyOptions())
    rewards = {0.0: 0.0, 1.0: 0.0}
    for noise in rewards:
        for index in range(100):
            task = dbbench.task("train", index)
            shown = dbbench.demonstrate(task, Random(index), noise=noise)
            turns = [message.tool_calls for message in shown if message.role == "assistant"]
            # Without the turns in which even a random expert must answer.
            turns = turns if noise == 0.0 else turns[: dbbench.max_turns - 2]
            with closing(dbbench.make(task)) as env:
                env.reset()
                rewards[noise] += sum(env.step(Action(calls=calls)).reward for calls in turns) / 100
    assert rewards[0.0] == pytest.approx(1.0)
    assert rewards[1.0] < 0.2


def test_env_01_closed_sessions_leave_no_memory():
    dbbench = family(FamilyOptions())

    def play(count):
        for index in range(count):
            with closing(dbbench.make(dbbench.task("train", index % 4))) as env:
                env.reset()
                env.step(Action(calls=(sql_call("SELECT * FROM people"),)))

    play(20)
    tracemalloc.start()
    play(10)
    before, _ = tracemalloc.get_traced_memory()
    play(200)
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert after - before < 200 * 200  # a session keeps a hundred times as much
