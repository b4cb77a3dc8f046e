"""TLC: how many tool calls an episode may carry out."""

import pytest

from agentrl_jax.controller.call_budget import within_budget
from agentrl_jax.controller.episode import EpisodeConfig
from agentrl_jax.env import Action, ToolCall
from agentrl_jax.errors import ConfigError


def test_tlc_11_no_budget_is_not_a_budget_of_zero() -> None:
    action = Action(calls=(ToolCall(name="a", arguments={}),) * 3)
    assert within_budget(action, 0).calls == ()
    for name in ("max_calls", "max_calls_per_turn"):
        with pytest.raises(ConfigError, match=f"{name} must be at least 1, got 0"):
            EpisodeConfig(max_turns=1, max_new_tokens=1, max_context_tokens=2, **{name: 0})
