"""The settings of `launch.evaluate`."""

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import tyro

from agentrl_jax.config import TrainConfig
from agentrl_jax.controller.episode import EpisodeConfig
from agentrl_jax.controller.remote_config import RemoteTasks
from agentrl_jax.engines.local.config import LocalEngineConfig
from agentrl_jax.env import EnvFamily, SessionKind, traits_of
from agentrl_jax.errors import ConfigError
from agentrl_jax.playing.mixtures import Granularity
from agentrl_jax.rendering.config import RenderingConfig
from agentrl_jax.runtime import RuntimeConfig
from agentrl_jax.saved_config import config_to_json, read_config
from agentrl_jax.types import Split
from launch.command import parse
from launch.evaluate_sources import checkpoint_run, is_run

_CONTEXT_TOKENS = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointConfig:
    """Of engines openai:URL, all of them alike."""

    model_variable: str = "OPENAI_MODEL"
    """Environment variable that names the model, where the address does not (openai:URL#MODEL)"""
    key_variable: str = "OPENAI_API_KEY"
    """Environment variable that holds the key; unset: none is sent"""
    max_attempts: int = 6
    """Of a turn, while the endpoint is busy or broken"""
    send_seed: bool = False
    """Tell the endpoint a seed for each turn; not every server takes one"""

    def __post_init__(self) -> None:
        if self.max_attempts < 1:
            raise ConfigError(f"--endpoint.max-attempts must be >= 1, got {self.max_attempts}")


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluateConfig:
    """Evaluate policies on tasks: checkpoints, model folders, servers, endpoints and scripted experts, each alone or
    mixed by turns or episodes.

    The same command goes on with an evaluation that was cut short, in any way: --out names it. If the first --model is
    a run's, the tasks are the run's held-out ones unless flags say otherwise.
    """

    model: Annotated[tuple[Path, ...], tyro.conf.UseAppendAction] = ()
    """Model folder (Hugging Face layout), run directory, or RUN_DIR/checkpoints/step-N; may be repeated"""
    engine: Annotated[tuple[str, ...], tyro.conf.UseAppendAction] = ()
    """sglang:http://host:port (add #FOLDER with the tokenizer if the server's model is not a folder here), or
    openai:http://host:port/v1 (add #MODEL to name the model); may be repeated"""
    expert: bool = False
    """Evaluate the environments' scripted experts too"""
    name: tuple[str, ...] = ()
    """What the results call the policies: models, engines, expert, in this order (default: named after the flags)"""
    mix: tuple[Granularity, ...] = ("single",)
    """single: each policy alone; turn, episode: all of them mixed, one drawn for every turn or episode. Several may be
    named, and are played on the same tasks"""
    weights: tuple[float, ...] = ()
    """Of the policies in mixtures (default: all the same)"""
    tasks: str = "kg"
    """Environments, separated by commas; remote:NAME: a task that env workers serve"""
    split: Split = "eval"
    """eval: held-out tasks; train: those that are trained on"""
    num_tasks: int | None = 128
    """Tasks of each environment, the first ones; None: all of them"""
    samples: int = 1
    """Episodes of each task by each policy or mixture: the k of avg@k, and the n that pass@k is estimated from"""
    data: Path | None = None
    """Folder of real task data; without it every environment generates its own tasks"""
    level: int = 1
    """Difficulty of the tasks"""
    eval_set: Mapping[str, str] = field(default_factory=dict)
    """Named data set that the held-out tasks are, by environment, such as `alfworld valid_unseen`"""
    upstream_compat: bool = False
    """Let environments reproduce the faults of the published ones too"""
    sandbox: str | None = None
    """What runs the programs that the policy writes: bubblewrap, bubblewrap:FOLDER (a root file system), docker, or
    docker:URL (default: this machine's Docker engine if it has the images, else bubblewrap)"""
    seed: int = 0
    """Everything random is derived from it; the tasks of a run are those of its seed"""
    temperature: float = 0.8
    """Sampling temperature"""
    greedy: bool = False
    """Take the likeliest token always, instead of sampling"""
    max_turns: int | None = None
    """Turns of an episode at the most (default: the environment's own limit)"""
    max_context_tokens: int = _CONTEXT_TOKENS
    """Longest episode, in each policy's own tokens; endpoints know their own limit"""
    session_kind: SessionKind | None = None
    """Where an episode's environment runs (default: what each environment declares that it needs)"""
    out: Path | None = None
    """Folder of the evaluation; goes on with the one that is there (default: evaluations/DATE-TIME)"""
    max_concurrent: int = 64
    """Episodes at a time"""
    max_failures: int = 20
    """Episodes in a row that may come to nothing by the fault of an engine or an environment, before it all ends"""
    engine_devices: int = 1
    """Devices that each --model is split over"""
    token_variable: str = "AGENTRL_ENGINE_TOKEN"
    """Environment variable that holds the token of sglang engines; unset: none is sent"""
    json: bool = False
    """Print the results as one JSON document; everything else goes to the error output"""
    agentrl_files: bool = True
    """Also leave the results as agentrl-eval does, in OUT/agentrl"""

    episode: EpisodeConfig = field(
        default_factory=lambda: EpisodeConfig(max_turns=1, max_new_tokens=1024, max_context_tokens=_CONTEXT_TOKENS)
    )
    endpoint: EndpointConfig = field(default_factory=EndpointConfig)
    local: LocalEngineConfig = field(default_factory=LocalEngineConfig)
    remote: RemoteTasks = field(default_factory=RemoteTasks)
    rendering: Annotated[RenderingConfig, tyro.conf.OmitArgPrefixes] = field(default_factory=RenderingConfig)
    runtime: Annotated[RuntimeConfig, tyro.conf.OmitArgPrefixes] = field(default_factory=RuntimeConfig)

    def __post_init__(self) -> None:
        for name in ("samples", "max_concurrent", "max_failures", "engine_devices", "num_tasks", "max_turns"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"--{name.replace('_', '-')} must be >= 1, got {value}")
        if not 0.0 < self.temperature < float("inf"):
            raise ConfigError(
                f"--temperature must be > 0 and finite, got {self.temperature}; --greedy takes the likeliest"
            )
        if self.seed < 0:
            raise ConfigError(f"--seed must be >= 0, got {self.seed}")
        if self.max_context_tokens < 2:
            raise ConfigError(f"--max-context-tokens must be >= 2, got {self.max_context_tokens}")
        if not self.env_names or len(set(self.env_names)) < len(self.env_names):
            raise ConfigError(f"--tasks must name environments, each once, got {self.tasks!r}")
        strangers = sorted(set(self.eval_set) - set(self.env_names))
        if strangers:
            raise ConfigError(f"--eval-set names {', '.join(strangers)}, but --tasks is {self.tasks}")
        if not self.model and not self.engine and not self.expert:
            raise ConfigError("name at least one policy to evaluate: --model, --engine or --expert")
        if self.greedy and self.samples > 1 and not self.engine and self.mix == ("single",):
            raise ConfigError("--samples has no effect with --greedy: each would be the same; leave one of them out")

    @property
    def env_names(self) -> tuple[str, ...]:
        return tuple(name.strip() for name in self.tasks.split(",") if name.strip())

    def session_kinds(self, families: Iterable[EnvFamily]) -> dict[str, SessionKind]:
        """By environment: what the flag says, else what the family declares."""
        return {family.name: self.session_kind or traits_of(family).session_kind for family in families}

    def episode_of(self, family: EnvFamily) -> EpisodeConfig:
        """The bounds of an episode of this family."""
        return replace(
            self.episode,
            temperature=0.0 if self.greedy else self.temperature,
            max_turns=self.max_turns or family.max_turns,
            max_context_tokens=self.max_context_tokens,
        )

    def settings(self, policies: Mapping[str, Any]) -> dict[str, Any]:
        """All that an episode depends on, as plain JSON. policies: what each one is, by name."""
        values = config_to_json(self)
        # More tasks, samples and mixtures may be asked for later; the rest does not touch what is played.
        for name in _ELSEWHERE:
            del values[name]
        return {**values, "policies": dict(policies)}


_ELSEWHERE = (
    *("model", "engine", "expert", "name", "mix", "weights", "num_tasks", "samples", "out", "max_concurrent"),
    *("max_failures", "engine_devices", "json", "agentrl_files", "runtime", "remote", "session_kind", "endpoint"),
    *("token_variable",),
)


@dataclass(frozen=True)
class _Start:
    """What the defaults of all other flags depend on."""

    model: Annotated[tuple[Path, ...], tyro.conf.UseAppendAction] = ()


def parse_evaluation(arguments: Sequence[str] | None, *, program: str) -> EvaluateConfig:
    """Parse the settings; where the first --model is a run's, its tasks and bounds are the defaults.

    Of several runs, the longest context is: none of them is cut off where it was trained to go on.

    Raises ConfigError for a run that cannot be read. Prints a message and exits with code 2 for flags that are wrong.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    if {"-h", "--help"} & set(given):
        return parse(EvaluateConfig, given, program=program)
    start, _ = tyro.cli(_Start, args=given, return_unknown_args=True, add_help=False)
    if not start.model or _run_of(start.model[0]) is None:
        return parse(EvaluateConfig, given, program=program)
    runs = [run for run in map(_run_of, start.model) if run is not None]
    default = _defaults_of([read_config(TrainConfig, run, flag="--model ") for run in runs], start.model)
    config = tyro.cli(EvaluateConfig, args=given, prog=f"python -m {program}", default=default)
    return replace(config, model=start.model)  # without the default's in front of them


def _run_of(model: Path) -> Path | None:
    return model if is_run(model) else checkpoint_run(model)


def _defaults_of(runs: Sequence[TrainConfig], models: tuple[Path, ...]) -> EvaluateConfig:
    run = runs[0]
    return EvaluateConfig(
        model=models,
        tasks=run.tasks,
        data=run.data,
        level=run.level,
        eval_set=run.eval_set,
        upstream_compat=run.upstream_compat,
        sandbox=run.sandbox,
        seed=run.seed,
        temperature=run.temperature,
        max_turns=run.max_turns,
        max_context_tokens=max(run.max_context_tokens for run in runs if run.max_context_tokens is not None),
        session_kind=run.session_kind,
        episode=run.episode,
        local=replace(run.engine, cache_tokens=LocalEngineConfig().cache_tokens),
        remote=run.remote,
        rendering=run.rendering,
    )
