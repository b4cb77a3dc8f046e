"""Train an agent: `python -m launch.train`. See `--help`."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from agentrl_jax.algo.losses import make_loss
from agentrl_jax.config import TrainConfig
from agentrl_jax.controller.telemetry import check_installed
from agentrl_jax.env import EnvFamily, EnvSource
from agentrl_jax.errors import ConfigError
from agentrl_jax.pipeline import train
from agentrl_jax.policy import check_model_folder
from agentrl_jax.report.curves import draw_curves
from agentrl_jax.runlog import RunLog, check_unused
from agentrl_jax.sharding import parse_mesh
from launch.config import env_sources, make_families, parse_training, printer, refuse
from launch.devices import check_alone, open_mesh, provenance

PROGRAM = "launch.train"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run and return the exit code: 0 done, 2 wrong settings, 130 stopped by a second Ctrl-C."""
    config, changes = parse_training(arguments, program=PROGRAM)
    try:
        config, families = _check(config)
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
        check_model_folder(config.model)
    if config.telemetry:
        check_installed()
    families = make_families(config)
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
    check_alone()
    make_loss(config.loss)  # a function of the user's is looked at before anything else starts
    assert config.run_dir is not None
    if config.save_every > config.max_steps:
        say(f"note: --save-every {config.save_every} is above --max-steps: checkpoints only at start and end")
    with RunLog(config.run_dir, resume=config.resume is not None) as run:
        if config.resume is None:
            run.write_config(config.to_json())
        run.log_metrics("start", {**provenance(mesh), "changes": changes})
        say(f"run directory: {config.run_dir}")
        for name, change in changes.items():
            say(f"changed: {name} {change}")
        try:
            result = train(config, families, mesh, run, say, sources=sources)
        except KeyboardInterrupt:
            say(f"stopped at once; go on with --resume {config.run_dir}")
            return 130
        except ConfigError:
            if config.resume is None:
                run.discard()  # nothing has been learnt: the corrected command may use the folder
            raise
    curves = draw_curves(config.run_dir)
    if curves is not None:
        say(f"curves: {curves}")
    if result.is_stopped:
        say(f"stopped after {result.num_steps} steps; go on with --resume {config.run_dir}")
    else:
        say(f"weights and tokenizer: {result.model_folder}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
