"""What the agent reads of a command's output, in AgentBench-FC's words."""

import re

from envs.sandbox.protocol import Ran

MAX_CHARS = 800
CUT_CHARS = 780
TRUNCATED = "[truncated because the output is too long]"
EMPTY = "The output of the OS is empty."
_INTRODUCTION = "The output of the OS:\n\n"
# Escape sequences of terminals: controls with parameters, operating system commands, and two-character ones; then all
# control characters but tab and newline.
_CONTROLS = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?|\x1b[@-Z\\-_=>]|[\x00-\x08\x0b-\x1f\x7f]"
)


def shown(ran: Ran) -> str:
    """The observation of a command. One that was stopped says so, after what it had printed."""
    text = _CONTROLS.sub("", ran.text.replace("\r\n", "\n")).strip()
    if len(text) > MAX_CHARS or ran.num_bytes > len(ran.output):
        text = f"{text[:CUT_CHARS]}\n{TRUNCATED}"
    if ran.stopped is not None:
        text = f"{text}\n[stopped: {ran.stopped}]".lstrip()
    return f"{_INTRODUCTION}{text}" if text else EMPTY
