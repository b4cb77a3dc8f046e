"""Each family's template: golden segments and masks, full renders, round trips, histories that are rewritten."""

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentrl_jax.errors import ConfigError, RecordError, TemplateError
from agentrl_jax.rendering.config import (
    RENDERING_FILE,
    HistoryThinking,
    RenderingConfig,
    read_rendering,
    write_rendering,
)
from agentrl_jax.rendering.transcript import TemplateRenderer
from agentrl_jax.testing.tokenizers import TemplateKind, toy_template, toy_tokenizer
from tests.rendering.chat import SHORT, TOOLS, assistant, call, small_folder, tokenizer_with, tool, user
from tests.rendering.families import (
    FAMILIES,
    NAMES,
    THOUGHT,
    family_conversations,
    golden_conversation,
    spell_out,
    toy_renderer,
    turns_of,
)

GOLDEN = Path(__file__).parent / "golden"
all_families = pytest.mark.parametrize(("kind", "history"), FAMILIES, ids=NAMES)


@all_families
def test_a_conversation_of_three_turns_is_the_golden_one(kind: TemplateKind, history: HistoryThinking) -> None:
    renderer = toy_renderer(kind, history)
    segments = renderer.demonstration_segments(golden_conversation(kind), TOOLS)
    text = "\n=====\n".join(spell_out(renderer, ids, mask) for ids, mask in segments) + "\n"
    file = GOLDEN / f"{kind}-{history}.txt"
    if os.environ.get("AGENTRL_WRITE_GOLDEN"):
        file.write_text(text, encoding="utf-8")
    assert text == file.read_text(encoding="utf-8")


@pytest.mark.parametrize("kind", ["qwen2_5", "llama3", "glm"])
@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_what_only_appends_is_the_full_rendering(kind: TemplateKind, data: st.DataObject) -> None:
    renderer = toy_renderer(kind)
    messages = data.draw(family_conversations(kind))
    ((ids, mask),) = renderer.demonstration_segments(messages, TOOLS)
    assert ids.tolist() == renderer.full_render(messages, TOOLS, add_generation_prompt=False).tolist()
    assert int((mask & ~np.roll(mask, 1)).sum()) == len(turns_of(messages))
    assert set(ids[mask & ~np.roll(mask, -1)].tolist()) <= set(renderer.stop_ids)


@pytest.mark.parametrize("kind", ["qwen2_5", "qwen3", "llama3", "glm"])
@given(data=st.data())
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_turns_come_back_through_the_parser(kind: TemplateKind, data: st.DataObject) -> None:
    renderer = toy_renderer(kind, "keep")
    messages = data.draw(family_conversations(kind))
    for index in turns_of(messages):
        action = renderer.parse(renderer.encode_turn(messages[index], messages[index + 1 :]))
        assert action.calls == messages[index].tool_calls
        content = action.content.removeprefix("<think>\n\n</think>\n\n")
        assert (content, action.errors, action.num_bare_calls) == (messages[index].content, (), 0)


@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_strip_gives_every_prompt_as_the_template_renders_it(data: st.DataObject) -> None:
    renderer = toy_renderer("qwen3", "strip")
    messages = data.draw(family_conversations("qwen3"))
    turns = turns_of(messages)
    stream = renderer.stream(TOOLS)
    standing = stream.begin(messages[: turns[0]]).tolist()
    for start, end in zip(turns, [*turns[1:], len(messages)], strict=True):
        assert standing == renderer.full_render(messages[:start], TOOLS, add_generation_prompt=True).tolist()
        sampled = renderer.encode_turn(messages[start], messages[start + 1 : end])
        context = stream.follow(sampled, messages[start + 1 : end])
        standing = [] if context.starts_segment else [*standing, *sampled.tolist()]
        standing += context.ids.tolist()
    assert standing == renderer.full_render(messages, TOOLS, add_generation_prompt=True).tolist()


def test_strip_keeps_the_segment_in_a_tool_loop_and_rewrites_when_a_user_speaks() -> None:
    renderer = toy_renderer("qwen3", "strip")
    first, second = (renderer.encode_turn(assistant(f"{THOUGHT}x", call("look", room=room))) for room in ("a", "b"))
    stream = renderer.stream(TOOLS)
    stream.begin([user("Go.")])
    kept = stream.follow(first, [tool("empty")])
    assert not kept.starts_segment
    assert kept.ids.tolist() == renderer.reply([tool("empty")]).tolist()
    rewritten = stream.follow(second, [tool("teapot"), user("And?")])
    assert rewritten.starts_segment
    assert "hm" not in renderer.tokenizer.decode(rewritten.ids.tolist())
    with pytest.raises(RecordError, match="at least one message"):
        stream.follow(second, [])


@pytest.mark.parametrize("text", ["<think>\nhm\n</think>\n\n<tool_call>{bad</tool_call>", "odd  spelling </think> x"])
def test_strip_takes_turns_that_are_not_canonical_as_the_text_that_they_are(text: str) -> None:
    renderer = toy_renderer("qwen3", "strip")
    sampled = np.array([*renderer.tokenizer.encode(text), renderer.stop_ids[0]], np.int32)
    stream = renderer.stream(())
    stream.begin([user("Go.")])
    raw = [user("Go."), assistant(text), tool("error"), user("Again.")]
    stood = stream.follow(sampled, raw[2:])
    assert stood.starts_segment
    assert stood.ids.tolist() == renderer.full_render(raw, (), add_generation_prompt=True).tolist()


def test_closed_turns_of_rewritten_prompts_are_encoded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    renderer = TemplateRenderer(toy_tokenizer("qwen3"), config=RenderingConfig(history_thinking="strip"))
    turn = renderer.encode_turn(assistant(f"{THOUGHT}x"))
    stream = renderer.stream(())
    stream.begin([user("Go.")])
    encode, encoded = renderer.tokenizer.encode, []

    def recording(text: str) -> list[int]:
        encoded.append(text)
        return encode(text)

    monkeypatch.setattr(renderer.tokenizer, "encode", recording)
    assert stream.follow(turn, [user("And?")]).starts_segment
    assert "And?" in "".join(encoded)
    assert "Go." not in "".join(encoded)


def test_strip_where_the_next_header_ends_a_turn_neither_repeats_nor_loses_it() -> None:
    tokenizer = toy_tokenizer("glm")
    tokenizer.chat_template = toy_template("qwen3").removesuffix(SHORT) + toy_template("glm")
    renderer = TemplateRenderer(tokenizer, tools=TOOLS, config=RenderingConfig(history_thinking="strip"))
    talk = [user("Go."), assistant(f"{THOUGHT}Hm.", call("look", room="hall")), tool("empty")]
    talk += [assistant(f"{THOUGHT}No."), user("So?")]
    stream = renderer.stream(())
    ids = stream.begin(talk[:1]).tolist()
    for turn, starts_segment in ((1, False), (3, True)):
        sampled = renderer.encode_turn(talk[turn], talk[turn + 1 : turn + 2])
        context = stream.follow(sampled, talk[turn + 1 : turn + 2])
        assert context.starts_segment == starts_segment
        ids = ([] if starts_segment else [*ids, *sampled.tolist()]) + context.ids.tolist()
        assert ids == renderer.full_render(talk[: turn + 2], (), add_generation_prompt=True).tolist()


def test_odd_token_splits_do_not_break_a_segment_that_the_template_leaves_alone() -> None:
    template = toy_template("qwen3")
    renderer = TemplateRenderer(
        tokenizer_with(small_folder(), template), tools=TOOLS, config=RenderingConfig(history_thinking="strip")
    )
    text = f'{THOUGHT}\n<tool_call>\n{{"name": "look", "arguments": {{"room": "hall"}}}}\n</tool_call>'
    by_bytes = [renderer.tokenizer.encode(char)[0] for char in text]
    stream = renderer.stream(TOOLS)
    stream.begin([user("Go.")])
    context = stream.follow(np.array([*by_bytes, renderer.stop_ids[0]], np.int32), [tool("x")])
    assert (context.starts_segment, context.ids.tolist()) == (False, renderer.reply([tool("x")]).tolist())


def test_a_template_that_rewrites_needs_a_declared_policy_and_one_that_appends_takes_no_strip() -> None:
    with pytest.raises(TemplateError, match=r"--history-thinking keep .* --history-thinking strip"):
        TemplateRenderer(toy_tokenizer("qwen3"))
    for kind in ("qwen2_5", "llama3", "glm"):
        assert toy_renderer(kind).config.history_thinking == "keep"
        with pytest.raises(ConfigError, match="strip has no effect"):
            TemplateRenderer(toy_tokenizer(kind), config=RenderingConfig(history_thinking="strip"))


def test_chatml_is_refused_naming_what_it_drops() -> None:
    with pytest.raises(TemplateError, match="loses the declared tools, the names of tool calls, the argument names of"):
        TemplateRenderer(toy_tokenizer("chatml"), tools=TOOLS)


def test_strip_needs_a_template_that_shows_malformed_turns_and_their_answers() -> None:
    rule = (
        "{%- for message in messages %}{%- if message.role == 'tool' and loop.previtem.role == 'assistant' and not "
        "loop.previtem.tool_calls %}{{ raise_exception('a result without a call') }}{%- endif %}{%- endfor %}"
    )
    silent = (
        "{%- set ns = namespace(kept=[]) %}{%- for message in messages %}{%- if message.role != 'tool' or "
        "loop.previtem.role == 'tool' or loop.previtem.tool_calls %}{%- set ns.kept = ns.kept + [message] %}"
        "{%- endif %}{%- endfor %}{%- set messages = ns.kept %}"
    )
    for prefix in (rule, silent):
        tokenizer = tokenizer_with(small_folder(), prefix + toy_template("qwen3"))
        TemplateRenderer(tokenizer, config=RenderingConfig(history_thinking="keep"))
        with pytest.raises(TemplateError, match="which answers a malformed call: use --history-thinking keep"):
            TemplateRenderer(tokenizer, config=RenderingConfig(history_thinking="strip"))


@pytest.mark.parametrize(("kind", "found"), [("qwen2_5", "hermes"), ("llama3", "llama3"), ("glm", "glm4")])
def test_the_parser_is_that_of_the_templates_own_calls(kind: TemplateKind, found: str) -> None:
    assert toy_renderer(kind).config.tool_call_format == found


def test_a_format_may_be_named_and_then_demonstrations_must_be_in_it() -> None:
    config = RenderingConfig(tool_call_format="llama3")
    renderer = TemplateRenderer(toy_tokenizer("qwen2_5"), tools=TOOLS, config=config)
    spelled = renderer.tokenizer.encode('{"name": "look", "parameters": {"room": "hall"}}<|im_end|>')
    assert renderer.parse(np.array(spelled, np.int32)).calls == (call("look", room="hall"),)
    with pytest.raises(TemplateError, match="a demonstration would teach what is not understood"):
        renderer.encode_turn(assistant("", call("look")))
    strange = SHORT.replace("<tool_call>", "<call>")
    with pytest.raises(TemplateError, match=r"in a form that no parser reads: .*hermes, llama3, glm4"):
        TemplateRenderer(tokenizer_with(small_folder(), strange))
    TemplateRenderer(tokenizer_with(small_folder(), strange), config=RenderingConfig(tool_call_format="hermes"))


def test_llama_says_what_its_template_cannot_write() -> None:
    renderer = toy_renderer("llama3")
    with pytest.raises(TemplateError, match="drops the text of a turn with tool calls, got 'I look"):
        renderer.encode_turn(assistant("I look.", call("look")))
    with pytest.raises(TemplateError, match="one call a turn"):
        renderer.encode_turn(assistant("", call("look"), call("look")))
    # A policy that makes two calls all the same gets both answers.
    reply = renderer.tokenizer.decode(renderer.reply([tool("one"), tool("two")]).tolist())
    assert reply.count("ipython") == 2


def test_glms_own_template_reads_calls_as_metadata_and_results_as_observations() -> None:
    template = (
        "[gMASK]<sop>{% if tools %}<|system|>\n{{ tools | tojson }}{% endif %}{% for message in messages %}"
        "{% if message.role in ('system', 'user') %}<|{{ message.role }}|>\n{{ message.content }}"
        "{% elif message.role == 'assistant' and not message.metadata %}<|assistant|>\n{{ message.content }}"
        "{% elif message.role == 'assistant' %}<|assistant|>{{ message.metadata }}\n{{ message.content }}"
        "{% elif message.role == 'observation' %}<|observation|>\n{{ message.content }}{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}<|assistant|>{% endif %}"
    )
    tokenizer = toy_tokenizer("glm")
    tokenizer.chat_template = template
    renderer = TemplateRenderer(tokenizer, tools=TOOLS)
    messages = [user("Go."), assistant("Hm.", call("look", room="é"), call("say")), tool("a"), tool("b"), user("So?")]
    toy = toy_renderer("glm")
    for messages_ in (messages[:3], messages):
        ((ids, mask),) = renderer.demonstration_segments(messages_, ())
        ((toy_ids, toy_mask),) = toy.demonstration_segments(messages_, ())
        assert (ids.tolist(), mask.tolist()) == (toy_ids.tolist(), toy_mask.tolist())


def test_a_last_turn_that_the_template_leaves_open_gets_the_stop_id_that_it_asks_for() -> None:
    renderer = toy_renderer("glm")
    for turn, header in ((assistant("Bye."), "<|user|>"), (assistant("", call("say")), "<|observation|>")):
        ((ids, mask),) = renderer.demonstration_segments([user("Go."), turn], ())
        full = renderer.full_render([user("Go."), turn], (), add_generation_prompt=False)
        assert ids.tolist() == [*full, renderer.tokenizer.special_tokens[header]]
        assert mask[-1]


def test_thinking_that_the_generation_prompt_opens_is_part_of_every_later_prompt() -> None:
    prompt = "{{- '<|im_start|>assistant\\n' }}"
    template = toy_template("qwen3").replace(prompt, prompt.replace("' }}", "<think>\\n' }}"))
    assert template != toy_template("qwen3")
    made = toy_tokenizer("qwen3")
    made.chat_template = template
    for history in ("keep", "strip"):
        renderer = TemplateRenderer(made, tools=TOOLS, config=RenderingConfig(history_thinking=history))
        said = 'I <tool_call>\n</think>\n\nx\n<tool_call>\n{"name": "say", "arguments": {}}\n</tool_call>'
        sampled = np.array([*made.encode(said), renderer.stop_ids[0]], np.int32)
        assert renderer.parse(sampled).calls == (call("say"),)
        assert renderer.parse(sampled).errors == ()
        stream = renderer.stream(TOOLS)
        stream.begin([user("Go.")])
        assert not stream.follow(sampled, [tool("ok")]).starts_segment
        later = stream.follow(sampled, [tool("ok"), user("So?")])
        assert later.starts_segment == (history == "strip")


def test_a_form_of_calls_is_recognised_behind_thinking_that_only_the_generation_prompt_opens() -> None:
    prompt = "{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}"
    made = toy_tokenizer("llama3")
    made.chat_template = toy_template("llama3").replace(prompt, prompt.replace("' }}", "<think>\\n' }}"))
    assert made.chat_template != toy_template("llama3")
    renderer = TemplateRenderer(made, tools=TOOLS, config=RenderingConfig(history_thinking="keep"))
    assert renderer.config.tool_call_format == "llama3"
    sampled = made.encode('hm</think>\n\n{"name": "say", "parameters": {}}<|eot_id|>')
    assert renderer.parse(np.array(sampled, np.int32)).calls == (call("say"),)
    with pytest.raises(TemplateError, match="an assistant turn without its generation prompt"):
        renderer.encode_turn(assistant("x"))


def test_a_turn_ends_with_the_header_of_what_answers_it_though_its_calls_ask_for_another() -> None:
    renderer = toy_renderer("glm")
    for turn, answer, header in (
        (assistant("", call("look")), user("Stop."), "<|user|>"),
        (assistant("Hm."), tool("no call"), "<|observation|>"),
    ):
        assert renderer.encode_turn(turn, [answer])[-1] == renderer.tokenizer.special_tokens[header]


def test_config_is_checked_and_survives_its_folder(tmp_path: Path) -> None:
    assert read_rendering(tmp_path) is None
    config = RenderingConfig(history_thinking="strip", tool_call_format="glm4", tool_calls="strict")
    write_rendering(tmp_path, config)
    assert read_rendering(tmp_path) == config
    for text in ("{", "[]", '{"history_thinking": "some"}', '{"unknown": 1}', '{"tool_calls": null}'):
        (tmp_path / RENDERING_FILE).write_text(text, encoding="utf-8")
        with pytest.raises(ConfigError, match="does not say how a policy's prompts are rendered"):
            read_rendering(tmp_path)
    with pytest.raises(ConfigError, match="history_thinking must be 'keep' or 'strip', got 'cut'"):
        RenderingConfig(history_thinking="cut")  # type: ignore[arg-type]
