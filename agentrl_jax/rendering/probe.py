"""What a chat template does to a conversation, asked with sentinels at start-up.

Published systems lost tool calls, tool results and the thinking of earlier turns silently, because nobody asked the
template first.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from agentrl_jax.env import Message, Tool, ToolCall
from agentrl_jax.errors import TemplateError

# Words that no template contains, without characters that JSON or XML would escape.
USER = Message(role="user", content="qzUserTextzq")
ANSWER = Message(role="assistant", content="qzAnswerTextzq")
_SYSTEM = Message(role="system", content="qzSystemTextzq")
_THOUGHT = "<think>\nqzThoughtzq\n</think>\n\nqzAnswerTextzq"
_RESULTS = tuple(Message(role="tool", content=f"qzResult{i}zq") for i in range(2))
_TOOL = Tool(
    name="qzDeclaredzq",
    description="qzDescriptionzq",
    parameters={"type": "object", "properties": {"qzParameterzq": {"type": "string"}}},
)

RenderText = Callable[[Sequence[Message], Sequence[Tool], bool], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """rewriting: how the template changes a history that stood in an earlier prompt, "" if it only appends.

    max_calls: of one assistant turn; None if there is no limit.
    drops_text: an assistant turn with calls loses its content.
    """

    rewriting: str
    max_calls: int | None
    drops_text: bool


def calling(num_calls: int, content: str = "") -> Message:
    """Return an assistant turn with `num_calls` calls: what a run of that many tool messages must follow."""
    calls = (ToolCall(name="qzNamezq", arguments={"qzKeyzq": f"qzValue{i}zq"}) for i in range(num_calls))
    return Message(role="assistant", content=content, tool_calls=tuple(calls))


def opening(messages: Sequence[Message], max_calls: int | None = None) -> tuple[Message, Message]:
    """Return a shortest conversation that `messages` may follow under the usual rules of alternation."""
    num_tools = next((i for i, m in enumerate(messages) if m.role != "tool"), len(messages))
    num_calls = num_tools if max_calls is None else min(num_tools, max_calls)
    return (USER, calling(num_calls) if num_calls else ANSWER)


def last_sentinel(turn: Message) -> str:
    """The last word of a turn that `opening` or `calling` made."""
    return f"qzValue{len(turn.tool_calls) - 1}zq" if turn.tool_calls else turn.content


def lost_parts(render: RenderText) -> list[str]:
    """What of a conversation with tools the template does not show, in words. Raises TemplateError if it refuses it.

    render: (messages, tools, add_generation_prompt) -> text.
    """
    max_calls = _max_calls(render)
    turn = calling(2 if max_calls is None else max_calls)
    declared: Mapping[str, str] = {
        "the declared tools": _TOOL.name,
        "the descriptions of declared tools": _TOOL.description,
        "the parameters of declared tools": "qzParameterzq",
    }
    wanted: Mapping[str, str] = {
        "user messages": USER.content,
        "the names of tool calls": "qzNamezq",
        "the argument names of tool calls": "qzKeyzq",
        "the argument values of tool calls": "qzValue0zq",
        "all but the first of several tool calls": last_sentinel(turn),
        "tool messages": "qzResult0zq",
        "all but the first of several tool messages in a run": "qzResult1zq",
    }
    undeclared = _missing(declared, render([USER, turn, *_RESULTS], [_TOOL], True))
    return [
        *(undeclared[:1] if "the declared tools" in undeclared else undeclared),
        *_missing(wanted, render([USER, turn, *_RESULTS], [], True)),
        *_missing({"the text of assistant turns": ANSWER.content}, render([USER, ANSWER, USER], [], True)),
        *_missing({"system messages": _SYSTEM.content}, _with_system(render)),
    ]


def _missing(wanted: Mapping[str, str], text: str) -> list[str]:
    return [what for what, sentinel in wanted.items() if sentinel not in text]


def _with_system(render: RenderText) -> str:
    """A template that knows no system messages may say so: then none is lost silently."""
    try:
        return render([_SYSTEM, USER], [], True)
    except TemplateError:
        return _SYSTEM.content


def examine(render: RenderText) -> Findings:
    """Say how a template that loses nothing (`lost_parts`) treats turns and history."""
    max_calls = _max_calls(render)
    drops_text = ANSWER.content not in render([USER, calling(1, ANSWER.content)], [], False)
    return Findings(
        rewriting=_rewriting(render, max_calls, calling(1, "" if drops_text else _THOUGHT)),
        max_calls=max_calls,
        drops_text=drops_text,
    )


def _max_calls(render: RenderText) -> int | None:
    try:
        render([USER, calling(2), *_RESULTS], [], True)
    except TemplateError:
        render([USER, calling(1), _RESULTS[0]], [], True)
        return 1
    return None


def _rewriting(render: RenderText, max_calls: int | None, deciding: Message) -> str:
    """Every prompt, and every turn as it was sampled, must stand unchanged in all later prompts."""
    several = calling(2 if max_calls is None else max_calls)
    thinking = Message(role="assistant", content=_THOUGHT)
    first = _RESULTS[0]
    conversation = [
        *(USER, calling(1), first, several, *_RESULTS, deciding, first, thinking),
        *(USER, ANSWER, USER),
    ]
    for length in range(2, len(conversation) + 1):
        text = render(conversation[:length], [], False)
        for turn, message in enumerate(conversation[: length - 1]):
            if message.role != "assistant":
                continue
            prompt = render(conversation[:turn], [], True)
            # Some templates write white space between header and turn, which is then part of what is sampled.
            is_kept = text.startswith(prompt) and text[len(prompt) :].lstrip().startswith(message.content)
            if not is_kept:
                following = conversation[length - 1].role
                return f"once a message of role {following} follows: {_difference(text, prompt + message.content)}"
    return ""


def _difference(text: str, expected: str) -> str:
    at = next(i for i in range(len(expected)) if expected[i] != text[i : i + 1])
    return (
        f"after {expected[max(0, at - 40) : at]!r} expected {expected[at : at + 40]!r} as it was in the earlier prompt "
        f"or sampled, got {text[at : at + 40]!r}"
    )
