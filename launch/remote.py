"""Tasks of remote workers on the command line of a training run: `--tasks remote:NAME`."""

from collections.abc import Callable, Iterable

import trio

from agentrl_jax.controller.remote_config import REMOTE_PREFIX, RemoteTasks
from agentrl_jax.env import EnvFamily
from agentrl_jax.errors import ConfigError


def is_remote(name: str) -> bool:
    """Whether remote workers serve the family of this name."""
    return name.startswith(REMOTE_PREFIX)


def remote_families(config: RemoteTasks, names: Iterable[str], say: Callable[[str], None]) -> dict[str, EnvFamily]:
    """The families among `names` that remote workers serve, by name, once there is a worker for each.

    Raises ConfigError if the packages for it are missing, or nobody serves one of them in time.
    """
    tasks = [name.removeprefix(REMOTE_PREFIX) for name in names if is_remote(name)]
    if not tasks:
        return {}
    try:
        from agentrl_jax.controller.remote_env import TrainingController, discover
    except ModuleNotFoundError as error:
        raise ConfigError(f"--tasks {REMOTE_PREFIX}NAME needs agentrl_jax[serve]: no package {error.name}") from error
    families = trio.run(discover, TrainingController(config, say), tasks)
    return {family.name: family for family in families}
