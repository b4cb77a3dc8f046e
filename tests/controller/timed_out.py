"""The source of envs whose sandbox never starts."""

from collections.abc import Callable
from typing import NoReturn

from agentrl_jax.env import Env
from agentrl_jax.errors import EnvTimeout
from agentrl_jax.types import Task


def envs() -> Callable[[Task], Env]:
    def make(task: Task) -> NoReturn:
        raise EnvTimeout("the sandbox did not start in time")

    return make
