"""Fine-tune on conversations: `python -m launch.sft --data FILE.jsonl`. See `--help`."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

import tyro

from agentrl_jax.config import TrainConfig
from agentrl_jax.errors import ConfigError
from agentrl_jax.learner import LearnerConfig
from agentrl_jax.policy import check_model_folder
from agentrl_jax.preparation import play_demonstrations
from agentrl_jax.report.display import open_display
from agentrl_jax.report.sinks import check_sinks
from agentrl_jax.runlog import RunLog, check_unused
from agentrl_jax.saved_config import read_config
from agentrl_jax.sft_config import SftConfig
from agentrl_jax.sft_data import read_conversations, write_conversations
from agentrl_jax.sft_run import SftData, SftResult, run_sft, split_conversations
from agentrl_jax.sharding import parse_mesh
from launch.config import make_families, printer, refuse
from launch.devices import check_alone, open_mesh
from launch.help import REGISTRY
from launch.runs import INTERRUPTED, asked_to_stop, carry_out, say_end

PROGRAM = "launch.sft"

PRETRAINED_RATE = 1e-5
"""Peak learning rate with --model, where nothing else is asked for: more would undo what the model knows."""


@dataclass(frozen=True)
class _Start:
    """What the defaults of all other flags depend on."""

    model: Path | None = None
    resume: Path | None = None


def main(arguments: Sequence[str] | None = None) -> int:
    """Run and return the exit code: 0 done or stopped, 2 wrong settings or data, 130 stopped by a second Ctrl-C."""
    try:
        config, changes = _parse(arguments)
        return _run(config, changes, _given_data(config))
    except ConfigError as error:
        refuse(error, program=PROGRAM)


def _parse(arguments: Sequence[str] | None) -> tuple[SftConfig, dict[str, str]]:
    """The settings and, with --resume, what changed since the run began; all that can be wrong without its data."""
    start, _ = tyro.cli(_Start, args=arguments, return_unknown_args=True, add_help=False)
    if start.resume is not None:
        saved = read_config(SftConfig, start.resume, flag="--resume ")
        saved = replace(saved, runtime=saved.runtime.elsewhere())
        resumed = tyro.cli(SftConfig, args=arguments, prog=f"python -m {PROGRAM}", default=saved, registry=REGISTRY)
        if resumed.run_dir != saved.run_dir:
            raise ConfigError("--resume names the run directory already: leave --run-dir out")
        resumed.check_resumes(saved)
        return replace(resumed, run_dir=start.resume), replace(resumed, resume=saved.resume).changes_from(saved)
    recipe = SftConfig()
    if start.model is not None:
        recipe = replace(recipe, learner=LearnerConfig(learning_rate=PRETRAINED_RATE))
    config = tyro.cli(SftConfig, args=arguments, prog=f"python -m {PROGRAM}", default=recipe, registry=REGISTRY)
    config.check_source()
    check_sinks(config.track)
    _check_effects(config)
    run_dir = config.run_dir or Path("runs") / f"sft-{datetime.now().strftime('%Y%m%d-%H%M%S')}"
    check_unused(run_dir)
    if config.model is not None:
        check_model_folder(config.model)
    return replace(config, run_dir=run_dir), {}


def _check_effects(config: SftConfig) -> None:
    """Raise ConfigError for flags that would do nothing."""
    recipe = SftConfig()
    if config.model is not None and config.network != recipe.network:
        raise ConfigError("--network.* has no effect with --model, which brings its own network: leave it out")
    if config.data is not None and config.expert != recipe.expert:
        raise ConfigError("--expert.* has no effect with --data: leave it out")
    if config.valid is not None and config.valid_frac != recipe.valid_frac:
        raise ConfigError("--valid-frac has no effect with --valid: leave it out")
    if config.max_steps is not None and config.epochs != recipe.epochs:
        raise ConfigError("--epochs has no effect with --max-steps: leave it out")
    if config.constant_rate and config.learner.decay_steps:
        raise ConfigError("--constant-rate contradicts --learner.decay-steps: choose one of them")


def _given_data(config: SftConfig) -> SftData | None:
    """The conversations of --data; None for those of experts."""
    return None if config.data is None else _split(config, config.data)


def _split(config: SftConfig, path: Path) -> SftData:
    conversations = read_conversations(path)
    if config.valid is None:
        return split_conversations(conversations, config.valid_frac, config.seed)
    return SftData(train=conversations, valid=read_conversations(config.valid))


def _expert_data(config: SftConfig, run_dir: Path, say: Callable[[str], None]) -> SftData:
    """Conversations of scripted experts, through the file that is kept of them."""
    path, expert = run_dir / "conversations.jsonl", config.expert
    assert config.from_experts is not None
    families = make_families(
        TrainConfig(tasks=config.from_experts, level=expert.level, data=expert.task_data, seed=config.seed)
    )
    if not path.is_file():
        played = play_demonstrations(families, expert.conversations, noise=expert.noise, seed=config.seed)
        write_conversations(path, played)
        say(f"conversations: {len(played):,} of the experts of {config.from_experts} in {path}")
    words = sorted({word for family in families for word in family.vocabulary()})
    return replace(_split(config, path), keep_whole=words)


def _run(config: SftConfig, changes: dict[str, str], data: SftData | None) -> int:
    say = printer()
    mesh = open_mesh(parse_mesh(config.mesh), say, config.runtime)
    check_alone("supervised fine-tuning")
    run_dir = config.run_dir
    assert run_dir is not None

    with open_display(config.max_steps, os.environ) as display:
        said = display.say

        def work(run: RunLog) -> SftResult:
            with asked_to_stop(said) as should_stop:
                result = run_sft(config, data or _expert_data(config, run_dir, said), mesh, run, said, should_stop)
            if config.resume is not None:
                run.write_config(replace(config, resume=None).to_json())
            return result

        result = carry_out(config, changes, mesh, said, work, observers=[display.observe])
    if result is None:
        return INTERRUPTED
    say_end(run_dir, result.model_folder, num_steps=result.num_steps, is_stopped=result.is_stopped, say=say)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
