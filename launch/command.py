"""What every command line needs: parsing of one frozen config, one line per refusal. No jax."""

import sys
from collections.abc import Callable, Sequence
from typing import NoReturn, TypeVar

import tyro

from agentrl_jax.errors import ConfigError
from launch.help import REGISTRY

ConfigT = TypeVar("ConfigT")


def parse(config_type: type[ConfigT], arguments: Sequence[str] | None, *, program: str) -> ConfigT:
    """Parse `arguments` (None: the process's own). Prints a message and exits with code 2 if they are wrong."""
    try:
        return tyro.cli(config_type, args=arguments, prog=f"python -m {program}", registry=REGISTRY)
    except ConfigError as error:
        refuse(error, program=program)


def refuse(error: ConfigError, *, program: str) -> NoReturn:
    """Say what is wrong in one paragraph and exit with code 2."""
    print(f"{program}: {error}", file=sys.stderr)
    raise SystemExit(2)


def printer() -> Callable[[str], None]:
    """Print a line at once, also into a pipe."""
    return lambda line: print(line, flush=True)
