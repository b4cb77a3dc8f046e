"""MSK-18: masks of every family's template, against committed ones."""

from pathlib import Path

import pytest

from agentrl_jax.rendering.config import HistoryThinking
from agentrl_jax.testing.tokenizers import TemplateKind
from tests.rendering.chat import TOOLS
from tests.rendering.families import FAMILIES, NAMES, golden_conversation, spell_out, toy_renderer, turns_of

GOLDEN = Path(__file__).parents[1] / "rendering" / "golden"


@pytest.mark.parametrize(("kind", "history"), FAMILIES, ids=NAMES)
def test_msk_18_masks_are_the_committed_ones_for_each_template(kind: TemplateKind, history: HistoryThinking) -> None:
    renderer, messages = toy_renderer(kind, history), golden_conversation(kind)
    segments = renderer.demonstration_segments(messages, TOOLS)
    committed = (GOLDEN / f"{kind}-{history}.txt").read_text(encoding="utf-8")
    assert "\n=====\n".join(spell_out(renderer, *segment) for segment in segments) + "\n" == committed
    assert committed.count("⟦") == committed.count("⟧") == len(turns_of(messages)) >= 3
