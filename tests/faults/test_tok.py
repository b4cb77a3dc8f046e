"""TOK: tokenisation and chat-template drift. Each test is one published fault, on the renderer's side."""

from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from agentrl_jax.errors import TemplateError
from agentrl_jax.rendering.transcript import TemplateRenderer
from agentrl_jax.testing.tokenizers import toy_tokenizer
from tests.rendering.chat import (
    EPISODE,
    SHORT,
    TOOLS,
    assistant,
    call,
    recorded,
    small_folder,
    small_renderer,
    tool,
    transformers_ids,
    user,
    with_template,
)

STEPS = [message for n in range(3) for message in (assistant("", call("look", room=f"room {n}")), tool(f"seen {n}"))]


def test_tok_01_the_separator_stands_behind_every_closed_turn() -> None:
    renderer = small_renderer()
    ids = recorded(renderer, [user("Go."), *STEPS])
    assert ids == transformers_ids(small_folder(), [user("Go."), *STEPS])
    stop, newline = renderer.stop_ids[0], renderer.tokenizer.encode("\n")[0]
    assert sum(pair == (stop, newline) for pair in pairwise(ids)) == ids.count(stop) == 8


def test_tok_02_a_history_that_is_no_prefix_is_a_named_error() -> None:
    with pytest.raises(TemplateError, match="rewrites history"):
        TemplateRenderer(toy_tokenizer("qwen3"))


def test_tok_03_the_reply_starts_with_the_separator_once() -> None:
    renderer = small_renderer()
    newline = renderer.tokenizer.encode("\n")[0]
    reply = renderer.reply([tool("x")])
    assert reply[0] == newline
    assert reply[1] == renderer.tokenizer.special_tokens["<|im_start|>"]


def test_tok_04_sampled_ids_are_never_spelled_and_encoded_again() -> None:
    renderer = small_renderer()
    text = '<tool_call>\n{"name": "look", "arguments": {"room": "hall"}}\n</tool_call>'
    by_bytes = np.array([renderer.tokenizer.encode(char)[0] for char in text] + [renderer.stop_ids[0]], np.int32)
    canonical = renderer.encode_turn(assistant("", call("look", room="hall")))
    assert len(by_bytes) > len(canonical)
    assert renderer.parse(by_bytes) == renderer.parse(canonical)
    # The answer's ids know nothing of the turn's spelling, so prompt + sampled + reply keeps both as they are.
    prompt, reply = renderer.prompt([user("Go.")], TOOLS), renderer.reply([tool("x")])
    raw = transformers_ids(small_folder(), [user("Go."), assistant(text), tool("x")])
    assert raw == [*prompt, *canonical, *reply]
    assert renderer.tokenizer.decode([*prompt, *by_bytes, *reply]) == renderer.tokenizer.decode(raw)


def test_tok_08_a_run_of_tool_messages_is_one_user_turn() -> None:
    messages = [user("Go."), assistant("", call("cat", f="a.py"), call("cat", f="b.py")), tool("A"), tool("B")]
    renderer = small_renderer()
    assert recorded(renderer, messages) == transformers_ids(small_folder(), messages)
    assert renderer.tokenizer.decode(renderer.reply(messages[2:])).count("<|im_start|>user") == 1
    ((ids, mask),) = renderer.demonstration_segments(messages, TOOLS)
    assert ids[mask].tolist() == renderer.encode_turn(messages[1]).tolist()


def test_tok_10_a_default_system_block_is_rendered_once(tmp_path: Path) -> None:
    template = "{%- if messages[0].role != 'system' %}{{- '<|im_start|>system\\nBe good.<|im_end|>\\n' }}{%- endif %}"
    folder = with_template(small_folder(), template + SHORT, tmp_path / "default-system")
    renderer = TemplateRenderer(folder, tools=TOOLS)
    ids = recorded(renderer, [user("Go."), *STEPS])
    assert ids == transformers_ids(folder, [user("Go."), *STEPS])
    assert renderer.tokenizer.decode(ids).count("Be good.") == 1


def test_tok_12_no_generation_prompt_stands_before_a_tool_message() -> None:
    messages = [user("Go."), *STEPS]
    text = small_renderer().tokenizer.decode(recorded(small_renderer(), messages))
    assert "assistant\n<|im_start|>" not in text
    assert "assistant\n<tool_response>" not in text
    prompted = small_renderer().tokenizer.decode(small_renderer().prompt(messages, TOOLS))
    assert prompted == text
    assert prompted.count("<|im_start|>assistant\n") == 4


def test_tok_15_a_template_that_drops_tool_calls_is_refused_naming_what_is_lost() -> None:
    with pytest.raises(TemplateError, match=r"loses the declared tools, the names of tool .*--chat-template hermes"):
        TemplateRenderer(toy_tokenizer("llama"))


def test_tok_20_white_space_at_the_end_of_a_turn_is_kept() -> None:
    renderer = small_renderer()
    messages = [user("Go."), assistant("I wait.  \n"), user("Well?")]
    sampled = renderer.encode_turn(messages[1])
    assert renderer.tokenizer.decode(sampled) == "I wait.  \n<|im_end|>"
    assert recorded(renderer, messages) == transformers_ids(small_folder(), messages)
    assert renderer.parse(sampled).content == "I wait.  \n"


def test_tok_21_a_stop_token_that_is_the_next_header_stands_once() -> None:
    renderer = TemplateRenderer(toy_tokenizer("glm"), tools=TOOLS)
    header = renderer.tokenizer.special_tokens["<|observation|>"]
    messages = [user("Go."), assistant("", call("look", room="hall")), tool("empty")]
    sampled = renderer.encode_turn(messages[1])
    assert sampled[-1] == header
    ids = [*renderer.prompt(messages[:1], TOOLS), *sampled, *renderer.reply(messages[2:], after=header)]
    assert ids.count(header) == 1
    assert ids == renderer.full_render(messages, TOOLS, add_generation_prompt=True).tolist()
    # A turn that ended otherwise gets the header that its answer needs, and only that one.
    end_of_text = renderer.tokenizer.special_tokens["<|endoftext|>"]
    assert renderer.reply(messages[2:], after=end_of_text).tolist() == [header, *renderer.reply(messages[2:])]


def test_tok_22_a_reply_has_no_stop_id_in_front_so_a_cut_turn_is_never_glued() -> None:
    """A reply presumes a stop id: a turn cut by its length limit ends its episode and still parses."""
    renderer = small_renderer()
    assert renderer.reply([tool("x")])[0] not in renderer.stop_ids
    cut = renderer.encode_turn(assistant("Hm.", call("look", room="hall")))[:-1]
    assert renderer.parse(cut).calls == (call("look", room="hall"),)
    half = renderer.parse(cut[:-2])
    assert (half.content, half.calls, len(half.errors)) == ("Hm.", (), 1)


def test_tok_26_one_renderer_serves_64_threads() -> None:
    shared = TemplateRenderer(small_folder(), tools=TOOLS)
    alone = small_renderer()

    def serve(number: int) -> bool:
        results = [tool(f"result {number}") for _ in range(1 + number % 3)]
        turn = assistant("", *[call("look", room=str(number))] * len(results))
        same = shared.reply(results).tolist() == alone.reply(results).tolist()
        same &= shared.parse(shared.encode_turn(turn)).calls == turn.tool_calls
        return same and recorded(shared, [*EPISODE, user(str(number))]) == recorded(
            alone, [*EPISODE, user(str(number))]
        )

    with ThreadPoolExecutor(64) as threads:
        assert all(threads.map(serve, range(256)))
