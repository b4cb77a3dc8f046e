"""What process 0 tells the others at the beginning."""

import pickle
from dataclasses import replace
from pathlib import Path

import pytest

from agentrl_jax.config import TrainConfig
from agentrl_jax.errors import ConfigError
from agentrl_jax.lead import Beginning
from agentrl_jax.models.config import ModelConfig
from agentrl_jax.models.published import PUBLISHED

BEGINNING = Beginning(
    config=TrainConfig(run_dir=Path("runs/a b")).with_context(256),
    model=next(iter(PUBLISHED.values())),
    dtype="bfloat16",
    run_dir=Path("runs/a b"),
    weights=Path("policy"),
    num_copy_steps=3,
    step=None,
)


@pytest.mark.parametrize("model", PUBLISHED.values(), ids=list(PUBLISHED))
def test_it_arrives_as_it_was(model: ModelConfig) -> None:
    sent = replace(BEGINNING, model=model)
    assert Beginning.from_bytes(sent.to_bytes()) == sent


def test_nothing_is_executed_on_arrival() -> None:
    with pytest.raises(ConfigError, match="no run"):
        Beginning.from_bytes(pickle.dumps(BEGINNING))


@pytest.mark.parametrize("data", [b"3", b"null", b"[]", b"{}", b'{"config":3}'])
def test_other_json_is_refused(data: bytes) -> None:
    with pytest.raises(ConfigError, match="a saved config"):
        Beginning.from_bytes(data)
