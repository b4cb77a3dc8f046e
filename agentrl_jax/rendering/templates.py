"""Chat templates: our own, in Qwen2.5's structure, and the environment in which any model's template is rendered.

Templates are Jinja text that comes with a model, so they run sandboxed, with the filters and globals that
transformers' `apply_chat_template` gives them.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from jinja2 import TemplateError as JinjaError
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from agentrl_jax.env import Message, Tool
from agentrl_jax.errors import TemplateError
from agentrl_jax.rendering.config import TemplateName

IM_START = "<|im_start|>"
IM_END = "<|im_end|>"

FULL_PREAMBLE = (
    "# Tools\n\nYou can act by calling functions. One JSON description per line, these functions are available:\n"
)
FULL_INSTRUCTIONS = (
    "\n\nCall a function by writing its name and its arguments as one JSON object between tool_call tags, "
    'like this:\n<tool_call>\n{"name": "<name of the function>", "arguments": {<its arguments>}}\n</tool_call>'
)

_HERMES = """\
{%- if tools or (messages and messages[0].role == 'system') %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages and messages[0].role == 'system' %}
        {{- messages[0].content }}
        {%- if tools %}{{- '\\n\\n' }}{%- endif %}
    {%- endif %}
    {%- if tools %}
        {{- PREAMBLE + '<tools>' }}
        {%- for tool in tools %}
            {{- '\\n' }}{{- tool | tojson }}
        {%- endfor %}
        {{- '\\n</tools>' + INSTRUCTIONS }}
    {%- endif %}
    {{- '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'tool' %}
        {%- if loop.first or loop.previtem.role != 'tool' %}{{- '<|im_start|>user' }}{%- endif %}
        {{- '\\n<tool_response>\\n' }}{{- message.content }}{{- '\\n</tool_response>' }}
        {%- if loop.last or loop.nextitem.role != 'tool' %}{{- '<|im_end|>\\n' }}{%- endif %}
    {%- elif message.role == 'assistant' and message.tool_calls %}
        {{- '<|im_start|>assistant' }}
        {%- if message.content %}{{- '\\n' }}{{- message.content }}{%- endif %}
        {%- for tool_call in message.tool_calls %}
            {%- if tool_call.function is defined %}{%- set tool_call = tool_call.function %}{%- endif %}
            {{- '\\n<tool_call>\\n{"name": ' }}{{- tool_call.name | tojson }}
            {{- ', "arguments": ' }}{{- tool_call.arguments | tojson }}{{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif not (loop.first and message.role == 'system') %}
        {{- '<|im_start|>' }}{{- message.role }}{{- '\\n' }}{{- message.content }}{{- '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""


def hermes_template(*, preamble: str = FULL_PREAMBLE, instructions: str = FULL_INSTRUCTIONS) -> str:
    """Return a Jinja chat template with Qwen2.5's structure and our own wording.

    The system block holds the system message, then `preamble`, the tools (one JSON per line between `<tools>` and
    `</tools>`) and `instructions`; `preamble=""` and `instructions=""` keep a small model's prompt short. Calls are
    `<tool_call>` blocks; a run of tool messages is one user turn of `<tool_response>` blocks. There is no default
    system message.
    """
    texts = {"PREAMBLE": preamble, "INSTRUCTIONS": instructions}
    # A JSON string is also a Jinja string literal.
    return re.sub("PREAMBLE|INSTRUCTIONS", lambda match: json.dumps(texts[match[0]], ensure_ascii=False), _HERMES)


TEMPLATES: Mapping[TemplateName, str] = {"hermes": hermes_template()}
"""Our templates, by what a rendering config calls them."""


class ChatTemplate:
    """A compiled chat template. Safe to use from several threads.

    source: Jinja text. constants: what the template may read besides the conversation, such as `bos_token`.
    A template that asks for the time gets that of its compilation: two prompts of one task never differ by their date.
    Raises TemplateError if the source is not valid Jinja.
    """

    def __init__(self, source: str, constants: Mapping[str, str]) -> None:
        try:
            self._template = _environment().from_string(source, globals=dict(constants))
        except JinjaError as error:
            raise TemplateError(f"the chat template is not valid Jinja: {error}") from error

    def render(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool
    ) -> str:
        """Return the conversation as text. Raises TemplateError if the template refuses it."""
        try:
            return self._template.render(
                messages=messages, tools=tools or None, documents=None, add_generation_prompt=add_generation_prompt
            )
        except (JinjaError, *_PYTHON_ERRORS) as error:
            roles = ", ".join(str(message["role"]) for message in messages)
            raise TemplateError(f"the chat template refuses a conversation of roles [{roles}]: {error}") from error


def message_to_json(message: Message) -> dict[str, Any]:
    """Return `message` as templates expect it; without calls it has no `tool_calls` key."""
    result: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.tool_calls:
        result["tool_calls"] = [
            {"type": "function", "function": {"name": call.name, "arguments": dict(call.arguments)}}
            for call in message.tool_calls
        ]
    return result


def conversation_to_json(
    messages: Iterable[Message], tools: Iterable[Tool]
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return messages and tools as the plain JSON values that templates and transformers take."""
    return [message_to_json(message) for message in messages], [tool.to_json() for tool in tools]


class _GenerationBlocks(Extension):
    """Accepts `{% generation %}…{% endgeneration %}`, which marks assistant text in some templates."""

    tags = {"generation"}  # noqa: RUF012 - jinja's own convention

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


# What the Python operators and methods that a template uses may raise.
_PYTHON_ERRORS = (TypeError, ValueError, LookupError, ArithmeticError, AttributeError)


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlocks, loopcontrols]
    )
    environment.filters["tojson"] = to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = datetime.now().strftime
    return environment


def to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own filter escapes HTML characters, which models have never seen.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> None:
    raise JinjaError(message)
