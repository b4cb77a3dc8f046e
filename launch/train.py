"""Train an agent: `python -m launch.train`. See `--help`."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import jax
from jax.sharding import Mesh

from agentrl_jax.algo.losses import make_loss
from agentrl_jax.config import TrainConfig
from agentrl_jax.controller.telemetry import check_installed
from agentrl_jax.distributed import is_first, leads
from agentrl_jax.env import EnvFamily, EnvSource
from agentrl_jax.errors import ConfigError
from agentrl_jax.follow import follow_training
from agentrl_jax.lead import Leader, leading
from agentrl_jax.pipeline import train
from agentrl_jax.policy import open_policy
from agentrl_jax.preparation import settle_rendering
from agentrl_jax.report.display import open_display
from agentrl_jax.report.sinks import check_sinks
from agentrl_jax.runlog import check_unused
from agentrl_jax.sharding import parse_mesh
from agentrl_jax.wording import counted
from launch.available import settle_tasks
from launch.config import env_sources, make_families, parse_training, printer, refuse
from launch.devices import open_mesh
from launch.dry_run import show_plan
from launch.recipes import recipe_of
from launch.runs import INTERRUPTED, asked_to_stop, carry_out, say_end

PROGRAM = "launch.train"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run and return the exit code: 0 done, 2 wrong settings, 130 stopped by a second Ctrl-C."""
    config, changes = parse_training(arguments, program=PROGRAM)
    try:
        config, families = _check(config)
        if config.dry_run:
            show_plan(config, recipe_of(config), families, printer())
            return 0
        return _run(config, changes, families, env_sources(config, families))
    except ConfigError as error:
        refuse(error, program=PROGRAM)


def _check(config: TrainConfig) -> tuple[TrainConfig, tuple[EnvFamily, ...]]:
    """Everything that can be known to be wrong before a device is touched or a file is written."""
    if config.run_dir is None:
        config = replace(config, run_dir=Path("runs") / datetime.now().strftime("%Y%m%d-%H%M%S"))
    assert config.run_dir is not None
    if config.resume is None:
        check_unused(config.run_dir)
    if config.model is not None and config.resume is None:
        settle_rendering(open_policy(config.model), config.rendering, lambda _: None)
    if config.telemetry:
        check_installed()
    check_sinks(config.track)
    config = settle_tasks(config, printer())
    if config.dry_run and recipe_of(config).needs_data and config.data is None:
        return config, ()
    # A plan does not wait for remote workers.
    families = make_families(config, leads=not config.dry_run and leads(config.runtime, os.environ))
    for family in families:
        if config.evaluation.num_tasks > family.num_tasks("eval"):
            raise ConfigError(
                f"--evaluation.num-tasks {config.evaluation.num_tasks}: {family.name} has only "
                f"{family.num_tasks('eval')} held-out tasks"
            )
    return config, families


def _run(
    config: TrainConfig, changes: dict[str, str], families: Sequence[EnvFamily], sources: Mapping[str, EnvSource]
) -> int:
    say = printer()
    mesh = open_mesh(parse_mesh(config.mesh), say, config.runtime)
    if is_first():
        with leading() as leader:
            return _lead(config, changes, families, sources, mesh, say, leader)
    with asked_to_stop(say) as should_stop:
        num_steps = follow_training(mesh, should_stop)
    say(f"process {jax.process_index()}: followed process 0 for {counted(num_steps, 'step')}")
    return 0


def _lead(
    config: TrainConfig,
    changes: dict[str, str],
    families: Sequence[EnvFamily],
    sources: Mapping[str, EnvSource],
    mesh: Mesh,
    say: Callable[[str], None],
    leader: Leader,
) -> int:
    """The run itself, in the only process or the first of several."""
    make_loss(config.loss)  # a function of the user's is looked at before anything else starts
    assert config.run_dir is not None
    if config.save_every > config.max_steps:
        say(f"note: --save-every {config.save_every} is above --max-steps: checkpoints only at start and end")
    with open_display(config.max_steps, os.environ, max_minutes=config.max_minutes) as display:
        said = display.say
        result = carry_out(
            config,
            changes,
            mesh,
            said,
            lambda run: train(config, families, mesh, run, said, sources=sources, leader=leader),
            observers=[display.observe],
        )
    if result is None:
        return INTERRUPTED
    say_end(config.run_dir, result.model_folder, num_steps=result.num_steps, is_stopped=result.is_stopped, say=say)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
