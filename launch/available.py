"""Tasks that have a stand-in: another environment takes the place of one that this machine cannot play."""

import itertools
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TypeVar

from agentrl_jax.config import TrainConfig
from agentrl_jax.errors import ConfigError
from launch.config import environments, options_of

T = TypeVar("T")


def settle_tasks(config: TrainConfig, say: Callable[[str], None]) -> TrainConfig:
    """`config` with one environment for each of its tasks: the first choice that can be played here, else the last.

    A stand-in has the weight, the staleness bound and the kind of sessions of whom it stands in for, but an evaluation
    set of its own. Says what cannot be played, and why. Raises ConfigError for an unknown environment.
    """
    if all(len(choices) == 1 for choices in config.task_choices):
        return config
    chosen = {choices[0]: _settled(config, choices, say) for choices in config.task_choices}

    def moved(settings: Mapping[str, T]) -> dict[str, T]:
        return {chosen[env]: value for env, value in settings.items()}

    rollout = config.rollout
    return replace(
        config,
        tasks=",".join(chosen.values()),
        rollout=replace(
            rollout,
            task_weights=moved(rollout.task_weights),
            task_max_staleness=moved(rollout.task_max_staleness),
        ),
        task_session_kind=moved(config.task_session_kind),
        eval_set={env: name for env, name in config.eval_set.items() if chosen[env] == env},
    )


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
