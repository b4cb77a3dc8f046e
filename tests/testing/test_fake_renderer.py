"""The toy template keeps the renderer contract."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from agentrl_jax.env import Message, Tool, ToolCall
from agentrl_jax.rendering.protocol import Renderer
from agentrl_jax.testing.renderer import END, FakeRenderer
from agentrl_jax.types import as_ids

TOOLS = (Tool(name="look", description="", parameters={}),)
lines = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="!\n"), min_size=1, max_size=5)
calls = st.builds(
    ToolCall, name=st.sampled_from(["look", "go"]), arguments=st.dictionaries(st.text(max_size=3), st.integers())
)
turns = st.builds(Message, role=st.just("assistant"), content=lines, tool_calls=st.lists(calls, max_size=2).map(tuple))
answers = st.lists(st.builds(Message, role=st.sampled_from(["tool", "user"]), content=lines), min_size=1, max_size=3)


@given(conversation=st.lists(st.tuples(turns, answers), max_size=3))
def test_pieces_add_up_to_the_whole(conversation: list[tuple[Message, list[Message]]]) -> None:
    renderer: Renderer = FakeRenderer()
    spell = FakeRenderer().spell
    messages = [Message(role="system", content="s"), Message(role="user", content="u")]
    pieces = [renderer.prompt(messages, TOOLS)]
    for turn, answer in conversation:
        pieces += [spell(turn), renderer.reply(answer)]
        messages += [turn, *answer]
    assert np.concatenate(pieces).tolist() == renderer.prompt(messages, TOOLS).tolist()


@given(turn=turns)
def test_what_is_spelled_is_parsed(turn: Message) -> None:
    renderer = FakeRenderer()
    ids = renderer.spell(turn)
    assert ids[-1] == END
    assert renderer.stop_ids == (END,)
    action = renderer.parse(ids)
    assert (action.content, action.calls, action.errors) == (turn.content, turn.tool_calls, ())


@given(ids=st.lists(st.integers(0, 400), max_size=30))
def test_parsing_never_raises(ids: list[int]) -> None:
    FakeRenderer().parse(as_ids(ids))


def test_malformed_calls_are_errors() -> None:
    renderer = FakeRenderer()
    action = renderer.parse(renderer.spell(Message(role="assistant", content='!look {"a": \n!go [1]\n!go')))
    assert [call.name for call in action.calls] == ["go"]
    assert len(action.errors) == 2
    assert "must be an object" in action.errors[1]
