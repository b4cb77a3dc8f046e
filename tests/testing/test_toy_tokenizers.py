"""The toy tokenizers: their texts by hand, their files, and the one fault that each kind has."""

from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl_jax.env import Message
from agentrl_jax.errors import ConfigError, TemplateError
from agentrl_jax.rendering.templates import ChatTemplate, conversation_to_json
from agentrl_jax.rendering.tokenizer import load_tokenizer
from agentrl_jax.testing.tokenizers import TemplateKind, toy_template, toy_tokenizer, write_toy_tokenizer
from tests.rendering.chat import TOOLS, assistant, call, tool, transformers_ids, user

KINDS: tuple[TemplateKind, ...] = get_args(TemplateKind)
SHORT_EPISODE = (user("Go."), assistant("<think>\nhm\n</think>\n\nI look.", call("look", room="hall")), tool(" seen "))


def render(kind: TemplateKind, messages: tuple[Message, ...], *, prompt: bool = True) -> str:
    tokenizer = toy_tokenizer(kind)
    template = ChatTemplate(tokenizer.chat_template, tokenizer.constants)
    return template.render(*conversation_to_json(messages, ()), add_generation_prompt=prompt)


def test_qwen2_5_like_closes_turns_and_has_a_default_system_message() -> None:
    assert render("qwen2_5", SHORT_EPISODE) == (
        "<|im_start|>system\nYou are a toy.<|im_end|>\n<|im_start|>user\nGo.<|im_end|>\n<|im_start|>assistant\n"
        '<think>\nhm\n</think>\n\nI look.\n<tool_call>\n{"name": "look", "arguments": {"room": "hall"}}\n</tool_call>'
        "<|im_end|>\n<|im_start|>user\n<tool_response>\n seen \n</tool_response><|im_end|>\n<|im_start|>assistant\n"
    )


def test_qwen3_like_keeps_thinking_within_a_tool_loop_and_cuts_it_once_a_user_speaks() -> None:
    kept = render("qwen3", SHORT_EPISODE)
    assert "hm" in kept
    assert "You are a toy." not in kept
    cut = render("qwen3", (*SHORT_EPISODE, user("And?")))
    assert "hm" not in cut
    assert "<|im_start|>assistant\nI look.\n<tool_call>" in cut
    assert not cut.startswith(kept[: kept.index("hm")])
    assert "<think>\n\n</think>\n\nBye." in render("qwen3", (*SHORT_EPISODE, assistant("Bye.")), prompt=False)


def test_llama_like_loses_calls_and_trims() -> None:
    assert render("llama", SHORT_EPISODE[1:], prompt=False) == (
        "<|begin_of_text|><|start_header_id|>assistant<|end_header_id|>\n\n<think>\nhm\n</think>\n\nI look.<|eot_id|>"
        "<|start_header_id|>tool<|end_header_id|>\n\nseen<|eot_id|>"
    )


def test_glm_like_ends_a_turn_with_the_next_role() -> None:
    assert render("glm", SHORT_EPISODE) == (
        "[gMASK]<sop><|user|>\nGo.<|assistant|>\n<think>\nhm\n</think>\n\nI look."
        '<|assistant|>look\n{"room": "hall"}<|observation|>\n seen <|assistant|>'
    )
    assert set(toy_tokenizer("glm").eos_tokens) == {"<|endoftext|>", "<|user|>", "<|observation|>"}


def test_llama3_like_writes_calls_and_results_as_json() -> None:
    assert render("llama3", (user("Go."), assistant("", call("look", room="hall")), tool(" seen "))) == (
        "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nGo.<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n"
        '{"name": "look", "parameters": {"room": "hall"}}<|eot_id|>'
        '<|start_header_id|>ipython<|end_header_id|>\n\n" seen "<|eot_id|>'
        "<|start_header_id|>assistant<|end_header_id|>\n\n"
    )
    with pytest.raises(TemplateError, match="one call a turn"):
        render("llama3", (user("Go."), assistant("", call("look"), call("look"))))


def test_chatml_like_shows_contents_alone() -> None:
    assert render("chatml", SHORT_EPISODE[1:2], prompt=False) == (
        "<|im_start|>assistant\n<think>\nhm\n</think>\n\nI look.<|im_end|>\n"
    )


@pytest.mark.parametrize("kind", KINDS)
def test_the_folder_is_the_tokenizer_and_transformers_agrees(kind: TemplateKind, tmp_path: Path) -> None:
    made, loaded = toy_tokenizer(kind), load_tokenizer(write_toy_tokenizer(tmp_path / kind, kind))
    assert loaded.chat_template == made.chat_template == toy_template(kind)
    assert loaded.special_tokens == made.special_tokens
    assert loaded.constants == made.constants
    assert set(loaded.eos_tokens) == set(made.eos_tokens)
    assert made.pad_id == made.special_tokens[made.constants["pad_token"]]
    episode = [user("Go."), assistant("", call("look", room="hall")), tool("empty"), user("And?")]
    text = ChatTemplate(made.chat_template, made.constants).render(
        *conversation_to_json(episode, TOOLS), add_generation_prompt=True
    )
    assert made.encode(text) == loaded.encode(text) == transformers_ids(tmp_path / kind, episode)


@pytest.mark.parametrize("kind", KINDS)
@given(text=st.text(max_size=20))
@settings(max_examples=20, deadline=None)
def test_every_id_is_a_byte_and_every_text_comes_back(kind: TemplateKind, text: str) -> None:
    tokenizer = toy_tokenizer(kind)
    assert tokenizer.encode_plain(text) == list(text.encode())
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.vocab_size == 256 + len(tokenizer.special_tokens)


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(ConfigError, match="one of qwen2_5, qwen3, chatml, llama, llama3, glm, got 'gpt'"):
        toy_tokenizer("gpt")  # type: ignore[arg-type]
