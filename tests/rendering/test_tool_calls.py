"""Hermes calls: exact round trips, every malformed kind by hand, the two policies."""

import json
from time import thread_time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl_jax.env import Action, ToolCall
from agentrl_jax.rendering.call_formats import format_tool_call
from agentrl_jax.rendering.config import ToolCallFormat
from agentrl_jax.rendering.tool_calls import parse_tool_calls
from tests.rendering.chat import call, calls, json_values, texts


def parse(text: str, *, lenient: bool = False) -> Action:
    return parse_tool_calls(text, tool_calls="lenient" if lenient else "strict", declared={"look", "say"})


def block(payload: str) -> str:
    return f"<tool_call>\n{payload}\n</tool_call>"


GOOD = '{"name": "look", "arguments": {"room": "hall"}}'
HALL = call("look", room="hall")


def test_calls_and_text_by_hand() -> None:
    assert parse("hello") == Action(content="hello")
    assert parse(block(GOOD)) == Action(calls=(HALL,))
    assert parse(f"I look.\n{block(GOOD)}\n{block(GOOD)}") == Action(content="I look.", calls=(HALL, HALL))
    assert parse(f"a\n{block(GOOD)}b\n{block(GOOD)}\nc") == Action(content="ab\nc", calls=(HALL, HALL))
    assert parse(f"<tool_call>{GOOD}</tool_call>") == Action(calls=(HALL,))
    assert parse(f"<tool_call> \n\t{GOOD} \r\n</tool_call>") == Action(calls=(HALL,))


@given(st.lists(calls, min_size=1, max_size=4), texts)
def test_formatted_calls_are_parsed_exactly(made: list[ToolCall], content: str) -> None:
    text = content + "".join(f"\n{format_tool_call(one)}" for one in made)
    for lenient in (False, True):
        assert parse(text, lenient=lenient) == Action(content=content, calls=tuple(made))


@given(calls)
def test_any_json_spelling_of_a_call_means_the_same(made: ToolCall) -> None:
    value = {"arguments": dict(made.arguments), "name": made.name}
    for spelling in (json.dumps(value), json.dumps(value, indent=2), json.dumps(value, separators=(",", ":"))):
        assert parse(block(spelling)).calls == (made,)


MALFORMED = [
    ('{"a": 1', "invalid JSON: Expecting ',' delimiter (at character 9)"),
    ("", "invalid JSON: Expecting value (at character 1)"),
    ("look(hall)", "invalid JSON: Expecting value (at character 1)"),
    ("[" * 100_000, "invalid JSON: nested too deeply"),
    (
        '{"name": "look", "arguments": ' + '{"a": ' * 70 + "1" + "}" * 71,
        "invalid JSON: nested more than 64 levels deep",
    ),
    ('{"name": "look", "arguments": {"x": NaN}}', "invalid JSON: NaN is not JSON"),
    ('{"name": "look", "arguments": {"x": -Infinity}}', "invalid JSON: -Infinity is not JSON"),
    ('{"name": "look", "arguments": {"x": 1e999}}', "invalid JSON: 1e999 is too large for a number"),
    ('{"name": "look", "arguments": {"x": 1, "x": 2}}', "invalid JSON: key 'x' appears twice"),
    ('{"name": "a", "name": "b", "arguments": {}}', "invalid JSON: key 'name' appears twice"),
    ('{"name": "look", "arguments": {"x": "\\ud800"}}', "invalid JSON: a \\u escape is half of a surrogate pair"),
    ('{"name": "look", "arguments": {"x": "a\nb"}}', "invalid JSON: Invalid control character at (at character 39)"),
    ("[" + GOOD + "]", 'expected a JSON object with "name" and "arguments", got an array'),
    ('"look"', 'expected a JSON object with "name" and "arguments", got a string'),
    ('{"arguments": {}}', '"name" must be a non-empty string, got nothing'),
    ('{"name": "", "arguments": {}}', '"name" must be a non-empty string, got a string'),
    ('{"name": 3, "arguments": {}}', '"name" must be a non-empty string, got a number'),
    ('{"name": {"a": 1}, "arguments": {}}', '"name" must be a non-empty string, got an object'),
    ('{"name": "look"}', 'expected "arguments" beside "name"; use {} for a function without arguments'),
    ('{"name": "look", "arguments": null}', '"arguments" must be a JSON object, got nothing'),
    ('{"name": "look", "arguments": true}', '"arguments" must be a JSON object, got a boolean'),
    ('{"name": "look", "arguments": ["hall"]}', '"arguments" must be a JSON object, got an array'),
    ('{"name": "look", "arguments": "hall"}', "invalid JSON: Expecting value (at character 1)"),
    ('{"name": "look", "arguments": "[1]"}', '"arguments" must be a JSON object, got an array'),
    ('{"name": "look", "arguments": "{} x"}', '"arguments" must be one JSON object, got text behind it'),
    (GOOD + "}", "expected </tool_call> after the JSON object, got '}'"),
]


@pytest.mark.parametrize(("payload", "problem"), MALFORMED, ids=range(len(MALFORMED)))
def test_a_malformed_call_is_an_error_and_costs_no_other_call(payload: str, problem: str) -> None:
    action = parse(f"{block(payload)}\n{block(GOOD)}")
    assert action.errors == (f"tool call 1: {problem}",)
    assert action.calls == (HALL,)
    assert parse(f"{block(GOOD)}\n{block(payload)}").errors == (f"tool call 2: {problem}",)


def test_a_call_that_is_not_closed_is_an_error() -> None:
    assert parse(f"<tool_call>\n{GOOD}").errors == ("tool call 1: expected </tool_call> after the JSON object, got ''",)
    assert parse("<tool_call>").errors == ("tool call 1: invalid JSON: Expecting value (at character 1)",)
    action = parse(f"<tool_call>\n{GOOD}\n<tool_call>\n{GOOD}\n</tool_call>")
    assert (len(action.errors), action.calls) == (1, (HALL,))


def test_arguments_that_are_an_object_in_a_string_are_accepted() -> None:
    payload = json.dumps({"name": "look", "arguments": json.dumps({"room": "hall"})})
    assert parse(block(payload)) == Action(calls=(HALL,))
    payload = json.dumps({"name": "look", "arguments": '{"room": "hall", "room": "x"}'})
    assert parse(block(payload)).errors == ("tool call 1: invalid JSON: key 'room' appears twice",)


def test_a_refused_call_ends_where_its_json_does_whatever_its_strings_contain() -> None:
    refused = block('{"name": "look", "arguments": ["</tool_call>"]}')
    action = parse(f"{refused}\n{block(GOOD)}")
    assert (action.content, len(action.errors), action.calls) == ("", 1, (HALL,))
    text = 'look\n["<|assistant|>"]<|assistant|>look\n{"room": "hall"}'
    action = parse_tool_calls(text, tool_calls="strict", declared={"look"}, tool_call_format="glm4")
    assert (action.content, len(action.errors), action.calls) == ("", 1, (HALL,))


LLAMA = '{"name": "look", "parameters": {"room": "hall"}}'


@pytest.mark.parametrize(
    ("text", "action"),
    [
        (LLAMA, Action(calls=(HALL,))),
        (f"<|python_tag|>{LLAMA}", Action(calls=(HALL,))),
        (f"{LLAMA}; {LLAMA}\n{LLAMA};{LLAMA}", Action(calls=(HALL,) * 4)),
        (f"Hm. <|python_tag|>{LLAMA} Done.", Action(content="Hm.  Done.", calls=(HALL,))),
        ("I look.", Action(content="I look.")),
        ('{"room": "hall"}', Action(content='{"room": "hall"}')),
        (GOOD, Action(content=GOOD)),
        (
            "<|python_tag|>look.call(room='hall')",
            Action(errors=("tool call 1: invalid JSON: Expecting value (at character 1)",)),
        ),
        (
            f'{{"name": "look", "parameters": {{"room": 1}}; {LLAMA}',
            Action(errors=("tool call 1: invalid JSON: Expecting ',' delimiter (at character 43)",), calls=(HALL,)),
        ),
        ('{"name": 3}', Action(errors=('tool call 1: "name" must be a non-empty string, got a number',))),
    ],
)
def test_llama_calls_by_hand(text: str, action: Action) -> None:
    assert parse_tool_calls(text, tool_calls="strict", declared={"look"}, tool_call_format="llama3") == action


def test_llama_arguments_under_hermes_name_are_a_bare_call_of_a_declared_tool() -> None:
    action = parse_tool_calls(GOOD, tool_calls="lenient", declared={"look"}, tool_call_format="llama3")
    assert action == Action(calls=(HALL,), num_bare_calls=1)
    assert parse_tool_calls(GOOD, tool_calls="lenient", declared=(), tool_call_format="llama3").calls == ()


@pytest.mark.parametrize(
    ("text", "action"),
    [
        ('look\n{"room": "hall"}', Action(calls=(HALL,))),
        ('\nHm.<|assistant|>look\n{"room": "hall"}', Action(content="Hm.", calls=(HALL,))),
        ('unheard_of\n{}<|assistant|>look\n{"room": "hall"}', Action(calls=(call("unheard_of"), HALL))),
        ("\nlook\n{}", Action(content="look\n{}")),
        ("Hello there\n{}", Action(content="Hello there\n{}")),
        ("look", Action(errors=("tool call 1: invalid JSON: Expecting value (at character 1)",))),
        ('<|assistant|>look\n{"room": "hall"}', Action(calls=(HALL,))),
        ("look\n[1]", Action(errors=('tool call 1: "arguments" must be a JSON object, got an array',))),
    ],
)
def test_glm_calls_by_hand(text: str, action: Action) -> None:
    found = parse_tool_calls(text, tool_calls="strict", declared={"look"}, tool_call_format="glm4")
    assert found == action


def test_text_behind_a_glm_call_makes_it_an_error_and_costs_no_other_call() -> None:
    text = 'look\n{"room": "hall"} now<|assistant|>look\n{"room": "hall"}'
    found = parse_tool_calls(text, tool_calls="strict", declared=(), tool_call_format="glm4")
    assert found.errors[0].startswith("tool call 1: expected nothing after the JSON object of look, got 'now")
    assert found.calls == (HALL,)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("hermes", "\n".join(map(block, (GOOD, "1", "2")))),
        ("llama3", "; ".join((LLAMA, '{"name": 1}', '{"name": 2}'))),
        ("glm4", "<|assistant|>".join(('look\n{"room": "hall"}', "look\n1", "look\n2"))),
    ],
)
def test_an_error_says_which_call_of_the_turn_it_is(name: ToolCallFormat, text: str) -> None:
    action = parse_tool_calls(text, tool_calls="strict", declared={"look"}, tool_call_format=name)
    assert action.calls == (HALL,)
    assert [error.partition(":")[0] for error in action.errors] == ["tool call 2", "tool call 3"]


@given(
    st.lists(
        st.sampled_from([LLAMA, "<|python_tag|>", "<|assistant|>", "look\n", "{", "}", ";", "\n", "x"]), max_size=9
    )
)
def test_no_format_ever_raises_or_runs_anything(parts: list[str]) -> None:
    for name in ("llama3", "glm4"):
        action = parse_tool_calls("".join(parts), tool_calls="lenient", declared={"look"}, tool_call_format=name)  # type: ignore[arg-type]
        assert all(made.name and isinstance(made.arguments, dict) for made in action.calls)


THINKING = f"<think>\nI could say {block(GOOD)}\n</think>\n"


def test_what_is_only_thought_of_is_not_called() -> None:
    assert parse(f"{THINKING}No.") == Action(content=f"{THINKING}No.")
    assert parse(f"{THINKING}\n{block(GOOD)}") == Action(content=THINKING, calls=(HALL,))
    unclosed = THINKING.replace("</think>", "")
    assert parse(unclosed, lenient=True) == Action(content=unclosed)
    opened = THINKING.removeprefix("<think>\n")
    action = parse_tool_calls(opened, tool_calls="strict", declared=(), is_thinking=True)
    assert action == Action(content=opened)
    action = parse_tool_calls(f"</think>\n{block(GOOD)}", tool_calls="strict", declared=(), is_thinking=True)
    assert action == Action(content="</think>", calls=(HALL,))


def test_tags_inside_strings_belong_to_the_strings() -> None:
    made = call("say", text='</tool_call> } " \\ \n <tool_call> {"name": "look", "arguments": {}} 😀')
    assert parse(format_tool_call(made)).calls == (made,)


BARE = [
    GOOD,
    f"  \n{GOOD}\n ",
    f"```json\n{GOOD}\n```",
    f"```\n{GOOD}\n```",
    f"```tool_call\n  {GOOD}\n```\n",
]


@pytest.mark.parametrize("text", BARE)
def test_untagged_json_is_a_call_only_if_lenient(text: str) -> None:
    assert parse(text) == Action(content=text)
    action = parse(text, lenient=True)
    assert (action.content.strip(), action.calls, action.errors, action.num_bare_calls) == ("", (HALL,), (), 1)


def test_fenced_json_may_stand_in_prose_and_bare_json_may_not() -> None:
    action = parse(f"I will look.\n```json\n{GOOD}\n```\nThen:\n```json\n{GOOD}\n{GOOD}\n```", lenient=True)
    assert (action.content, action.num_bare_calls) == ("I will look.\nThen:", 3)
    text = f"For example {GOOD} would look."
    assert parse(text, lenient=True) == Action(content=text)
    assert parse(f"{GOOD}\n{GOOD}", lenient=True).calls == (HALL, HALL)


@pytest.mark.parametrize(
    "text",
    [
        '{"name": "unheard_of", "arguments": {}}',
        '{"room": "hall"}',
        f"{GOOD} and more",
        '{"name": "look", "arguments": {"x": NaN}}',
        '```python\nprint("look")\n```',
        "",
        "[]",
        "{",
    ],
)
def test_untagged_text_that_names_no_declared_tool_is_content(text: str) -> None:
    assert parse(text, lenient=True) == Action(content=text)


def test_an_untagged_call_of_a_declared_tool_with_bad_arguments_is_an_error() -> None:
    action = parse('{"name": "look", "arguments": "hall"}', lenient=True)
    assert action.calls == ()
    assert action.errors == ("tool call 1: invalid JSON: Expecting value (at character 1)",)


def test_tags_win_over_untagged_json() -> None:
    action = parse(f"```json\n{GOOD}\n```\n{block(GOOD)}", lenient=True)
    assert (action.calls, action.num_bare_calls, action.content) == ((HALL,), 0, f"```json\n{GOOD}\n```")


@given(
    st.lists(
        st.sampled_from(["<tool_call>", "</tool_call>", "\n", GOOD, "{", "}", '"', "```", "```json\n", "x"]),
        max_size=12,
    )
)
def test_parsing_never_raises(parts: list[str]) -> None:
    text = "".join(parts)
    for lenient in (False, True):
        action = parse(text, lenient=lenient)
        assert len(action.calls) + len(action.errors) <= text.count("<tool_call>") + text.count(GOOD)


@given(json_values)
def test_no_json_value_is_dispatched_unless_it_is_a_call(value: object) -> None:
    action = parse(block(json.dumps(value)))
    assert action.calls == ()
    assert len(action.errors) == 1


def test_every_bad_block_of_a_long_text_is_reported() -> None:
    action = parse("<tool_call>{" * 2_000)
    assert len(action.errors) == 2_000


def test_fences_that_are_opened_over_and_over_cost_a_pass_and_not_a_pass_each() -> None:
    text = "```json\n" * 10_000
    begun = thread_time()
    assert parse(text, lenient=True) == Action(content=text)
    assert parse(f"{text}{GOOD}\n```", lenient=True).calls == ()
    assert thread_time() - begun < 1.0  # a search from each of them takes ten times as long
