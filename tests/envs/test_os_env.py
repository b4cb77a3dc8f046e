"""OS tasks: calls, what the agent reads, scripts that prepare and grade, and the episode."""

from contextlib import closing

import pytest

from agentrl_jax.env import Action, FamilyOptions, ToolCall
from agentrl_jax.errors import ConfigError, EnvError
from agentrl_jax.types import EpisodeEnd, Task
from envs.os_interaction import family
from envs.os_interaction.calls import TOOLS, BadCall, answer_call, argument_of, bash_call, finish_call
from envs.os_interaction.chores import Chore, Match, Script
from envs.os_interaction.env import DONE, GONE, NO_CALL, NOT_EXECUTED, SYSTEM, OsEnv
from envs.os_interaction.grading import is_solved
from envs.os_interaction.outputs import EMPTY, TRUNCATED, shown
from envs.sandbox.protocol import Ran, SandboxGone
from tests.envs.sandbox_world import bubblewrap_driver

INTEGER = Script(language="python", code="from sys import argv\nif int(argv[1]) == int(argv[2]): exit(0)\nexit(1)")
FIVE = Script(language="bash", code="echo 5")


def bash(code):
    return Script(language="bash", code=code)


def ran(text, num_bytes=None, **rest):
    output = text.encode()
    return Ran(output=output, num_bytes=len(output) if num_bytes is None else num_bytes, exit_code=0, **rest)


class FakeSandbox:
    """Answers by what it is told, and remembers what was asked."""

    def __init__(self, answers=(), is_gone=False):
        self.answers, self.is_gone, self.asked, self.is_closed = list(answers), is_gone, [], False

    def _next(self, *asked):
        self.asked.append(asked)
        if self.is_gone:
            raise SandboxGone("broken")
        return self.answers.pop(0) if self.answers else ran("")

    def run(self, command, *, timeout_s):
        return self._next("run", command)

    def execute(self, argv, *, timeout_s, is_trusted=False, keeps_errors=True):
        return self._next("execute", tuple(argv), is_trusted, keeps_errors)

    def seal(self):
        self._next("seal")

    def freeze(self):
        self._next("freeze")

    def close(self):
        self.is_closed = True


# Calls.


def test_the_tools_are_those_of_agentbench():
    shapes = {tool.name: tool.parameters["required"] for tool in TOOLS}
    assert shapes == {"bash_action": ["script"], "finish_action": ["thought"], "answer_action": ["answer"]}
    assert all(tool.parameters["additionalProperties"] is False for tool in TOOLS)


@pytest.mark.parametrize(
    ("name", "arguments", "expected"),
    [
        ("bash_action", {"script": "ls"}, "ls"),
        ("bash_action", {"command": "ls", "x": "y"}, "ls"),
        ("answer_action", {"answer": 12}, "12"),
        ("answer_action", {"x": "y", "answer": "a"}, "a"),
        ("finish_action", {}, ""),
        ("finish_action", {"thought": "t"}, "t"),
    ],
)
def test_arguments_are_read_leniently(name, arguments, expected):
    assert argument_of(ToolCall(name=name, arguments=arguments)) == expected


@pytest.mark.parametrize(
    ("name", "arguments", "text"),
    [
        ("bash_action", {}, "error: bash_action needs the string script"),
        ("bash_action", {"script": ["ls"]}, "error: bash_action needs the string script"),
        ("answer_action", {"answer": None}, "error: answer_action needs the string answer"),
        ("close", {"x": "y"}, "error: unknown tool"),
    ],
)
def test_bad_calls_are_answered(name, arguments, text):
    with pytest.raises(BadCall, match=text):
        argument_of(ToolCall(name=name, arguments=arguments))


# What the agent reads.


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (ran(""), EMPTY),
        (ran(" \n\n"), EMPTY),
        (ran("a\n"), "The output of the OS:\n\na"),
        (ran("\x1b[1;31mred\x1b[0m \x1b]0;title\x07x\x08\r\n"), "The output of the OS:\n\nred x"),
        (ran("x" * 800), f"The output of the OS:\n\n{'x' * 800}"),
        (ran("x" * 801), f"The output of the OS:\n\n{'x' * 780}\n{TRUNCATED}"),
        (ran("x" * 100, num_bytes=10**9), f"The output of the OS:\n\n{'x' * 100}\n{TRUNCATED}"),
        (ran("a", stopped="its time is up"), "The output of the OS:\n\na\n[stopped: its time is up]"),
        (ran("", stopped="its time is up"), "The output of the OS:\n\n[stopped: its time is up]"),
        (Ran(output=b"\xff", num_bytes=1, exit_code=0), "The output of the OS:\n\n\N{REPLACEMENT CHARACTER}"),
    ],
)
def test_outputs_are_shown_in_the_published_words(given, expected):
    assert shown(given) == expected


# What is right.


@pytest.mark.parametrize(
    ("match", "answer", "expected"),
    [
        (Match(answer="a"), " a\n", True),
        (Match(answer="a"), "b", False),
        (Match(answer="a", is_stripped=False), "a ", False),
        (Match(answer="a ", is_stripped=False), "a ", True),
        (Match(pattern="^[0-9]+$"), "12", True),
        (Match(pattern="^[0-9]+$"), "x12", False),
    ],
)
def test_answers_match(match, answer, expected):
    assert match.is_right(answer) is expected
    assert is_solved(FakeSandbox(is_gone=True), Chore(description="", match=match), answer) is expected


def test_checks_are_given_the_answer_and_the_outputs_before_them():
    sandbox = FakeSandbox([ran(""), ran("first\n"), ran("second"), ran("")])
    chore = Chore(description="", checks=(None, bash("b"), INTEGER), example=bash("e"))
    assert is_solved(sandbox, chore, "a\0b")
    assert sandbox.asked[0] == ("freeze",)
    assert sandbox.asked[1] == ("execute", ("/bin/bash", "-c", "e", "--", "ab"), True, False)
    assert sandbox.asked[2] == ("execute", ("/bin/bash", "-c", "b", "--", "ab", "first\n"), True, False)
    _, argv, is_trusted, keeps_errors = sandbox.asked[3]
    assert (argv[0], argv[-4:]) == ("/usr/bin/python3", (INTEGER.code, "ab", "first\n", "second"))
    assert (is_trusted, keeps_errors) == (True, False)


def test_as_published_checks_run_beside_what_is_left():
    sandbox = FakeSandbox([ran("5"), ran("")])
    assert is_solved(sandbox, Chore(description="", checks=(None, INTEGER), example=FIVE), "5", upstream_compat=True)
    assert sandbox.asked == [
        ("execute", ("/bin/bash", "-c", "echo 5", "--", "5"), False, True),
        ("execute", ("/usr/bin/python3", "-c", INTEGER.code, "5", "5"), False, True),
    ]


@pytest.mark.parametrize("code", [1, 2, None])
def test_the_first_check_that_fails_decides(code):
    failed = Ran(output=b"", num_bytes=0, exit_code=code)
    sandbox = FakeSandbox([ran(""), failed])
    assert not is_solved(sandbox, Chore(description="", checks=(FIVE, FIVE)), "5")
    assert len(sandbox.asked) == 2


def test_a_broken_machine_is_no_solution():
    assert not is_solved(FakeSandbox(is_gone=True), Chore(description="", checks=(FIVE,)), "5")


def test_tasks_must_say_what_is_right():
    with pytest.raises(ConfigError, match="checks or a match"):
        Chore(description="")
    with pytest.raises(ConfigError, match="example"):
        Chore(description="", checks=(None,))
    with pytest.raises(ConfigError, match="regular expression"):
        Match(pattern="(")
    with pytest.raises(ConfigError, match="perl"):
        Script(language="perl", code="")


# Episodes.


def env_of(chore, sandbox=None, **options):
    sandbox = sandbox or FakeSandbox()
    return OsEnv(chore, lambda image, limits: sandbox, **options), sandbox


CHORE = Chore(description="How many?", match=Match(answer="5"), init=(bash("touch x"),), start=bash("cd /"))


def test_the_opening_is_the_published_one():
    env, sandbox = env_of(CHORE, seed=3)
    system, user = env.reset()
    assert (system.role, system.content) == ("system", SYSTEM)
    assert user.content == "Now, I will start a new problem in a new OS. My problem is:\n\nHow many?"
    assert sandbox.asked == [
        ("execute", ("/bin/bash", "-c", "RANDOM=3\ntouch x"), False, True),
        ("run", "cd /"),
        ("seal",),
    ]
    env.close()
    assert sandbox.is_closed


def test_only_the_first_call_is_carried_out():
    env, sandbox = env_of(CHORE)
    env.reset()
    result = env.step(Action(calls=(bash_call("a"), bash_call("b"), answer_call("5")), errors=("bad",)))
    assert [message.content for message in result.messages] == [EMPTY, NOT_EXECUTED, NOT_EXECUTED, "bad"]
    assert [asked for asked in sandbox.asked if asked[0] == "run"] == [("run", "cd /"), ("run", "a")]
    result = env.step(Action(calls=(answer_call("5"), bash_call("b"))))
    assert (result.reward, result.end) == (1.0, EpisodeEnd.COMPLETED)
    assert [message.content for message in result.messages] == [DONE, NOT_EXECUTED]
    with pytest.raises(EnvError, match="is over"):
        env.step(Action(calls=(answer_call("5"),)))


def test_as_published_other_calls_and_the_last_are_not_answered():
    env, sandbox = env_of(CHORE, upstream_compat=True, seed=3)
    env.reset()
    assert sandbox.asked[0] == ("execute", ("/bin/bash", "-c", "touch x"), False, True)
    result = env.step(Action(calls=(bash_call("a"), bash_call("b"))))
    assert [message.content for message in result.messages] == [EMPTY]
    assert env.step(Action(calls=(answer_call("5"),))).messages == ()


@pytest.mark.parametrize(
    ("call", "reward"), [(finish_call("5"), 1.0), (finish_call("no"), 0.0), (answer_call("6"), 0.0)]
)
def test_a_thought_counts_as_the_answer(call, reward):
    env, _ = env_of(CHORE)
    env.reset()
    assert env.step(Action(calls=(call,))).reward == reward


def test_a_turn_without_a_call_is_answered_by_the_user():
    env, _ = env_of(CHORE)
    env.reset()
    (message,) = env.step(Action(content="hm")).messages
    assert (message.role, message.content) == ("user", NO_CALL)
    assert [m.content for m in env.step(Action(errors=("x", "y"))).messages] == ["x", "y"]


def test_a_machine_that_the_agent_has_broken_is_an_observation_and_then_a_failure():
    env, sandbox = env_of(Chore(description="", checks=(FIVE,)))
    env.reset()
    sandbox.is_gone = True
    result = env.step(Action(calls=(bash_call("rm -rf /"),)))
    assert (result.messages[0].content, result.end) == (GONE, None)
    assert env.step(Action(calls=(answer_call("5"),))).reward == 0.0


def test_a_machine_that_cannot_be_prepared_is_the_envs_fault():
    late = Ran(output=b"", num_bytes=0, exit_code=None, stopped="its time is up")
    env, sandbox = env_of(CHORE, FakeSandbox([late]))
    with pytest.raises(EnvError, match="its time is up"):
        env.reset()
    env.close()
    assert sandbox.is_closed
    with pytest.raises(EnvError, match="broke its machine"):
        env_of(CHORE, FakeSandbox(is_gone=True))[0].reset()


# On real machines.


@pytest.fixture(scope="module")
def driver():
    with closing(bubblewrap_driver()) as found:
        yield found


def play(driver, chore, *calls, **options):
    with closing(OsEnv(chore, driver.open, **options)) as env:
        env.reset()
        return [env.step(Action(calls=(call,))) for call in calls]


def test_state_stays_from_turn_to_turn_and_start_is_in_the_same_shell(driver):
    chore = Chore(description="", match=Match(answer="3"), start=bash("var=3; mkdir /data; cd /data"))
    results = play(driver, chore, bash_call("echo $var; pwd; echo x > y"), bash_call("ls"), answer_call("3"))
    assert [r.messages[0].content for r in results] == [
        "The output of the OS:\n\n3\n/data",
        "The output of the OS:\n\ny",
        DONE,
    ]
    assert results[-1].reward == 1.0


def test_what_start_has_begun_goes_on(driver):
    chore = Chore(description="", match=Match(answer="1"), start=bash("while :; do echo x >> log; sleep 0.05; done &"))
    first, second, _ = play(
        driver, chore, bash_call("sleep 0.3; wc -l < log"), bash_call("sleep 0.3; wc -l < log"), answer_call("")
    )
    counts = [int(result.messages[0].content.split()[-1]) for result in (first, second)]
    assert 0 < counts[0] < counts[1]


def test_a_slow_command_is_an_observation(driver):
    chore = Chore(description="", match=Match(answer="1"))
    first, second = play(driver, chore, bash_call("echo a; sleep 100"), bash_call("echo b"), command_limit_s=0.5)
    assert first.messages[0].content == "The output of the OS:\n\na\n[stopped: its time is up]"
    assert second.messages[0].content == "The output of the OS:\n\nb"


def test_all_instances_of_a_task_draw_the_same(driver):
    chore = Chore(description="", match=Match(answer="1"), init=(bash("echo $RANDOM $RANDOM > drawn"),))
    seen = [play(driver, chore, bash_call("cat drawn"), seed=seed)[0].messages[0].content for seed in (1, 1, 2)]
    assert seen[0] == seen[1] != seen[2]


def test_changes_are_checked_in_the_machine(driver):
    chore = Chore(description="", init=(bash("touch a"),), checks=(bash("[ -e b ] && [ ! -e a ]"),))
    assert play(driver, chore, bash_call("mv a b"), finish_call(""))[-1].reward == 1.0
    assert play(driver, chore, bash_call("cp a b"), finish_call(""))[-1].reward == 0.0


def test_the_answer_reaches_the_checks_as_it_is(driver):
    odd = 'it\'s $HOME `id` "x" \\ \N{SNOWMAN}\n'
    chore = Chore(description="", checks=(Script(language="python", code=f"import sys\nexit(sys.argv[1] != {odd!r})"),))
    assert play(driver, chore, answer_call(odd))[-1].reward == 1.0
    assert play(driver, chore, answer_call(odd.strip()))[-1].reward == 0.0
    assert play(driver, chore, answer_call("x" * 300_000))[-1].reward == 0.0


def test_python_scripts_run_as_those_of_a_command_line_do(driver):
    code = "import re\ndef f():\n  return re.sub('a', 'b', 'a')\nassert (f(), __name__) == ('b', '__main__')\nquit(0)"
    chore = Chore(description="", checks=(Script(language="python", code=code),))
    assert play(driver, chore, answer_call(""))[0].reward == 1.0
    chore = Chore(description="", checks=(Script(language="python", code="raise ValueError"),))
    assert play(driver, chore, answer_call(""))[0].reward == 0.0


# The family.


@pytest.fixture(scope="module")
def chores(driver):
    return family(FamilyOptions(sandbox="bubblewrap"))


def test_the_family_says_that_it_needs_a_sandbox(chores):
    assert chores.traits.needs_sandbox
    assert chores.traits.services == ()


def test_strangers_and_levels_are_refused(chores, driver):
    with pytest.raises(EnvError, match="cannot make"):
        chores.make(Task(env="kg", split="eval", index=0, seed=0))
    with pytest.raises(ConfigError, match="levels 1, 2, 3"):
        family(FamilyOptions(level=4))
    with pytest.raises(ConfigError, match="--sandbox must be"):
        family(FamilyOptions(sandbox="chroot"))
