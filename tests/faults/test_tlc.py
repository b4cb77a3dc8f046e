"""TLC: tool-call parsing. Each test is one published fault."""

from agentrl_jax.env import Action
from agentrl_jax.rendering.call_formats import format_tool_call
from agentrl_jax.rendering.config import RenderingConfig
from agentrl_jax.rendering.tool_calls import parse_tool_calls
from agentrl_jax.rendering.transcript import TemplateRenderer
from tests.rendering.chat import TOOLS, assistant, call, small_folder, small_renderer

GOOD = '<tool_call>\n{"name": "look", "arguments": {"room": "hall"}}\n</tool_call>'


def parse(text: str) -> Action:
    return parse_tool_calls(text, tool_calls="strict", declared=())


def test_tlc_01_a_malformed_call_does_not_discard_the_good_ones() -> None:
    action = parse(f"<tool_call>\n<function=foo<parameter=a>1\n</tool_call>\n{GOOD}")
    assert action.calls == (call("look", room="hall"),)
    assert len(action.errors) == 1
    # No tools declared at all, and a bad call without a closing tag: still one call.
    assert parse(f"<tool_call>{{bad\n{GOOD}").calls == (call("look", room="hall"),)


def test_tlc_03_malformed_json_is_an_error_text_for_the_policy() -> None:
    action = parse('<tool_call>\n{"a": 1\n</tool_call>')
    assert action.calls == ()
    assert action.errors == ("tool call 1: invalid JSON: Expecting ',' delimiter (at character 9)",)


def test_tlc_04_an_unknown_tool_is_a_call_under_every_policy_and_renderer() -> None:
    made = call("hallucinated", x=1)
    turn = small_renderer().encode_turn(assistant("", made))
    for policy in ("strict", "lenient"):
        for tools in ((), TOOLS):
            renderer = TemplateRenderer(small_folder(), tools=tools, config=RenderingConfig(tool_calls=policy))
            assert renderer.parse(turn) == Action(calls=(made,))


def test_tlc_06_every_call_of_a_turn_is_parsed_in_order() -> None:
    made = tuple(call("look", room=str(number)) for number in range(5))
    assert parse("\n".join(map(format_tool_call, made))).calls == made


def test_tlc_12_keys_beside_name_and_arguments_never_reach_the_tool() -> None:
    text = '<tool_call>{"name": "look", "arguments": {"room": "x"}, "timeout": 9, "id": "c1"}</tool_call>'
    assert parse(text) == Action(calls=(call("look", room="x"),))


def test_tlc_13_quotes_escapes_and_tags_inside_arguments_are_exact() -> None:
    made = call(
        "say", sql='SELECT "a\\b"\nFROM t -- }', tag="</tool_call>", emoji="😀é\u2028", nested={"k": ['"', "{"]}
    )
    assert parse(f"x\n{format_tool_call(made)}") == Action(content="x", calls=(made,))
    renderer = small_renderer()
    assert renderer.parse(renderer.encode_turn(assistant("x", made))) == Action(content="x", calls=(made,))
