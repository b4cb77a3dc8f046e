"""The command line: checks that come before any device is touched, and the parsing of one frozen config."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from inspect import getdoc
from pathlib import Path
from typing import Protocol

import tyro

from agentrl_jax.config import TrainConfig
from agentrl_jax.controller.process_sessions import check_platform
from agentrl_jax.controller.remote_config import RemoteTasks
from agentrl_jax.env import EnvFamily, EnvRegistry, EnvSource, FamilyOptions, SessionKind, check_sandbox
from agentrl_jax.errors import ConfigError
from agentrl_jax.saved_config import read_config
from envs import register_all
from launch.command import parse as parse
from launch.command import printer as printer
from launch.command import refuse as refuse
from launch.flags import check_all_known
from launch.help import REGISTRY
from launch.recipes import RECIPES, recipe_named
from launch.remote import is_remote, remote_families
from launch.start import Start, read_start


def parse_training(arguments: Sequence[str] | None, *, program: str) -> tuple[TrainConfig, dict[str, str]]:
    """Parse a training run's settings. Flags are changes to a recipe or, with --resume, to that run's settings.

    Returns the settings and, with --resume, what changed since the run was last started. Prints a message and exits
    with code 2 if they are wrong.
    """
    start = read_start(arguments)
    try:
        if start.resume is not None:
            return _parse_resumed(arguments, start, start.resume, program=program)
        recipe = recipe_named(start.recipe)
        before = start.applied_to(recipe.config)
        config = recipe.with_model(_parse(arguments, before, program=program))
        _check_effects(config, before)
        missing = [] if config.dry_run else recipe.missing(config)
        if missing:
            raise ConfigError(f"--recipe {start.recipe} needs {', and '.join(missing)}")
        return config, {}
    except ConfigError as error:
        refuse(error, program=program)


def _parse(arguments: Sequence[str] | None, default: TrainConfig, *, program: str) -> TrainConfig:
    config, unknown = tyro.cli(
        TrainConfig,
        args=arguments,
        prog=f"python -m {program}",
        description=_description(),
        default=default,
        return_unknown_args=True,
        registry=REGISTRY,
    )
    check_all_known(unknown, config)
    return config


def _description() -> str:
    recipes = "\n".join(f"  {name:<22} {recipe.description}" for name, recipe in RECIPES.items())
    return f"{getdoc(TrainConfig)}\n\nRecipes, of which all flags are changes (docs/recipes.md):\n\n{recipes}"


def _parse_resumed(
    arguments: Sequence[str] | None, start: Start, run_dir: Path, *, program: str
) -> tuple[TrainConfig, dict[str, str]]:
    saved = read_config(TrainConfig, run_dir, flag="--resume ")
    saved = replace(saved, runtime=saved.runtime.elsewhere())
    before = start.applied_to(saved)
    resumed = _parse(arguments, before, program=program)
    if resumed.run_dir != saved.run_dir:
        raise ConfigError("--resume names the run directory already: leave --run-dir out")
    resumed.check_resumes(saved)
    changes = replace(resumed, resume=saved.resume, dry_run=False).changes_from(saved)
    return replace(resumed, run_dir=run_dir), changes


def _check_effects(config: TrainConfig, recipe: TrainConfig) -> None:
    """Raise ConfigError for flags that would do nothing."""
    if config.model is not None and config.network != recipe.network:
        raise ConfigError("--network.* has no effect with --model, which brings its own network: leave it out")
    if not config.has_warm_up and config.warm_up != recipe.warm_up:
        raise ConfigError("--warm-up.* has no effect without a warm-up: leave it out, or add --with-warm-up True")
    if not config.has_local_engines:
        names = [item.name for item in fields(config.engine) if item.name != "num_slots"]
        changed = [name for name in names if getattr(config.engine, name) != getattr(recipe.engine, name)]
        idle = [f"--engine.{name.replace('_', '-')}" for name in changed]
        if idle:
            raise ConfigError(f"{', '.join(idle)}: of no effect on servers; leave it out, or use --engines local")


class TasksConfig(Protocol):
    """What a command's settings say about its tasks; see `TrainConfig`."""

    @property
    def env_names(self) -> tuple[str, ...]: ...
    @property
    def data(self) -> Path | None: ...
    @property
    def level(self) -> int: ...
    @property
    def seed(self) -> int: ...
    @property
    def eval_set(self) -> Mapping[str, str]: ...
    @property
    def upstream_compat(self) -> bool: ...
    @property
    def sandbox(self) -> str | None: ...
    @property
    def remote(self) -> RemoteTasks: ...
    def session_kinds(self, families: Iterable[EnvFamily]) -> dict[str, SessionKind]: ...


def make_families(config: TasksConfig, *, leads: bool = True) -> tuple[EnvFamily, ...]:
    """The families that `--tasks` names. Raises ConfigError for an unknown name, or data that is missing.

    leads: False in a process that follows another. Then those of remote workers are left out: only one process can be
    the workers' controller, and the others play no episodes.
    """
    if config.data is not None and not config.data.is_dir():
        raise ConfigError(f"--data {config.data}: expected a folder of task data, but there is none")
    registry = environments()
    names = [name for name in config.env_names if leads or not is_remote(name)]
    remote = remote_families(config.remote, names, printer())
    families = tuple(remote.get(name) or registry.make(name, options_of(config, name)) for name in names)
    check_sandbox(config.sandbox, families)
    return families


def env_sources(config: TasksConfig, families: Iterable[EnvFamily]) -> dict[str, EnvSource]:
    """What the processes of families that run in processes make their envs from, by name.

    Raises ConfigError if this system cannot run envs in processes.
    """
    names = [name for name, kind in config.session_kinds(families).items() if kind == "process" and not is_remote(name)]
    if names:
        check_platform()
    registry = environments()
    return {name: registry.source(name, options_of(config, name)) for name in names}


def environments() -> EnvRegistry:
    """Every environment that this installation knows, by name."""
    registry = EnvRegistry()
    register_all(registry)
    return registry


def options_of(config: TasksConfig, name: str) -> FamilyOptions:
    """What the settings say of the environment `name`."""
    return FamilyOptions(
        seed=config.seed,
        data=config.data,
        level=config.level,
        upstream_compat=config.upstream_compat,
        eval_set=config.eval_set.get(name),
        sandbox=config.sandbox,
    )
