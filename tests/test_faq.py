"""The messages that the FAQ explains are ones that the code says."""

import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
QUOTED = re.findall(r'^### "(.+)"$', (ROOT / "docs" / "faq.md").read_text(), re.MULTILINE)


@cache
def said() -> str:
    """All sources, with strings that are written in several pieces joined, and … for what is put into them."""
    sources = [path.read_text() for package in ("agentrl_jax", "launch") for path in (ROOT / package).rglob("*.py")]
    return re.sub(r"\{[^{}]*\}", "…", re.sub(r'"\s*\n\s*f?"', "", "\n".join(sources)))


@pytest.mark.parametrize("message", QUOTED)
def test_message_is_said(message: str) -> None:
    assert message in said()


def test_messages_are_quoted() -> None:
    assert len(QUOTED) > 10
