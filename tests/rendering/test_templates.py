"""Our template against text written by hand; the environment against transformers' conventions."""

from datetime import datetime
from types import SimpleNamespace

import pytest

from agentrl_jax.env import Message, ToolCall
from agentrl_jax.errors import TemplateError
from agentrl_jax.rendering import templates
from agentrl_jax.rendering.templates import ChatTemplate, conversation_to_json, hermes_template, message_to_json
from tests.rendering.chat import LOOK, assistant, call, system, tool, user


def render(source: str, *messages: Message, tools: tuple = (), add_generation_prompt: bool = False) -> str:
    conversation, declared = conversation_to_json(messages, tools)
    return ChatTemplate(source, {}).render(conversation, declared, add_generation_prompt=add_generation_prompt)


LOOK_LINE = (
    '{"type": "function", "function": {"name": "look", "description": "What is in a room.", "parameters": '
    '{"type": "object", "properties": {"room": {"type": "string"}}, "required": ["room"]}}}'
)


def test_a_conversation_with_tools_by_hand() -> None:
    text = render(
        hermes_template(preamble="Use these:\n", instructions="\nOne at a time."),
        system("S"),
        user("U"),
        assistant("A", call("look", room="é<&>'\"")),
        tool("one"),
        tool("two"),
        user("V"),
        assistant("", call("look", room="x")),
        tool("three"),
        assistant("W"),
        tools=(LOOK, LOOK),
        add_generation_prompt=True,
    )
    assert text == (
        f"<|im_start|>system\nS\n\nUse these:\n<tools>\n{LOOK_LINE}\n{LOOK_LINE}\n</tools>\nOne at a time.<|im_end|>\n"
        "<|im_start|>user\nU<|im_end|>\n"
        '<|im_start|>assistant\nA\n<tool_call>\n{"name": "look", "arguments": {"room": "é<&>\'\\""}}\n</tool_call>'
        "<|im_end|>\n"
        "<|im_start|>user\n<tool_response>\none\n</tool_response>\n<tool_response>\ntwo\n</tool_response><|im_end|>\n"
        "<|im_start|>user\nV<|im_end|>\n"
        '<|im_start|>assistant\n<tool_call>\n{"name": "look", "arguments": {"room": "x"}}\n</tool_call><|im_end|>\n'
        "<|im_start|>user\n<tool_response>\nthree\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\nW<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_without_tools_and_system_message_there_is_no_system_block() -> None:
    assert render(hermes_template(), user("U")) == "<|im_start|>user\nU<|im_end|>\n"
    assert render(hermes_template(), system("S")) == "<|im_start|>system\nS<|im_end|>\n"
    assert render(hermes_template(preamble="", instructions=""), user("U"), tools=(LOOK,)) == (
        f"<|im_start|>system\n<tools>\n{LOOK_LINE}\n</tools><|im_end|>\n<|im_start|>user\nU<|im_end|>\n"
    )


def test_a_later_system_message_keeps_its_place() -> None:
    assert render(hermes_template(), user("U"), system("S")) == (
        "<|im_start|>user\nU<|im_end|>\n<|im_start|>system\nS<|im_end|>\n"
    )


@pytest.mark.parametrize("text", ["a 'b' \"c\" \\ {{ d }} {% e %}\n\t", "é😀\u2028", "INSTRUCTIONS PREAMBLE"])
def test_any_preamble_is_rendered_as_it_is(text: str) -> None:
    rendered = render(hermes_template(preamble=text, instructions=text), user("U"), tools=(LOOK,))
    assert rendered.startswith(f"<|im_start|>system\n{text}<tools>\n{LOOK_LINE}\n</tools>{text}<|im_end|>\n")


def test_templates_see_what_transformers_would_show_them() -> None:
    assert render("{{ messages[0].content | tojson }}|{{ tools is none }}", user("<é>")) == '"<é>"|True'
    assert ChatTemplate("{{ bos_token }}x", {"bos_token": "<s>"}).render([], [], add_generation_prompt=False) == "<s>x"
    assert (
        render("{% generation %}a{% endgeneration %}{% for m in messages %}{% break %}{% endfor %}", user("U")) == "a"
    )
    assert len(render("{{ strftime_now('%Y') }}", user("U"))) == 4
    assert render("{% if true %}\n  x\n{% endif %}\n", user("U")) == "  x\n"


def test_messages_without_calls_have_no_such_key() -> None:
    assert message_to_json(user("U")) == {"role": "user", "content": "U"}
    made = Message(role="assistant", tool_calls=(ToolCall(name="f", arguments={"a": 1}),))
    assert message_to_json(made) == {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"type": "function", "function": {"name": "f", "arguments": {"a": 1}}}],
    }


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{% endif %}", "not valid Jinja"),
        ("{{ raise_exception('tools are not for me') }}", r"roles \[user\]: tools are not for me"),
        ("{{ messages.append(1) }}", "refuses a conversation"),
        ("{{ ''.__class__.__mro__ }}", "refuses a conversation"),
    ],
)
def test_bad_and_hostile_templates_are_named(source: str, message: str) -> None:
    with pytest.raises(TemplateError, match=message):
        render(source, user("U"))


@pytest.mark.parametrize("source", ["{{ messages + 1 }}", "{{ 1 / 0 }}", "{{ messages[0].content.index('zz') }}"])
def test_what_python_raises_in_a_template_is_the_templates_refusal(source: str) -> None:
    with pytest.raises(TemplateError, match=r"refuses a conversation of roles \[user\]"):
        render(source, user("U"))


def test_the_time_stands_still_in_a_template(monkeypatch: pytest.MonkeyPatch) -> None:
    days = (datetime(2026, 1, day, 23, 59) for day in (1, 2, 3))
    monkeypatch.setattr(templates, "datetime", SimpleNamespace(now=lambda: next(days)))
    template = ChatTemplate("{{ strftime_now('%d %b') }}", {})
    texts = [template.render([], [], add_generation_prompt=False) for _ in range(2)]
    assert texts == ["01 Jan", "01 Jan"]
