"""Environment and security faults, shell tasks: leaks, orphans, shared state, scores within the agent's reach."""

import threading
from contextlib import closing
from random import Random

import pytest

from agentrl_jax.env import Action, FamilyOptions, ToolCall
from agentrl_jax.errors import EnvError
from envs.os_interaction import family
from envs.os_interaction.calls import answer_call, bash_call, finish_call
from envs.os_interaction.chores import Chore, Script
from envs.os_interaction.env import OsEnv
from tests.envs.sandbox_world import bubblewrap_driver, cgroup_folders, command_of, is_alive, processes_in


@pytest.fixture(scope="module")
def driver():
    with closing(bubblewrap_driver()) as found:
        yield found


@pytest.fixture(scope="module")
def chores(driver):
    return family(FamilyOptions(sandbox="bubblewrap"))


def started(chores, index=0):
    env = chores.make(chores.task("train", index))
    return env, env.reset()


CHECKED = Chore(
    description="",
    checks=(Script(language="bash", code='[ "$1" = right ]'),),
)


def play_and_leave_processes(driver, chore):
    """What an episode leaves running is gone with it, and so is all that its session had; returns how many ran."""
    keeper = driver._keeper.pid
    before = [path for folder in cgroup_folders(keeper) for path in folder.iterdir() if path.is_dir()]
    env = OsEnv(chore, driver.open)
    env.reset()
    env.step(Action(calls=(bash_call("sleep 1000 & setsid sleep 1000 & nohup sleep 1000 &"),)))
    # Until they are what they are called.
    all_are = 'until [ "$(cat /proc/[0-9]*/comm 2>/dev/null | grep -cx sleep)" = 3 ]; do :; done'
    env.step(Action(calls=(bash_call(all_are),)))
    pids = [pid for pid in processes_in(cgroup_folders(keeper)) if command_of(pid) == "sleep"]
    env.close()
    assert not any(map(is_alive, pids))
    assert [path for folder in cgroup_folders(keeper) for path in folder.iterdir() if path.is_dir()] == before
    return len(set(pids))


def test_env_01_nothing_runs_after_an_episode(driver):
    assert play_and_leave_processes(driver, CHECKED) == 3


def test_env_05_nothing_runs_after_an_episode_whose_sandbox_was_killed(driver):
    broken = Script(language="bash", code="kill -9 -1; sleep 5 & ")
    play_and_leave_processes(driver, Chore(description="", checks=CHECKED.checks, init=(broken,)))


def test_env_02_only_declared_tools_can_be_called(chores):
    for name in ("close", "reset", "step", "_carry_out", "__init__"):
        env, _ = started(chores)
        with closing(env):
            result = env.step(Action(calls=(ToolCall(name=name, arguments={"x": "y"}),)))
            assert result.messages[0].content.startswith("error: unknown tool")
            assert result.end is None


def test_env_03_what_a_scorer_starts_does_not_outlive_the_episode(driver):
    script = "sleep 2222 & setsid sleep 2222 & exit 0"
    with closing(OsEnv(Chore(description="", checks=(Script(language="bash", code=script),)), driver.open)) as env:
        env.reset()
        assert env.step(Action(calls=(finish_call(""),))).reward == 1.0
        pids = [pid for pid in processes_in(cgroup_folders(driver._keeper.pid)) if command_of(pid) == "sleep"]
    assert not any(map(is_alive, pids))


def test_env_14_sessions_of_one_task_do_not_see_each_other(chores):
    (one, _), (other, _) = started(chores), started(chores)
    with closing(one), closing(other):
        one.step(Action(calls=(bash_call("rm -f *; echo mine > /usr/mine"),)))
        seen = other.step(Action(calls=(bash_call("ls; ls /usr/mine"),))).messages[0].content
        third, _ = started(chores)
        with closing(third):
            assert third.step(Action(calls=(bash_call("ls; ls /usr/mine"),))).messages[0].content == seen


def test_env_15_nothing_is_done_after_the_end(chores):
    env, _ = started(chores)
    with closing(env):
        env.step(Action(calls=(answer_call("x"),)))
        for call in (bash_call("ls"), answer_call("x")):
            with pytest.raises(EnvError, match="is over"):
                env.step(Action(calls=(call,)))


def test_env_16_members_of_a_group_begin_alike(chores):
    found = []

    def begin():
        env, opening = started(chores, 3)
        with closing(env):
            found.append((opening, env.step(Action(calls=(bash_call("head *"),))).messages))

    threads = [threading.Thread(target=begin) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    assert all(each == found[0] for each in found)


def test_env_17_the_golden_episode_earns_its_reward_and_an_idle_one_nothing(chores):
    for index in range(6):
        task = chores.task("eval", index)
        shown = chores.demonstrate(task, Random(index), noise=0.0)
        turns = [m.tool_calls for m in shown if m.role == "assistant"]
        with closing(chores.make(task)) as env:
            env.reset()
            assert sum(env.step(Action(calls=calls)).reward for calls in turns) == 1.0
        with closing(chores.make(task)) as env:
            env.reset()
            assert env.step(Action(calls=(finish_call(""),))).reward == 0.0


@pytest.mark.parametrize(
    "command",
    [
        "echo 1 > reward.txt; echo '{\"reward\": 1}' > /tmp/reward",
        "alias [=true; [() { return 0; }; export -f [",
        "ln -sf /bin/true /usr/local/bin/[; ln -sf /bin/true /usr/local/sbin/bash",
        "(while :; do for p in /proc/[0-9]*; do kill -STOP ${p#/proc/}; done; done) 2>/dev/null &",
        "trap 'exit 0' EXIT; exec 2>/dev/null",
    ],
)
def test_env_09_the_agent_cannot_write_its_score(driver, command):
    with closing(OsEnv(CHECKED, driver.open, command_limit_s=3.0)) as env:
        env.reset()
        env.step(Action(calls=(bash_call(command),)))
        assert env.step(Action(calls=(answer_call("wrong"),))).reward == 0.0


def test_tlc_03_malformed_calls_are_answered_and_the_episode_goes_on(chores):
    env, _ = started(chores)
    with closing(env):
        result = env.step(Action(content='{"script": ', errors=("not JSON",)))
        assert [(m.role, m.content) for m in result.messages] == [("tool", "not JSON")]
        assert result.end is None
