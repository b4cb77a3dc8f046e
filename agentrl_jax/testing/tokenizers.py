"""Toy tokenizers with the kinds of chat template on which published systems broke.

Every id is a byte or a special token, so texts and ids can be read off each other; the templates are real Jinja and
the folders are what `save_pretrained` writes, which transformers loads too.

    qwen2_5   closes turns with <|im_end|> and a newline; a default system message; runs of tool messages are one user
              turn. It only appends, so every transcript can be kept as it was sampled.
    qwen3     the same without a default system message, and the thinking of turns before the last user message is cut
              out: history is rewritten; a last turn without thinking gets an empty block
    chatml    reads nothing but `message.content`: declared tools and tool calls are lost
    llama     the same with Llama's headers, trimmed
    llama3    Llama 3.x with tools: a turn is text, trimmed, or one call as bare JSON; tool results are JSON strings
    glm       no token closes a turn; the next role's token does, so a policy's stop id is also the next header. A call
              is a name, a newline and JSON behind an assistant's header of its own
"""

import json
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, Literal, get_args

import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers

from agentrl_jax.errors import ConfigError
from agentrl_jax.rendering.templates import IM_END, IM_START, hermes_template
from agentrl_jax.rendering.tokenizer import ChatTokenizer, byte_alphabet

TemplateKind = Literal["qwen2_5", "qwen3", "chatml", "llama", "llama3", "glm"]

_DEFAULT_SYSTEM = """\
{%- if not messages or messages[0].role != 'system' %}
    {%- set messages = [{'role': 'system', 'content': 'You are a toy.'}] + messages %}
{%- endif %}
"""

_CUT_THINKING = """\
{%- set ns = namespace(last_user=-1, kept=[]) %}
{%- for message in messages %}
    {%- if message.role == 'user' %}{%- set ns.last_user = loop.index0 %}{%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.role == 'assistant' %}
        {%- set answer = message.content.split('</think>')[-1].lstrip('\\n') %}
        {%- set thought = message.content.split('</think>')[0] if '</think>' in message.content else '' %}
        {%- set thought = thought.split('<think>')[-1].strip('\\n') %}
        {%- if loop.index0 > ns.last_user and (thought or loop.last) %}
            {%- set answer = '<think>\\n' + thought + '\\n</think>\\n\\n' + answer %}
        {%- endif %}
        {%- set ns.kept = ns.kept + [dict(message, content=answer)] %}
    {%- else %}
        {%- set ns.kept = ns.kept + [message] %}
    {%- endif %}
{%- endfor %}
{%- set messages = ns.kept %}
"""

_CHATML = """\
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
"""

_LLAMA = """\
{{- bos_token }}
{%- for message in messages %}
    {{- '<|start_header_id|>' + message.role + '<|end_header_id|>\\n\\n' + message.content | trim + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{%- endif %}
"""

_LLAMA3 = """\
{{- bos_token }}
{%- if tools %}
    {{- '<|start_header_id|>system<|end_header_id|>\\n\\n' }}
    {%- for tool in tools %}{{- (tool | tojson) + '\\n' }}{%- endfor %}
    {{- '<|eot_id|>' }}
{%- endif %}
{%- for message in messages %}
    {%- set role = 'ipython' if message.role == 'tool' else message.role %}
    {{- '<|start_header_id|>' + role + '<|end_header_id|>\\n\\n' }}
    {%- if message.tool_calls %}
        {%- if message.tool_calls | length > 1 %}{{ raise_exception('one call a turn') }}{%- endif %}
        {%- set call = message.tool_calls[0].function %}
        {{- '{"name": ' + (call.name | tojson) + ', "parameters": ' + (call.arguments | tojson) + '}' }}
    {%- else %}
        {{- message.content | tojson if message.role == 'tool' else message.content | trim }}
    {%- endif %}
    {{- '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{%- endif %}
"""

_GLM = """\
{{- '[gMASK]<sop>' }}
{%- if tools %}
    {{- '<|system|>\\n# Tools' }}
    {%- for tool in tools %}{{- '\\n' }}{{- tool | tojson }}{%- endfor %}
{%- endif %}
{%- for message in messages %}
    {%- if message.content or not message.tool_calls %}
        {{- '<|observation|>' if message.role == 'tool' else '<|' + message.role + '|>' }}
        {{- '\\n' + message.content }}
    {%- endif %}
    {%- for call in message.tool_calls or [] %}
        {{- '<|assistant|>' + call.function.name + '\\n' + (call.function.arguments | tojson) }}
    {%- endfor %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|assistant|>' }}{%- endif %}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kind:
    """special: in the order of their ids, from 256 on. ends: what the model's files name as ends of a turn."""

    template: str
    special: tuple[str, ...]
    pad: str
    ends: tuple[str, ...]
    bos: str | None = None


_SHORT = hermes_template(preamble="", instructions="")
_QWEN = ("<|endoftext|>", IM_START, IM_END)
_HEADERS = ("<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")
_ROLES = ("<|endoftext|>", "[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>")

_KINDS: dict[TemplateKind, _Kind] = {
    "qwen2_5": _Kind(template=_DEFAULT_SYSTEM + _SHORT, special=_QWEN, pad="<|endoftext|>", ends=(IM_END,)),
    "qwen3": _Kind(template=_CUT_THINKING + _SHORT, special=_QWEN, pad="<|endoftext|>", ends=(IM_END,)),
    "chatml": _Kind(template=_CHATML, special=_QWEN, pad="<|endoftext|>", ends=(IM_END,)),
    "llama3": _Kind(
        template=_LLAMA3, special=_HEADERS, pad="<|end_of_text|>", ends=("<|eot_id|>",), bos="<|begin_of_text|>"
    ),
    "llama": _Kind(
        template=_LLAMA, special=_HEADERS, pad="<|end_of_text|>", ends=("<|eot_id|>",), bos="<|begin_of_text|>"
    ),
    "glm": _Kind(
        template=_GLM, special=_ROLES, pad="<|endoftext|>", ends=("<|endoftext|>", "<|user|>", "<|observation|>")
    ),
}


def toy_template(kind: TemplateKind) -> str:
    """The chat template of `kind`, as Jinja text. Raises ConfigError if there is no such kind."""
    return _of(kind).template


def toy_tokenizer(kind: TemplateKind) -> ChatTokenizer:
    """The tokenizer of `kind` with its chat template: ids 0 to 255 are the bytes, special tokens follow.

    >>> toy_tokenizer("glm").encode("<|user|>Hi")
    [260, 72, 105]
    """
    known = _of(kind)
    return ChatTokenizer(
        _backend(known), chat_template=known.template, constants=_constants(known), eos_tokens=known.ends
    )


def write_toy_tokenizer(folder: str | PathLike[str], kind: TemplateKind) -> Path:
    """Write the tokenizer folder of `kind`, which `load_tokenizer` and transformers read, and return it."""
    known, root = _of(kind), Path(folder)
    root.mkdir(parents=True, exist_ok=True)
    backend = _backend(known)
    backend.save(str(root / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        **_constants(known),
    }
    _write_json(root / "tokenizer_config.json", config)
    _write_json(root / "generation_config.json", {"eos_token_id": [backend.token_to_id(end) for end in known.ends]})
    (root / "chat_template.jinja").write_text(known.template, encoding="utf-8")
    return root


def _of(kind: TemplateKind) -> _Kind:
    if kind not in _KINDS:
        raise ConfigError(f"a toy tokenizer is one of {', '.join(get_args(TemplateKind))}, got {kind!r}")
    return _KINDS[kind]


def _constants(kind: _Kind) -> dict[str, str]:
    constants = {"eos_token": kind.ends[0], "pad_token": kind.pad}
    return constants if kind.bos is None else {"bos_token": kind.bos, **constants}


def _backend(kind: _Kind) -> Any:
    backend = tokenizers.Tokenizer(models.BPE(vocab=byte_alphabet(), merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in kind.special])
    return backend


def _write_json(file: Path, values: dict[str, Any]) -> None:
    file.write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")
