"""The families of chat templates: a toy renderer of each, and conversations that its template can write."""

import functools
import re
from collections.abc import Sequence
from typing import get_args

import numpy as np
from hypothesis import strategies as st

from agentrl_jax.env import Message
from agentrl_jax.rendering.config import HistoryThinking, RenderingConfig
from agentrl_jax.rendering.transcript import TemplateRenderer
from agentrl_jax.testing.tokenizers import TemplateKind, toy_tokenizer
from agentrl_jax.types import Bools, Ids
from tests.rendering.chat import TOOLS, assistant, call, calls, system, texts, tool, user

FAMILIES: tuple[tuple[TemplateKind, HistoryThinking], ...] = (
    ("qwen2_5", "keep"),
    ("qwen3", "keep"),
    ("qwen3", "strip"),
    ("llama3", "keep"),
    ("glm", "keep"),
)
NAMES = [f"{kind}-{history}" for kind, history in FAMILIES]
assert {kind for kind, _ in FAMILIES} == set(get_args(TemplateKind)) - {"chatml", "llama"}

THOUGHT = "<think>\nhm\n</think>\n\n"


@functools.cache
def toy_renderer(kind: TemplateKind, history: HistoryThinking | None = None) -> TemplateRenderer:
    config = RenderingConfig(history_thinking=history)
    return TemplateRenderer(toy_tokenizer(kind), tools=TOOLS, config=config)


def golden_conversation(kind: TemplateKind) -> list[Message]:
    """Three turns with thinking, parallel calls (where the family has them) and a user who speaks again."""
    hall, garage = call("look", room="hall"), call("look", room="garage")
    if kind == "llama3":  # text or a call, and one call a turn
        made = [assistant("", hall), tool("empty"), assistant("", garage), tool('a "teapot"\n')]
    else:
        made = [assistant(f"{THOUGHT}Two rooms.", hall, garage), tool("empty"), tool('a "teapot"\n')]
    return [
        *(system("Be brief."), user("Where is it?"), *made, assistant(f"{THOUGHT}In the garage."), user("And Bob?")),
        *(assistant(THOUGHT, call("say", text="</tool_call>")), tool("ok")),
    ] if kind != "llama3" else [
        *(system("Be brief."), user("Where is it?"), *made, assistant("In the garage."), user("And Bob?")),
        *(assistant("", call("say", text="<|python_tag|>")), tool("ok")),
    ]  # fmt: skip


def turns_of(messages: Sequence[Message]) -> list[int]:
    return [index for index, message in enumerate(messages) if message.role == "assistant"]


def spell_out(renderer: TemplateRenderer, ids: Ids, mask: Bools) -> str:
    """A segment as text, what was sampled between ⟦ and ⟧: exact, since a toy's ids are bytes and special tokens."""
    parts = np.split(ids, np.flatnonzero(np.diff(mask)) + 1)
    texts_ = [renderer.tokenizer.decode(part.tolist()) for part in parts]
    return "".join(f"⟦{text}⟧" if number % 2 != bool(mask[0]) else text for number, text in enumerate(texts_))


def is_plain(text: str) -> bool:
    """Whether a family's parser must take `text` for content, white space at its ends included."""
    return (
        text == text.strip()
        and not re.search(r"<tool_call>|think>|<\||^\s*\{|```|\[gMASK\]|<sop>", text)
        and not re.match(r"\S+(\n|$)", text)
    )


plain_texts = st.one_of(texts, st.just("I look around.")).filter(is_plain)


@st.composite
def family_conversations(draw: st.DrawFn, kind: TemplateKind) -> list[Message]:
    """One to three turns that the template of `kind` can write, ending with what answers the last one."""
    messages = [system(draw(plain_texts))] if draw(st.booleans()) else []
    messages.append(user(draw(plain_texts)))
    for _ in range(draw(st.integers(1, 3))):
        made = draw(st.lists(calls, max_size=1 if kind == "llama3" else 3))
        content = "" if kind == "llama3" and made else draw(plain_texts)
        thought = draw(st.sampled_from(["", THOUGHT])) if kind.startswith("qwen") else ""
        messages.append(assistant(thought + content, *made))
        messages += [tool(draw(texts)) for _ in made]
        if not made or draw(st.booleans()):
            messages.append(user(draw(plain_texts)))
    return messages
