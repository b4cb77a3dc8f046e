"""What the rendering tests share: conversations, the small tokenizer, and templates with known faults."""

import functools
import json
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from agentrl_jax.env import Message, Tool, ToolCall
from agentrl_jax.rendering.templates import ChatTemplate, conversation_to_json, hermes_template
from agentrl_jax.rendering.tokenizer import ChatTokenizer, load_tokenizer
from agentrl_jax.rendering.train_tokenizer import train_tokenizer
from agentrl_jax.rendering.transcript import TemplateRenderer

LOOK = Tool(
    name="look",
    description="What is in a room.",
    parameters={"type": "object", "properties": {"room": {"type": "string"}}, "required": ["room"]},
)
SAY = Tool(name="say", description="End with words.", parameters={"type": "object", "properties": {}})
TOOLS = (LOOK, SAY)
ENTITIES = ("kitchen", "garage", "hall", "teapot", "Bob")
SHORT = hermes_template(preamble="", instructions="")

_folder = tempfile.TemporaryDirectory(prefix="rendering-tests-")


def user(text: str) -> Message:
    return Message(role="user", content=text)


def tool(text: str) -> Message:
    return Message(role="tool", content=text)


def system(text: str) -> Message:
    return Message(role="system", content=text)


def assistant(text: str = "", *calls: ToolCall) -> Message:
    return Message(role="assistant", content=text, tool_calls=calls)


def call(name: str, **arguments: Any) -> ToolCall:
    return ToolCall(name=name, arguments=arguments)


EPISODE = (
    system("Find things."),
    user("Where is the teapot?"),
    assistant("Let me see.", call("look", room="kitchen"), call("look", room="garage")),
    tool("empty"),
    tool("teapot, hall"),
    assistant("", call("say", text="garage")),
    tool("ok"),
    user("And Bob?"),
    assistant("No idea."),
)


def training_texts() -> list[str]:
    template = ChatTemplate(SHORT, {})
    return [
        template.render(*conversation_to_json([*EPISODE, tool(f"{a} {b}")], TOOLS), add_generation_prompt=True)
        for a in ENTITIES
        for b in ENTITIES
    ]


@functools.cache
def small_folder() -> Path:
    """A folder with the small tokenizer and the short template."""
    target = Path(_folder.name) / "small"
    return train_tokenizer(training_texts(), target, vocab_size=440, chat_template=SHORT, keep_whole=ENTITIES)


@functools.cache
def small_renderer() -> TemplateRenderer:
    return TemplateRenderer(small_folder(), tools=TOOLS)


def with_template(folder: Path, template: str, target: Path) -> Path:
    """A copy of a tokenizer folder with another chat template."""
    shutil.copytree(folder, target)
    (target / "chat_template.jinja").write_text(template, encoding="utf-8")
    return target


@functools.cache
def transformers_tokenizer(folder: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(str(folder))


def transformers_ids(
    folder: Path, messages: Sequence[Message], *, add_generation_prompt: bool = True, sanitize: bool = False
) -> list[int]:
    """The independent reference: transformers' own tokenizer and template code."""
    conversation, tools = conversation_to_json(messages, TOOLS)
    ids: list[int] = transformers_tokenizer(folder).apply_chat_template(
        conversation,
        tools=tools,
        tokenize=True,
        return_dict=False,
        add_generation_prompt=add_generation_prompt,
        sanitize_control_tokens=sanitize,
    )
    return ids


def recorded(renderer: TemplateRenderer, messages: Sequence[Message]) -> list[int]:
    """The ids that an episode of canonical turns leaves behind; it ends with a prompt for one more turn."""
    turns = [index for index, message in enumerate(messages) if message.role == "assistant"]
    ids = renderer.prompt(messages[: turns[0]], TOOLS).tolist()
    for start, end in zip(turns, [*turns[1:], len(messages)], strict=True):
        sampled = renderer.encode_turn(messages[start]).tolist()
        ids += sampled + renderer.reply(messages[start + 1 : end]).tolist()
    return ids


def tokenizer_with(folder: Path, template: str) -> ChatTokenizer:
    """The folder's tokenizer with another chat template, without writing files."""
    tokenizer = load_tokenizer(folder)
    tokenizer.chat_template = template
    return tokenizer


# Tool results are trimmed, so they cannot be pasted between constant texts.
TRIMMING = SHORT.replace(
    "{{- message.content }}{{- '\\n</tool_response>'", "{{- message.content | trim }}{{- '\\n</tool_response>'"
)


texts = st.one_of(
    st.text(max_size=20),
    st.sampled_from(
        ["kitchen", "Bobby and Bob", "user\nhi", "assistant\n", " \n\n", "", "é😀", "a  \n", '{"x": "</tool_call>"}']
    ),
)
json_values = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(-(10**6), 10**6), st.floats(allow_nan=False, allow_infinity=False), texts
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(texts, inner, max_size=3)),
    max_leaves=6,
)
calls = st.builds(
    ToolCall,
    name=st.sampled_from(["look", "say", "unheard_of", "naïve-name"]),
    arguments=st.dictionaries(texts, json_values, max_size=3),
)


@st.composite
def conversations(draw: st.DrawFn, contents: st.SearchStrategy[str] = texts) -> list[Message]:
    """A conversation of one to three closed turns, ending with the env's answer; every call has its tool message."""
    messages = [system(draw(contents))] if draw(st.booleans()) else []
    messages.append(user(draw(contents)))
    for _ in range(draw(st.integers(1, 3))):
        made = draw(st.lists(calls, max_size=3))
        messages.append(assistant(draw(contents), *made))
        messages += [tool(draw(contents)) for _ in made]
        if not made or draw(st.booleans()):
            messages.append(user(draw(contents)))
    return messages


def write_config(folder: Path, **entries: Any) -> None:
    """Change entries of a folder's tokenizer_config.json; None removes one."""
    file = folder / "tokenizer_config.json"
    config = json.loads(file.read_text()) | entries
    file.write_text(json.dumps({key: value for key, value in config.items() if value is not None}))
