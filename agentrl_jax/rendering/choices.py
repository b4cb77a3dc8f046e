"""What is chosen for a chat template at start-up, or why it is refused."""

from collections.abc import Callable, Sequence
from functools import partial

from agentrl_jax.env import Message, Tool
from agentrl_jax.errors import ConfigError, TemplateError
from agentrl_jax.rendering.call_formats import READERS
from agentrl_jax.rendering.config import HistoryThinking, ToolCallFormat
from agentrl_jax.rendering.probe import USER, Findings, RenderText, calling, lost_parts
from agentrl_jax.rendering.shapes import SHAPES, MessageShape

RenderAs = Callable[[MessageShape, Sequence[Message], Sequence[Tool], bool], str]


def choose_shape(render: RenderAs) -> MessageShape:
    """The first shape of messages that the template renders whole. Raises TemplateError naming what it loses."""
    refusal = ""
    for shape in SHAPES:
        try:
            lost = lost_parts(partial(render, shape))
        except TemplateError as error:
            refusal = refusal or str(error)
            continue
        if not lost:
            return shape
        refusal = refusal or (
            f"the chat template loses {', '.join(lost)}; use a template for tool calls, such as ours: --chat-template "
            "hermes"
        )
    raise TemplateError(refusal)


def choose_history(render: RenderText, findings: Findings, asked: HistoryThinking | None) -> HistoryThinking:
    """keep or strip; a template that only appends keeps.

    Raises TemplateError if the template rewrites and nothing is asked for, or if it cannot be rendered anew with what a
    policy may sample; ConfigError for strip without effect.
    """
    if not findings.rewriting:
        if asked == "strip":
            raise ConfigError(
                "history_thinking strip has no effect: the chat template keeps every turn as it was; leave it out"
            )
        return "keep"
    if asked is None:
        raise TemplateError(
            f"the chat template rewrites history {findings.rewriting}. Say which prompts the policy gets: "
            "--history-thinking keep (all that was sampled; one segment an episode) or --history-thinking strip (what "
            "the template leaves; a segment for each rewritten prompt)"
        )
    if asked == "strip" and not _shows_malformed_calls(render):
        raise TemplateError(
            "the chat template does not show a turn without calls and a tool message behind it, which answers a "
            "malformed call: use --history-thinking keep"
        )
    return asked


def _shows_malformed_calls(render: RenderText) -> bool:
    malformed = Message(role="assistant", content="qzMalformedzq")
    notice = Message(role="tool", content="qzNoticezq")
    try:
        text = render([USER, malformed, notice, USER], (), True)
    except TemplateError:
        return False
    return malformed.content in text and notice.content in text


def choose_format(spelled: str) -> ToolCallFormat:
    """The format whose reader understands `spelled`, the call of `calling(1)` as the template writes it.

    Raises TemplateError if there is none.
    """
    for name, read in READERS.items():
        if read(spelled, ()).calls == calling(1).tool_calls:
            return name
    raise TemplateError(
        f"the chat template writes tool calls in a form that no parser reads: {spelled[:80]!r}. If the policy calls in "
        f"one of the forms {', '.join(READERS)}, say so with --tool-call-format"
    )
