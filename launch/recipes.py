"""Recipes: whole configs of a training run by name, as Python values. Flags are changes to one of them."""

from collections.abc import Mapping
from dataclasses import dataclass

from agentrl_jax.config import TrainConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """description: one line for `--help`."""

    description: str
    config: TrainConfig


QUICKSTART = TrainConfig(recipe="quickstart", tasks="kg,alfworld", max_steps=100)
"""A small agent from nothing, within minutes and without a GPU."""

RECIPES: Mapping[str, Recipe] = {
    "single-kg": Recipe(description="a small agent from nothing, in one environment (kg)", config=TrainConfig()),
    "quickstart": Recipe(description="a small agent from nothing, in several environments at once", config=QUICKSTART),
}
