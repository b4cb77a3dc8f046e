"""BFCL's rules on a small package of our own: programs, calls, the user's turns, and what passes."""

import json
import sys

import pytest

from agentrl_jax.env import Action, FamilyOptions, ToolCall, tools_for, traits_of
from agentrl_jax.errors import ConfigError, EnvError
from agentrl_jax.types import EpisodeEnd, Task
from envs.bfcl import BfclFamily, family
from envs.bfcl.entries import Entry, GoldCall, UserTurn, parse_call
from envs.bfcl.env import MAX_STEPS, BfclEnv
from envs.bfcl.package import find_package
from envs.bfcl.schema import BadArguments, check_arguments, tool_of


class Lamp:
    """A simulator as BFCL's are."""

    def __init__(self):
        self.is_on = False
        self._secret = 0

    def _load_scenario(self, scenario, long_context=False):
        self.is_on = scenario.get("is_on", False)
        self.notes = []
        self.is_long = long_context

    def switch(self, on):
        self.is_on = bool(on)
        return {"is_on": self.is_on}

    def note(self, texts, tag=None):
        self.notes.append((texts, tag))
        texts.append("kept")
        return f"{len(self.notes)} notes"

    def peek(self):
        return 3

    def fail(self, divisor):
        return 1 / divisor

    def power(self, exponent):
        return {"result": 10**exponent}

    def undocumented(self):
        self.is_on = True


def document(name, properties, required=()):
    return {
        "name": name,
        "description": f"{name} it",
        "parameters": {"type": "dict", "properties": properties, "required": list(required)},
        "response": {"type": "dict"},
    }


DOCUMENTS = [
    document("switch", {"on": {"type": "boolean", "description": "?"}}, ["on"]),
    document(
        "note",
        {"texts": {"type": "array", "items": {"type": "string"}}, "tag": {"type": "string", "default": "x"}},
        ["texts"],
    ),
    document("peek", {}),
    document("fail", {"divisor": {"type": "float"}}, ["divisor"]),
    document("power", {"exponent": {"type": "integer"}}, ["exponent"]),
]
TOOLS = {tool.name: tool for tool in map(tool_of, DOCUMENTS)}


class Package:
    def __init__(self, simulator=Lamp):
        self.simulators = {"Lamp": simulator}


def turn(text, *gold, added=()):
    return UserTurn(text=text, gold=tuple(map(parse_call, gold)), added=tuple(TOOLS[name] for name in added))


def entry(*turns, missing=()):
    return Entry(
        id="multi_turn_base_0",
        classes=("Lamp",),
        config={"Lamp": {"is_on": False}},
        turns=turns,
        tools=tuple(tool for name, tool in TOOLS.items() if name not in missing),
        functions=TOOLS,
        is_long_context=False,
    )


ONE = entry(turn("Light!", "switch(on=True)", "peek()"), turn("And off.", "switch(False)"))


def live_env(of=ONE):
    env = BfclEnv(Package(), of)
    env.reset()
    return env


def call(name, **arguments):
    return ToolCall(name=name, arguments=arguments)


def step(env, *calls, content=""):
    return env.step(Action(content=content, calls=calls))


def texts(result):
    return [(message.role, message.content) for message in result.messages]


def test_an_episode_goes_turn_by_turn_of_the_user_to_a_reward():
    env = BfclEnv(Package(), ONE)
    assert [message.role for message in env.reset()] == ["system", "user"]
    result = step(env, call("switch", on=True), call("peek"))
    assert texts(result) == [("tool", '{"is_on": true}'), ("tool", "3")]
    assert texts(step(env, content="Done.")) == [("user", "And off.")]
    step(env, call("switch", on=False))
    result = step(env)
    assert (result.reward, result.end, result.messages) == (1.0, EpisodeEnd.COMPLETED, ())
    assert result.metrics == {"user_turns_passed_frac": 1.0}
    with pytest.raises(EnvError, match="is over"):
        step(env)


@pytest.mark.parametrize(
    ("calls", "reward_goes_on"),
    [
        ([call("peek"), call("switch", on=True)], True),
        ([call("peek"), call("switch", on=False), call("switch", on=True), call("peek")], True),
        ([call("switch", on=True)], False),  # an answer is missing
        ([call("peek"), call("switch", on=True), call("switch", on=False)], False),  # the state is another
        ([call("peek"), call("switch", on=True), call("note", texts=["a"])], False),
        ([], False),
        ([call("undocumented"), call("peek")], False),
    ],
)
def test_a_turn_passes_by_state_and_answers(calls, reward_goes_on):
    env = live_env()
    if calls:
        step(env, *calls)
    result = step(env, content="ok")
    assert (result.end is None) is reward_goes_on
    assert result.reward == 0.0
    if not reward_goes_on:
        assert result.metrics == {"user_turns_passed_frac": 0.0}


def test_an_answer_of_an_earlier_turn_counts_but_each_answer_once():
    two = entry(turn("?", "peek()"), turn("?", "peek()"), turn("?", "peek()", "peek()"))
    env = live_env(two)
    step(env, call("peek"))
    assert step(env).end is None
    step(env, call("switch", on=False))
    assert step(env).end is None
    step(env, call("switch", on=False))
    assert step(env).end is EpisodeEnd.COMPLETED


def test_a_turn_with_gold_calls_needs_some_call_of_its_own():
    env = live_env(entry(turn("?", "peek()"), turn("?", "peek()")))
    step(env, call("peek"))
    step(env)
    assert step(env).reward == 0.0


def test_a_turn_that_cannot_be_done_passes_and_functions_come_later():
    later = entry(turn("Note it."), turn("", "note(texts=['a'])", added=["note"]), missing=["note"])
    env = live_env(later)
    (message,) = step(env, content="No function does that.").messages
    first, function, last = message.content.split("\n")
    assert (message.role, first, last) == ("user", "There are more functions now:", "Try again with them.")
    assert json.loads(function) == TOOLS["note"].to_json()
    step(env, call("note", texts=["a"]))
    assert step(env).reward == 1.0


@pytest.mark.parametrize(
    ("made", "text"),
    [
        (call("undocumented"), "error: unknown function"),
        (call("_load_scenario", scenario={}), "error: unknown function"),
        (call("__init__"), "error: unknown function"),
        (call("switch"), "error: switch needs on"),
        (call("switch", on=True, to="x"), "error: switch takes only on"),
        (call("peek", x=1), "error: peek takes only no arguments"),
        (call("note", texts="a"), "error: texts must be of type array"),
        (call("note", texts=[["a"]]), "error: texts must be of type array"),
        (call("note", texts={"a": 1}), "error: texts must be of type array"),
        (call("switch", on=[]), "error: on must be of type boolean"),
        (call("fail", divisor=0), "Error during execution: division by zero"),
        (call("fail", divisor="x"), "Error during execution: unsupported operand type(s) for /: 'int' and 'str'"),
        (call("fail", divisor=None), "Error during execution: unsupported operand type(s) for /: 'int' and 'NoneType'"),
    ],
)
def test_bad_calls_are_answered_and_reach_no_other_function(made, text):
    env = live_env()
    assert texts(step(env, made)) == [("tool", text)]
    step(env, call("peek"), call("switch", on=True))
    assert step(env).end is None


def test_a_number_with_too_many_digits_is_the_policys_matter():
    (large, small) = texts(step(live_env(), call("power", exponent=5000), call("power", exponent=2)))
    assert large[1].startswith("Error during execution: Exceeds the limit")
    assert small[1] == '{"result": 100}'


def test_malformed_calls_are_answered_and_do_not_end_the_users_turn():
    env = live_env()
    assert texts(env.step(Action(content="x", errors=("not JSON",)))) == [("tool", "not JSON")]
    result = env.step(Action(calls=(call("peek"), call("switch", on=True)), errors=("not JSON",)))
    assert len(result.messages) == 3
    assert step(env).end is None


def test_too_many_steps_in_one_turn_end_the_episode():
    env = live_env()
    ends = [step(env, call("peek")).end for _ in range(MAX_STEPS + 1)]
    assert ends == [None] * MAX_STEPS + [EpisodeEnd.MAX_TURNS]


def test_programs_get_copies_of_what_the_policy_wrote():
    env = live_env(entry(turn("?", "note(['a'])")))
    made = call("note", texts=["a"])
    step(env, made)
    assert made.arguments == {"texts": ["a"]}
    assert step(env).reward == 1.0


def test_sessions_share_no_programs():
    first, second = live_env(), live_env()
    step(first, call("switch", on=True), call("peek"))
    step(second, call("peek"))
    assert step(first).end is None
    assert step(second).end is EpisodeEnd.COMPLETED


def test_a_simulator_that_lacks_a_documented_function_is_refused():
    with pytest.raises(ConfigError, match="lack peek"):
        BfclEnv(Package(type("Bare", (Lamp,), {"peek": None})), ONE)


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("f(1, 'a', x=[True, {'k': 2.5}])", ("f", (1, "a"), {"x": [True, {"k": 2.5}]})),
        ("f()", ("f", (), {})),
        ("f(-1.5, y=None)", ("f", (-1.5,), {"y": None})),
    ],
)
def test_gold_calls_are_parsed(text, parsed):
    name, positional, named = parsed
    assert parse_call(text) == GoldCall(name=name, positional=positional, named=named)


def test_documents_become_json_schema():
    made = tool_of(
        document("f", {"a": {"type": "float"}, "b": {"type": "dict", "properties": {"c": {"type": "float"}}}})
    )
    assert made.parameters["type"] == "object"
    assert made.parameters["properties"] == {
        "a": {"type": "number"},
        "b": {"type": "object", "properties": {"c": {"type": "number"}}},
    }
    check_arguments(made, {"a": 1, "b": {"anything": []}})
    with pytest.raises(BadArguments):
        check_arguments(made, {"b": 1})


def test_a_family_is_a_benchmark_whose_tasks_have_tools_of_their_own():
    bfcl = BfclFamily(package=Package(), entries=[ONE, entry(turn("?"), missing=["note"])], seed=0)
    assert (bfcl.num_tasks("train"), bfcl.num_tasks("eval")) == (0, 2)
    assert traits_of(bfcl).session_kind == "process"
    first, second = (bfcl.task("eval", index) for index in (0, 1))
    assert tools_for(bfcl, first) == tuple(TOOLS.values())
    assert [tool.name for tool in tools_for(bfcl, second)] == ["switch", "peek", "fail", "power"]
    assert tools_for(bfcl, second) is tools_for(bfcl, second)
    with pytest.raises(EnvError, match="has no train tasks, asked for 0"):
        bfcl.task("train", 0)
    with pytest.raises(EnvError, match="cannot make"):
        bfcl.make(Task(env="kg", split="eval", index=0, seed=0))


def test_what_is_refused(tmp_path, monkeypatch):
    with pytest.raises(ConfigError, match="has no levels"):
        family(FamilyOptions(level=2))
    with pytest.raises(ConfigError, match=r"expects the package bfcl-eval in .*tools/install_bfcl.sh"):
        family(FamilyOptions(data=tmp_path))
    monkeypatch.setattr("envs.bfcl.package.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="needs the package bfcl-eval"):
        find_package(None)
    (tmp_path / "bfcl_eval").mkdir()
    with pytest.raises(ConfigError, match="lacks the simulator"):
        find_package(tmp_path)
    assert str(tmp_path) not in sys.path
