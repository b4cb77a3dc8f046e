"""What a chat template must do before its transcripts can be trusted, checked with sentinels at start-up.

Published systems lost tool calls, tool results and the thinking of earlier turns silently, because nobody asked the
template first.
"""

from collections.abc import Callable, Mapping, Sequence

from agentrl_jax.env import Message, Tool, ToolCall
from agentrl_jax.errors import TemplateError

# Words that no template contains, without characters that JSON or XML would escape.
USER = Message(role="user", content="qzUserTextzq")
ANSWER = Message(role="assistant", content="qzAnswerTextzq")
_THINKING = Message(role="assistant", content="<think>\nqzThoughtzq\n</think>\n\nqzAnswerTextzq")
_TOOL = Tool(
    name="qzDeclaredzq",
    description="probe",
    parameters={"type": "object", "properties": {"qzKeyzq": {"type": "string"}}},
)

RenderText = Callable[[Sequence[Message], Sequence[Tool], bool], str]


def calling(num_calls: int) -> Message:
    """Return an assistant turn with `num_calls` calls: what a run of that many tool messages must follow."""
    calls = (ToolCall(name="qzNamezq", arguments={"qzKeyzq": f"qzValue{i}zq"}) for i in range(num_calls))
    return Message(role="assistant", tool_calls=tuple(calls))


def opening(messages: Sequence[Message]) -> tuple[Message, Message]:
    """Return a shortest conversation that `messages` may follow under the usual rules of alternation."""
    num_tools = next((i for i, m in enumerate(messages) if m.role != "tool"), len(messages))
    return (USER, calling(num_tools) if num_tools else ANSWER)


def check_template(render: RenderText) -> None:
    """Raise TemplateError naming what the template loses, rewrites or cannot render.

    render: (messages, tools, add_generation_prompt) -> text.
    """
    _check_sentinels(render)
    _check_history(render)


def _check_sentinels(render: RenderText) -> None:
    results = [Message(role="tool", content=f"qzResult{i}zq") for i in range(2)]
    text = render([USER, calling(2), *results], [_TOOL], True)
    wanted: Mapping[str, str] = {
        "the declared tools": _TOOL.name,
        "user messages": USER.content,
        "the names of tool calls": "qzNamezq",
        "the argument names of tool calls": "qzKeyzq",
        "the argument values of tool calls": "qzValue0zq",
        "all but the first of several tool calls": "qzValue1zq",
        "tool messages": "qzResult0zq",
        "all but the first of several tool messages in a run": "qzResult1zq",
    }
    calls_only = render([USER, calling(2), *results], [], True)
    lost = [
        what for what, sentinel in wanted.items() if sentinel not in (text if sentinel == _TOOL.name else calls_only)
    ]
    if lost:
        raise TemplateError(
            f"the chat template loses {', '.join(lost)}; use a template for tool calls, for example "
            "rendering.templates.hermes_template()"
        )


def _check_history(render: RenderText) -> None:
    """Every prompt, and every turn as it was sampled, must stand unchanged in all later prompts."""
    results = [Message(role="tool", content=f"qzResult{i}zq") for i in range(2)]
    conversation = [USER, calling(1), results[0], calling(2), *results, _THINKING, USER, ANSWER, USER]
    for length in range(2, len(conversation) + 1):
        text = render(conversation[:length], [], False)
        following = conversation[length - 1].role
        for turn, message in enumerate(conversation[: length - 1]):
            if message.role != "assistant":
                continue
            expected = render(conversation[:turn], [], True) + message.content
            if not text.startswith(expected):
                difference = next(i for i in range(len(expected)) if expected[i] != text[i : i + 1])
                raise TemplateError(
                    f"the chat template rewrites history once a message of role {following} follows: after "
                    f"{expected[max(0, difference - 40) : difference]!r} expected "
                    f"{expected[difference : difference + 40]!r} as it was in the earlier prompt or sampled, got "
                    f"{text[difference : difference + 40]!r}"
                )
