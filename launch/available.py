"""Tasks that have a stand-in: another environment takes the place of one that this machine cannot play."""

import itertools
from collections.abc import Callable
from dataclasses import replace

from agentrl_jax.config import TrainConfig
from agentrl_jax.errors import ConfigError
from launch.config import environments, options_of


def settle_tasks(config: TrainConfig, say: Callable[[str], None]) -> TrainConfig:
    """`config` with one environment for each of its tasks: the first choice that can be played here, else the last.

    Says what cannot be played, and why. Raises ConfigError for an unknown environment.
    """
    if all(len(choices) == 1 for choices in config.task_choices):
        return config
    return replace(config, tasks=",".join(_settled(config, choices, say) for choices in config.task_choices))


def _settled(config: TrainConfig, choices: tuple[str, ...], say: Callable[[str], None]) -> str:
    registry = environments()
    if len(choices) > 1:
        for name in choices:
            registry.target(name)
    for name, following in itertools.pairwise(choices):
        try:
            registry.make(name, options_of(config, name))
        except ConfigError as error:
            say(f"{following} takes the place of {name}, which cannot be played here: {error}")
        else:
            return name
    return choices[-1]
