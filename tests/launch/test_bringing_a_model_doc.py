"""docs/bringing-a-model.md: its conversation is one that is read, what it calls refused is, and its commands exist."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from agentrl_jax.sft_config import SftConfig
from agentrl_jax.sft_data import LineError, parse_conversation

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs" / "bringing-a-model.md").read_text(encoding="utf-8")


def conversation() -> Any:
    (block,) = re.findall(r"^```json\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)
    return json.loads(block)


def test_the_conversation_is_read_as_it_stands() -> None:
    found = parse_conversation(conversation())
    assert [message.role for message in found.messages] == ["system", "user", "assistant", "tool", "assistant"]
    assert found.messages[2].tool_calls[0].arguments == {"item": "mug"}
    assert found.is_learnt == (True, True)
    said = conversation()
    said["messages"][2]["weight"] = 0
    assert parse_conversation(said).is_learnt == (False, True)


@pytest.mark.parametrize(
    ("place", "message"),
    [
        (1, {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:"}}]}),
        (3, {"role": "user", "content": "Never mind."}),
        (5, {"role": "assistant", "content": "And no plates."}),
    ],
)
def test_what_it_calls_refused_is_refused(place: int, message: dict[str, Any]) -> None:
    said = conversation()
    said["messages"][place : place + 1] = [message]
    with pytest.raises(LineError):
        parse_conversation(said)


def test_its_commands_and_defaults_are_there() -> None:
    for command in re.findall(r"python -m ([\w.]+)", TEXT):
        assert (ROOT / f"{command.replace('.', '/')}.py").is_file()
    assert SftConfig().valid_frac == 1 / 20
