"""Recipes: whole configs of a training run by name, as Python values. Flags are changes to one of them."""

from collections.abc import Mapping
from dataclasses import dataclass

from agentrl_jax.config import TrainConfig
from agentrl_jax.controller.config import RolloutConfig
from agentrl_jax.policy import NetworkConfig
from agentrl_jax.sft import WarmUpConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """description: one line for `--help`."""

    description: str
    config: TrainConfig


QUICKSTART = TrainConfig(
    recipe="quickstart",
    tasks="alfworld,dbbench,knowledgegraph,os_interaction|kg,webshop",
    network=NetworkConfig(vocab_size=1280),
    warm_up=WarmUpConfig(demonstrations=4000, steps=300),
    rollout=RolloutConfig(group_size=8, min_groups_per_batch=20),
    max_steps=200,
    max_minutes=10.0,
)
"""A small agent from nothing, within minutes and without a GPU."""

RECIPES: Mapping[str, Recipe] = {
    "single-kg": Recipe(description="a small agent from nothing, in one environment (kg)", config=TrainConfig()),
    "quickstart": Recipe(description="a small agent from nothing, in several environments at once", config=QUICKSTART),
}
