"""Toy tokenizers with the four kinds of chat template on which published systems broke.

Every id is a byte or a special token, so texts and ids can be read off each other; the templates are real Jinja and
the folders are what `save_pretrained` writes, which transformers loads too.

    qwen2_5   closes turns with <|im_end|> and a newline; a default system message; runs of tool messages are one user
              turn. It only appends, so every transcript can be kept as it was sampled.
    qwen3     the same without a default system message, and the thinking of turns before the last user message is cut
              out: history is rewritten
    llama     reads nothing but `message.content`, trimmed: declared tools and tool calls are lost
    glm       no token closes a turn; the next role's token does, so a policy's stop id is also the next header
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

TemplateKind = Literal["qwen2_5", "qwen3", "llama", "glm"]

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
    {%- if message.role == 'assistant' and loop.index0 < ns.last_user and '</think>' in message.content %}
        {%- set answer = message.content.split('</think>')[-1].lstrip('\\n') %}
        {%- set ns.kept = ns.kept + [dict(message, content=answer)] %}
    {%- else %}
        {%- set ns.kept = ns.kept + [message] %}
    {%- endif %}
{%- endfor %}
{%- set messages = ns.kept %}
"""

_LLAMA = """\
{{- bos_token }}
{%- for message in messages %}
    {{- '<|start_header_id|>' + message.role + '<|end_header_id|>\\n\\n' + message.content | trim + '<|eot_id|>' }}
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
    {{- '<|observation|>' if message.role == 'tool' else '<|' + message.role + '|>' }}
    {{- '\\n' + message.content }}
    {%- for call in message.tool_calls or [] %}
        {{- '\\n<tool_call>\\n{"name": ' + (call.function.name | tojson) }}
        {{- ', "arguments": ' + (call.function.arguments | tojson) + '}\\n</tool_call>' }}
    {%- endfor %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|assistant|>\\n' }}{%- endif %}
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
