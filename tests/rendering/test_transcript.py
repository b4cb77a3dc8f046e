"""Recorded ids against the template's own rendering, by hand, by transformers, and for random conversations."""

import json
from pathlib import Path
from random import Random

import numpy as np
import pytest
import tokenizers
from hypothesis import given
from tokenizers import decoders, models, pre_tokenizers, trainers

from agentrl_jax.env import Message
from agentrl_jax.errors import ConfigError, RecordError, TemplateError
from agentrl_jax.rendering.config import RenderingConfig
from agentrl_jax.rendering.protocol import Renderer
from agentrl_jax.rendering.templates import hermes_template
from agentrl_jax.rendering.transcript import TemplateRenderer
from agentrl_jax.testing.tokenizers import toy_template
from tests.rendering.chat import (
    EPISODE,
    SHORT,
    TOOLS,
    TRIMMING,
    assistant,
    call,
    conversations,
    recorded,
    small_folder,
    small_renderer,
    system,
    tokenizer_with,
    tool,
    transformers_ids,
    user,
    with_template,
)


def spell(renderer: TemplateRenderer, ids: np.ndarray) -> str:
    return renderer.tokenizer.decode(ids.tolist())


def test_an_episode_spelled_out_by_hand() -> None:
    renderer: Renderer = small_renderer()
    small = small_renderer()
    turn = small.encode_turn(EPISODE[2])
    assert spell(small, renderer.prompt(EPISODE[:2], ())) == (
        "<|im_start|>system\nFind things.<|im_end|>\n<|im_start|>user\nWhere is the teapot?<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    assert spell(small, turn) == (
        'Let me see.\n<tool_call>\n{"name": "look", "arguments": {"room": "kitchen"}}\n</tool_call>\n'
        '<tool_call>\n{"name": "look", "arguments": {"room": "garage"}}\n</tool_call><|im_end|>'
    )
    assert spell(small, renderer.reply(EPISODE[3:5])) == (
        "\n<|im_start|>user\n<tool_response>\nempty\n</tool_response>\n<tool_response>\nteapot, hall\n</tool_response>"
        "<|im_end|>\n<|im_start|>assistant\n"
    )
    assert spell(small, renderer.reply(EPISODE[6:8])) == (
        "\n<|im_start|>user\n<tool_response>\nok\n</tool_response><|im_end|>\n<|im_start|>user\nAnd Bob?<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    assert renderer.stop_ids == (small.tokenizer.special_tokens["<|im_end|>"],)
    action = renderer.parse(turn)
    assert (action.content, action.calls, action.errors) == ("Let me see.", EPISODE[2].tool_calls, ())


def test_recorded_ids_equal_the_full_rendering_of_transformers() -> None:
    messages = [*EPISODE, user("Bye.")]
    assert recorded(small_renderer(), messages) == transformers_ids(small_folder(), messages)


@given(conversations())
def test_any_canonical_conversation_is_recorded_as_transformers_renders_it(messages: list[Message]) -> None:
    renderer = small_renderer()
    expected = transformers_ids(small_folder(), messages)
    assert renderer.full_render(messages, TOOLS, add_generation_prompt=True).tolist() == expected
    assert recorded(renderer, messages) == expected


@given(conversations())
def test_turns_are_parsed_back_into_what_was_rendered(messages: list[Message]) -> None:
    renderer = small_renderer()
    for message in messages:
        if message.role == "assistant" and message.tool_calls and "<tool_call>" not in message.content:
            action = renderer.parse(renderer.encode_turn(message))
            assert (action.content, action.calls, action.errors) == (message.content, message.tool_calls, ())


@given(conversations())
def test_turns_that_are_not_canonical_stay_as_sampled(messages: list[Message]) -> None:
    """Odd token splits: the ids of the environment's answer do not depend on how the turn was spelled."""
    renderer = small_renderer()
    turns = [index for index, message in enumerate(messages) if message.role == "assistant"]
    start = turns[0]
    answer = messages[start + 1 : (turns[1] if len(turns) > 1 else len(messages))]
    text = '  <tool_call> {"name":"look" ,"arguments":{}}</tool_call>\n'
    byte_ids = [renderer.tokenizer.encode(char)[0] for char in text]
    prompt = renderer.prompt(messages[:start], TOOLS).tolist()
    ids = prompt + byte_ids + [renderer.stop_ids[0]] + renderer.reply(answer).tolist()
    raw = renderer.full_render([*messages[:start], assistant(text), *answer], TOOLS, add_generation_prompt=True)
    assert renderer.tokenizer.decode(ids) == renderer.tokenizer.decode(raw)
    assert ids[: len(prompt)] == raw[: len(prompt)].tolist()


def test_the_demonstration_mask_covers_exactly_the_turns_and_their_stop_ids() -> None:
    renderer = small_renderer()
    ((ids, mask),) = renderer.demonstration_segments(EPISODE, TOOLS)
    assert (ids.dtype, mask.dtype, ids.shape) == (np.int32, np.bool_, mask.shape)
    turns = [renderer.encode_turn(message) for message in EPISODE if message.role == "assistant"]
    assert ids[mask].tolist() == [id_ for turn in turns for id_ in turn]
    assert int((ids[mask] == renderer.stop_ids[0]).sum()) == 3
    # The last turn's separator is there, and not trained.
    assert renderer.tokenizer.decode(ids[-1:]) == "\n"
    assert not mask[-1]
    starts = np.flatnonzero(mask & ~np.roll(mask, 1))
    assert [renderer.tokenizer.decode(ids[start - 2 : start]) for start in starts] == ["<|im_start|>assistant\n"] * 3


@given(conversations())
def test_a_demonstration_equals_the_full_rendering(messages: list[Message]) -> None:
    ((ids, _),) = small_renderer().demonstration_segments(messages, TOOLS)
    assert ids.tolist() == transformers_ids(small_folder(), messages, add_generation_prompt=False)


@pytest.mark.parametrize("contents", [["  kitchen \n"], ["", "x"], ["<|im_end|>", "Bob"]])
def test_a_template_that_trims_tool_results_is_rendered_for_real(contents: list[str], tmp_path: Path) -> None:
    folder = with_template(small_folder(), TRIMMING, tmp_path / "trimming")
    renderer = TemplateRenderer(folder)
    messages = [user("Go."), assistant("", *[call("look")] * len(contents)), *map(tool, contents)]
    assert recorded(renderer, messages) == transformers_ids(folder, messages, sanitize=True)


def test_a_reply_costs_the_same_at_every_turn_and_never_renders_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    renderer = TemplateRenderer(small_folder())
    first = renderer.reply([tool("empty")])
    monkeypatch.setattr(renderer._template, "render", None)  # a template call would now fail
    assert renderer.reply([tool("empty")]).tolist() == first.tolist()
    with pytest.raises(TypeError):
        renderer.reply([tool("empty"), tool("x"), user("y")])


def test_replies_must_have_messages_and_no_assistant_turn() -> None:
    with pytest.raises(RecordError, match="at least one message"):
        small_renderer().reply([])
    with pytest.raises(RecordError, match="no assistant message"):
        small_renderer().reply([assistant("me")])
    with pytest.raises(RecordError, match="needs an assistant message"):
        small_renderer().demonstration_segments([user("me")], TOOLS)
    with pytest.raises(RecordError, match="is an assistant message"):
        small_renderer().encode_turn(user("me"))


FAULTY: list[tuple[str, str, str]] = [
    ("content only", toy_template("llama"), "the declared tools, the names of tool calls, the argument names"),
    ("rewrites thinking", toy_template("qwen3"), "rewrites history once a message of role user follows"),
    ("drops tools", SHORT.replace("if tools", "if false"), "loses the declared tools;"),
    ("drops calls", SHORT.replace("and message.tool_calls", "and false"), "the names of tool calls"),
    ("drops names", SHORT.replace("tool_call.name", "'f'"), "loses the names of tool calls;"),
    ("drops arguments", SHORT.replace("tool_call.arguments", "{}"), "the argument names of tool calls, the argument"),
    ("first call only", SHORT.replace("in message.tool_calls", "in message.tool_calls[:1]"), "all but the first of"),
    ("drops results", SHORT.replace("{{- message.content }}{{- '\\n</tool_response>' }}", ""), "loses tool messages"),
    ("drops answers", SHORT.replace("{{- message.role }}{{- '\\n' }}{{- message.content }}",
        "{{- message.role }}{{- '\\n' }}{{- message.content if message.role != 'assistant' }}"),
        "loses the text of assistant turns;"),
    ("drops system messages", "{%- if messages[0].role == 'system' %}{%- set messages = messages[1:] %}{%- endif %}"
        + SHORT, "loses system messages;"),
    ("names of tools only", SHORT.replace("{{- tool | tojson }}", "{{- tool.function.name }}"),
        "loses the descriptions of declared tools, the parameters of declared tools;"),
    ("open calls", SHORT.replace("{{- '}\\n</tool_call>' }}\n        {%- endfor %}\n        {{- '<|im_end|>\\n' }}",
        "{{- '}\\n</tool_call>' }}{%- endfor %}"), r"closes an answer with <\|im_end\|>, but not every turn"),
    ("no stop", SHORT.replace("<|im_end|>\\n", "\\n"), "does not close an assistant turn with a special token"),
    ("thinking in the generation prompt", SHORT.replace("{{- '<|im_start|>assistant\\n' }}\n{%- endif %}",
        "{{- '<|im_start|>assistant\\n<think>\\n' }}\n{%- endif %}"), "rewrites history"),
    ("refuses tools", "{{ raise_exception('users only') }}", "refuses a conversation .*: users only"),
    ("no end of a turn", toy_template("glm"), "does not close an assistant turn with a special token"),
    ("broken", "{% if %}", "not valid Jinja"),
]  # fmt: skip


@pytest.mark.parametrize(("template", "message"), [pytest.param(t, m, id=name) for name, t, m in FAULTY])
def test_a_template_that_loses_something_is_refused_by_name(template: str, message: str) -> None:
    assert template != SHORT
    with pytest.raises(TemplateError, match=message):
        TemplateRenderer(tokenizer_with(small_folder(), template))


def test_a_template_that_insists_on_alternation_is_probed_within_its_rules() -> None:
    strict = (
        "{%- if messages[0].role not in ('system', 'user') %}{{ raise_exception('start with a user') }}{% endif %}"
        "{%- for message in messages %}{%- if message.role == 'tool' and loop.previtem.role != 'tool' and not "
        "loop.previtem.tool_calls %}{{ raise_exception('a result without a call') }}{%- endif %}{%- if message.role in "
        "('user', 'assistant') and not loop.first and loop.previtem.role == message.role %}"
        "{{ raise_exception('roles must alternate') }}{%- endif %}{%- endfor %}"
    )
    renderer = TemplateRenderer(tokenizer_with(small_folder(), strict + SHORT))
    assert recorded(renderer, [*EPISODE, user("Bye.")]) == transformers_ids(small_folder(), [*EPISODE, user("Bye.")])
    with pytest.raises(TemplateError, match=r"roles \[user, user\]: roles must alternate"):
        renderer.prompt([user("a"), user("b")], TOOLS)


def test_a_tokenizer_that_merges_over_the_generation_prompt_is_refused(tmp_path: Path) -> None:
    folder = with_template(small_folder(), SHORT, tmp_path / "merging")
    free = tokenizers.Tokenizer(models.BPE())
    free.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    free.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=["<|im_end|>", "<|im_start|>"], show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )  # fmt: skip
    free.train_from_iterator(["assistant\n<tool_call>\n"] * 9, trainer)
    free.save(str(folder / "tokenizer.json"))
    with pytest.raises(TemplateError, match="merges text across the border of the generation prompt"):
        TemplateRenderer(folder)


def test_a_stop_token_that_swallows_the_separator_swallows_it_here_too(tmp_path: Path) -> None:
    folder = with_template(small_folder(), SHORT, tmp_path / "swallowing")
    file = folder / "tokenizer.json"
    content = json.loads(file.read_text(encoding="utf-8"))
    stop = next(token for token in content["added_tokens"] if token["content"] == "<|im_end|>")
    stop["rstrip"] = True
    file.write_text(json.dumps(content), encoding="utf-8")
    renderer = TemplateRenderer(folder)
    messages = [*EPISODE, user("Bye.")]
    assert recorded(renderer, messages) == transformers_ids(folder, messages)
    assert renderer.reply([tool("x")])[0] == renderer.tokenizer.special_tokens["<|im_start|>"]
    ((ids, _),) = renderer.demonstration_segments(EPISODE, TOOLS)
    assert ids.tolist() == transformers_ids(folder, EPISODE, add_generation_prompt=False)


def test_parse_never_raises_whatever_was_sampled() -> None:
    renderer = small_renderer()
    rng = Random(5)
    for _ in range(200):
        ids = np.array([rng.randrange(400) for _ in range(rng.randrange(30))], np.int32)
        assert isinstance(renderer.parse(ids).content, str)
    assert renderer.parse(np.array([], np.int32)).content == ""


def test_parse_needs_no_stop_id_and_keeps_other_special_tokens_visible() -> None:
    renderer = small_renderer()
    ids = renderer.tokenizer.encode("a<|im_start|>b")
    assert renderer.parse(np.array(ids, np.int32)).content == "a<|im_start|>b"
    assert renderer.parse(np.array([*ids, renderer.stop_ids[0]], np.int32)).content == "a<|im_start|>b"


def test_an_unknown_way_to_read_calls_is_a_config_error() -> None:
    with pytest.raises(ConfigError, match="'strict' or 'lenient', got 'loose'"):
        RenderingConfig(tool_calls="loose")  # type: ignore[arg-type]


def test_the_full_wording_renders_the_same_way(tmp_path: Path) -> None:
    folder = with_template(small_folder(), hermes_template(), tmp_path / "full")
    renderer = TemplateRenderer(folder)
    messages = [system("Sé 'brief'."), *EPISODE[1:], user("Bye.")]
    assert recorded(renderer, messages) == transformers_ids(folder, messages)
    assert spell(renderer, renderer.prompt(messages[:2], TOOLS)).startswith(
        "<|im_start|>system\nSé 'brief'.\n\n# Tools\n\nYou can act by calling functions."
    )
